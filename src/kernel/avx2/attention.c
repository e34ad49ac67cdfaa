/* attention.c: see attention.h. */
typedef int ea_attention_avx2_empty;
