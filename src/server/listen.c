/* listen.c: the listening socket. Ours and not libmicrohttpd's, for a clear message when the
 * address is taken and to learn the port that was bound. */
#include "server/internal.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int bound_port(int fd)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0)
        return -1;
    in_port_t port = a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                             : ((struct sockaddr_in *)&a)->sin_port;
    return ntohs(port);
}

/* A listening socket on one address, or -errno. */
static int try_address(const struct addrinfo *a)
{
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol), on = 1;
    if (fd < 0)
        return -errno;
    /* A restart must not wait for the old connections' TIME_WAIT. */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 1024) == 0)
        return fd;
    int error = errno;
    close(fd);
    return -error;
}

ea_status ea_server_listen(const char *host, int port, int *fd, int *bound, ea_error *err)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV},
                    *list = NULL;
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    int rc = getaddrinfo(host, service, &hints, &list);
    if (rc != 0)
        return ea_fail(err, EA_EIO, "host '%s': %s", host, gai_strerror(rc));
    int sock = -EADDRNOTAVAIL;
    for (const struct addrinfo *a = list; a && sock < 0; a = a->ai_next)
        sock = try_address(a);
    freeaddrinfo(list);
    if (sock == -EADDRINUSE)
        return ea_fail(err, EA_EIO, "port %d on %s is already in use; choose another with --port",
                       port, host);
    if (sock < 0)
        return ea_fail(err, EA_EIO, "cannot listen on %s port %d: %s", host, port, strerror(-sock));
    *fd = sock;
    *bound = bound_port(sock);
    return EA_OK;
}
