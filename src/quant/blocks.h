/* blocks.h: memory layouts of the quantised blocks, as the GGUF/ggml specification defines them.
 * Shared by the scalar reference here and by the kernels' packers. All structs are packed
 * (alignment 1), since a tensor of a hostile or odd file may lie at any address. Little-endian.
 *
 * Elements are numbered in the order in which they lie in the row. "Nibble pairs": byte i of qs
 * holds element i in its low and element i + n/2 in its high half. */
#ifndef EA_QUANT_BLOCKS_H
#define EA_QUANT_BLOCKS_H

#include "base/f16.h"

enum {
    EA_QK = 32,       /* elements of a small block */
    EA_QK_K = 256,    /* elements of a super-block */
    EA_K_SCALES = 12, /* bytes of the packed 6-bit scales of Q3_K, Q4_K, Q5_K */
};

#define EA_BLOCK(name, n_bytes, ...)              \
    typedef struct __attribute__((packed)) name { \
        __VA_ARGS__                               \
    } name;                                       \
    _Static_assert(sizeof(name) == (n_bytes), #name " has the file's size")

/* x = (q - 8) * d, q in 0..15; nibble pairs. */
EA_BLOCK(ea_block_q4_0, 18, ea_f16 d; uint8_t qs[EA_QK / 2];);
/* x = q * d + m, q in 0..15; nibble pairs. */
EA_BLOCK(ea_block_q4_1, 20, ea_f16 d; ea_f16 m; uint8_t qs[EA_QK / 2];);
/* x = (q - 16) * d, q in 0..31; nibble pairs, fifth bit of element i is bit i of qh. */
EA_BLOCK(ea_block_q5_0, 22, ea_f16 d; uint8_t qh[4]; uint8_t qs[EA_QK / 2];);
/* x = q * d + m, q in 0..31; bits as in Q5_0. */
EA_BLOCK(ea_block_q5_1, 24, ea_f16 d; ea_f16 m; uint8_t qh[4]; uint8_t qs[EA_QK / 2];);
/* x = q * d, q in -128..127. */
EA_BLOCK(ea_block_q8_0, 34, ea_f16 d; int8_t qs[EA_QK];);
/* x = ea_iq4nl_values[q] * d; nibble pairs. */
EA_BLOCK(ea_block_iq4_nl, 18, ea_f16 d; uint8_t qs[EA_QK / 2];);

/* Super-blocks: 256 elements; "sub-block" = 16 or 32 of them with one scale.
 *
 * Q2_K: x = d * (scales & 15) * q - dmin * (scales >> 4), q in 0..3, sub-blocks of 16. Each half of
 * 128 elements has 32 bytes of qs; element 32 s + l of the half is bits 2s..2s+1 of byte l. */
EA_BLOCK(ea_block_q2_k, 84, uint8_t scales[EA_QK_K / 16]; uint8_t qs[EA_QK_K / 4]; ea_f16 d;
         ea_f16 dmin;);
/* Q3_K: x = d * (scale - 32) * q, q in -4..3, sub-blocks of 16. Low two bits of q + 4 as in Q2_K;
 * the third bit of element 32 s + l (s in 0..7) is bit s of hmask[l]. Scales: see
 * ea_q3k_scales_unpack. */
EA_BLOCK(ea_block_q3_k, 110, uint8_t hmask[EA_QK_K / 8]; uint8_t qs[EA_QK_K / 4];
         uint8_t scales[EA_K_SCALES]; ea_f16 d;);
/* Q4_K: x = d * sc * q - dmin * m, q in 0..15, sub-blocks of 32; each pair of sub-blocks is 32
 * bytes of qs, the first in the low halves. sc and m: see ea_q4k_scales_unpack. */
EA_BLOCK(ea_block_q4_k, 144, ea_f16 d; ea_f16 dmin; uint8_t scales[EA_K_SCALES];
         uint8_t qs[EA_QK_K / 2];);
/* Q5_K: as Q4_K with q in 0..31; the fifth bit of element l of sub-block s is bit s of qh[l]. */
EA_BLOCK(ea_block_q5_k, 176, ea_f16 d; ea_f16 dmin; uint8_t scales[EA_K_SCALES];
         uint8_t qh[EA_QK_K / 8]; uint8_t qs[EA_QK_K / 2];);
/* Q6_K: x = d * scale * q, q in -32..31, sub-blocks of 16. In each half of 128 elements, element
 * 32 s + l of q + 32 has its low four bits in ql[l + 32 (s % 2)] (low half for s < 2, else high)
 * and its high two bits in bits 2s..2s+1 of qh[l]. */
EA_BLOCK(ea_block_q6_k, 210, uint8_t ql[EA_QK_K / 2]; uint8_t qh[EA_QK_K / 4];
         int8_t scales[EA_QK_K / 16]; ea_f16 d;);

/* The sixteen levels of IQ4_NL, ascending. */
extern const int8_t ea_iq4nl_values[16];

/* The eight 6-bit scales and minima of Q4_K and Q5_K from their 12 bytes: low 6 bits of bytes 0..3
 * and 4..7 are those of the first four; the other four have their low halves in bytes 8..11 and
 * their high two bits on top of bytes 0..7. */
void ea_q4k_scales_unpack(const uint8_t packed[EA_K_SCALES], uint8_t sc[8], uint8_t m[8]);
void ea_q4k_scales_pack(const uint8_t sc[8], const uint8_t m[8], uint8_t packed[EA_K_SCALES]);

/* The sixteen scales of Q3_K, already minus 32 (-32..31): low halves in bytes 0..7 (first eight in
 * the low nibbles), high two bits of scale i in bits 2 (i/4).. of byte 8 + i % 4. */
void ea_q3k_scales_unpack(const uint8_t packed[EA_K_SCALES], int8_t sc[16]);
void ea_q3k_scales_pack(const int8_t sc[16], uint8_t packed[EA_K_SCALES]);

#endif
