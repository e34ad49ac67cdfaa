/* waiter.c: see cli.h. */
#include <time.h>

#include "cli/cli.h"

enum { NAP_NS = 50 * 1000 * 1000 }; /* a person does not notice; costs nothing measurable */

bool ea_waiter_init(ea_waiter *w)
{
    pthread_condattr_t attr;
    if (pthread_condattr_init(&attr) != 0)
        return false;
    /* Wall-clock jumps must not stretch a nap. */
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    bool good = pthread_cond_init(&w->wake, &attr) == 0;
    pthread_condattr_destroy(&attr);
    if (good && pthread_mutex_init(&w->lock, NULL) != 0) {
        pthread_cond_destroy(&w->wake);
        good = false;
    }
    return good;
}

void ea_waiter_done(ea_waiter *w)
{
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->wake);
}

void ea_waiter_lock(ea_waiter *w)
{
    pthread_mutex_lock(&w->lock);
}

void ea_waiter_unlock(ea_waiter *w)
{
    pthread_mutex_unlock(&w->lock);
}

void ea_waiter_notify(ea_waiter *w)
{
    pthread_cond_signal(&w->wake);
}

void ea_waiter_sleep(ea_waiter *w)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += NAP_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&w->wake, &w->lock, &until);
}
