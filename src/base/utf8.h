/* utf8.h: the little UTF-8 that a text stream needs. Pure functions. */
#ifndef EA_BASE_UTF8_H
#define EA_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Length 1..4 of the valid UTF-8 character at s (n bytes there); 0 if invalid, over-long, a
 * surrogate, or cut short. */
size_t ea_utf8_valid_len(const char *s, size_t n);

/* Bytes at the end of s that begin a character which may be completed by later bytes: 0..3. */
size_t ea_utf8_incomplete_tail(const char *s, size_t n);

/* Decode one valid character of `len` bytes, as told by ea_utf8_valid_len. */
uint32_t ea_utf8_decode(const char *s, size_t len);

/* Encode a code point (<= 0x10ffff); returns 1..4. */
size_t ea_utf8_encode(uint32_t cp, char out[4]);

#endif
