/* clock.c: see clock.h. */
#include "base/clock.h"

#include <sys/random.h>
#include <time.h>

uint64_t ea_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

int64_t ea_unix_seconds(void)
{
    return (int64_t)time(NULL);
}

void ea_sleep_ns(uint64_t ns)
{
    struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000u),
                          .tv_nsec = (long)(ns % 1000000000u)};
    nanosleep(&ts, NULL);
}

uint64_t ea_random_u64(void)
{
    uint64_t value;
    if (getrandom(&value, sizeof value, 0) != (long)sizeof value)
        value = ea_now_ns() * 0x9e3779b97f4a7c15u; /* only where the system has no entropy call */
    return value;
}
