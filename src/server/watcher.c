/* watcher.c: one thread that looks after calls whose connections sleep.
 *
 * libmicrohttpd takes a suspended connection out of its own polling, so it would not see that the
 * client has gone. This thread polls the sockets of all generating calls for a hang-up (a client
 * that shuts down only its sending side counts as gone: with HTTP nobody waits like that), cancels
 * their requests at once and wakes them. It also asks for comment lines on silent streams.
 *
 * Calls are found by number, never by pointer: an event may arrive for a call that has just ended
 * and whose descriptor is another's already. */
#include "server/internal.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"

enum { WAKE_ID = 0, MAX_EVENTS = 64 };

static ea_call *find_call(ea_server *s, uint64_t id)
{
    for (ea_call *c = s->calls; c; c = c->next)
        if (c->watch_id == id)
            return c;
    return NULL;
}

static void client_gone(ea_server *s, uint64_t id)
{
    pthread_mutex_lock(&s->lock);
    ea_call *call = find_call(s, id);
    if (call) {
        ea_generate_cancel(call);
        ea_inbox_set_gone(call->inbox, EA_GONE_CLIENT);
    }
    pthread_mutex_unlock(&s->lock);
}

static void keep_streams_alive(ea_server *s)
{
    uint64_t span = (uint64_t)s->params.keepalive_ms * 1000000u, now = ea_now_ns();
    if (now < span)
        return;
    pthread_mutex_lock(&s->lock);
    for (ea_call *c = s->calls; c; c = c->next)
        if (c->gen.stream)
            ea_inbox_keepalive(c->inbox, now - span);
    pthread_mutex_unlock(&s->lock);
}

static void *watch(void *arg)
{
    ea_server *s = arg;
    struct epoll_event events[MAX_EVENTS];
    int tick_ms = EA_MAX(1, EA_MIN(1000, s->params.keepalive_ms / 2));
    uint64_t next_tick = ea_now_ns();
    for (;;) {
        int n = epoll_wait(s->watch_epoll, events, MAX_EVENTS, tick_ms);
        if (n < 0 && errno != EINTR)
            return NULL; /* cannot happen with descriptors that we own */
        for (int i = 0; i < n; i++) {
            if (events[i].data.u64 == WAKE_ID)
                return NULL;
            client_gone(s, events[i].data.u64);
        }
        if (ea_now_ns() >= next_tick) {
            keep_streams_alive(s);
            next_tick = ea_now_ns() + (uint64_t)tick_ms * 1000000u;
        }
    }
}

ea_status ea_watcher_start(ea_server *s, ea_error *err)
{
    struct epoll_event wake = {.events = EPOLLIN, .data.u64 = WAKE_ID};
    s->watch_epoll = epoll_create1(EPOLL_CLOEXEC);
    s->watch_wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->watch_epoll < 0 || s->watch_wake < 0 ||
        epoll_ctl(s->watch_epoll, EPOLL_CTL_ADD, s->watch_wake, &wake) != 0 ||
        pthread_create(&s->watcher, NULL, watch, s) != 0) {
        ea_watcher_stop(s);
        return ea_fail(err, EA_EIO, "cannot start the thread that watches connections");
    }
    s->watching = true;
    return EA_OK;
}

void ea_watcher_stop(ea_server *s)
{
    if (s->watching) {
        uint64_t one = 1;
        if (write(s->watch_wake, &one, sizeof one) == (ssize_t)sizeof one)
            pthread_join(s->watcher, NULL);
        s->watching = false;
    }
    if (s->watch_epoll >= 0)
        close(s->watch_epoll);
    if (s->watch_wake >= 0)
        close(s->watch_wake);
    s->watch_epoll = s->watch_wake = -1;
}

bool ea_watcher_enter(ea_call *call)
{
    ea_server *s = call->server;
    pthread_mutex_lock(&s->lock);
    call->entered = !s->stopping;
    s->n_entered += call->entered;
    pthread_mutex_unlock(&s->lock);
    return call->entered;
}

bool ea_watcher_add(ea_call *call)
{
    ea_server *s = call->server;
    /* One shot: the first hang-up is all that we need, and it stays true. */
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT};
    pthread_mutex_lock(&s->lock);
    bool ok = !s->stopping;
    if (ok) {
        call->watch_id = ++s->next_watch_id;
        call->next = s->calls;
        call->prev = NULL;
        if (s->calls)
            s->calls->prev = call;
        s->calls = call;
        event.data.u64 = call->watch_id;
        /* Reports also what happened before: a client may be gone already. */
        epoll_ctl(s->watch_epoll, EPOLL_CTL_ADD, call->fd, &event);
    }
    pthread_mutex_unlock(&s->lock);
    return ok;
}

static void unlist(ea_call *call)
{
    ea_server *s = call->server;
    epoll_ctl(s->watch_epoll, EPOLL_CTL_DEL, call->fd, NULL);
    if (call->prev)
        call->prev->next = call->next;
    else
        s->calls = call->next;
    if (call->next)
        call->next->prev = call->prev;
    call->watch_id = 0;
}

void ea_watcher_leave(ea_call *call)
{
    ea_server *s = call->server;
    if (!call->entered)
        return;
    pthread_mutex_lock(&s->lock);
    if (call->watch_id)
        unlist(call);
    call->entered = false;
    if (--s->n_entered == 0)
        pthread_cond_broadcast(&s->drained);
    pthread_mutex_unlock(&s->lock);
}

void ea_watcher_cancel_all(ea_server *s, int timeout_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000L;
    }
    pthread_mutex_lock(&s->lock);
    s->stopping = true; /* from here on no call is listed any more */
    for (ea_call *c = s->calls; c; c = c->next) {
        ea_inbox_set_gone(c->inbox, EA_GONE_STOP); /* first: else it reads as a plain cancel */
        ea_generate_cancel(c);
    }
    while (s->n_entered && pthread_cond_timedwait(&s->drained, &s->lock, &until) == 0)
        ;
    pthread_mutex_unlock(&s->lock);
}
