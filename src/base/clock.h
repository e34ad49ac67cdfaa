/* clock.h: time. Thread-safe. */
#ifndef EA_BASE_CLOCK_H
#define EA_BASE_CLOCK_H

#include <stdint.h>

uint64_t ea_now_ns(void);      /* monotonic */
int64_t ea_unix_seconds(void); /* wall clock, for "created" fields */
void ea_sleep_ns(uint64_t ns);
uint64_t ea_random_u64(void); /* from the system, for seeds and ids */

#endif
