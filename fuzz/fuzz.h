/* fuzz.h: the entry that every target defines and both drivers (libFuzzer, replay.c) call. */
#ifndef EA_FUZZ_FUZZ_H
#define EA_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* One input. Must not keep anything; returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

#endif
