/* sample.h: logits -> token. The chain is llama.cpp's: logit bias, penalties, top-k, top-p, min-p,
 * temperature, draw. Random numbers are counter-based: a draw depends only on (seed, position), so
 * that a drafted token and an undrafted one are drawn alike. A sampler belongs to the engine
 * thread; it allocates only in ea_sampler_create. */
#ifndef EA_SAMPLE_SAMPLE_H
#define EA_SAMPLE_SAMPLE_H

#include "base/error.h"

typedef struct ea_sampler ea_sampler;

/* n_vocab logits a call. Validates ranges: EA_EINVAL names the field and the value. */
ea_status ea_sampler_create(const ea_sampling *params, int n_vocab, ea_sampler **out,
                            ea_error *err) EA_MUST_CHECK;
void ea_sampler_destroy(ea_sampler *s);

/* True when the token is simply the argmax of the raw logits: the device need not hand out logits
 * at all. */
bool ea_sampler_is_argmax(const ea_sampler *s);

/* Draw the token of position `pos` (its place in the timeline). history: the n_history tokens
 * before it (penalties look at the last repeat_last_n). banned: tokens never drawn, e.g. end tokens
 * under ignore_eos. logits are not changed. */
int32_t ea_sampler_draw(ea_sampler *s, const float *logits, const int32_t *history, int n_history,
                        int pos, const int32_t *banned, int n_banned);

/* log softmax(logits)[token], from f64 sums. */
float ea_logprob(const float *logits, int n_vocab, int32_t token);
/* The n best tokens by logit with log-probabilities, best first (ties: lower id first); returns how
 * many were written. */
int ea_top_logprobs(const float *logits, int n_vocab, int n, ea_token_prob *out);

/* Uniform in [0, 1) from (seed, counter); 53 bits. */
double ea_random_uniform(uint64_t seed, uint64_t counter);

#endif
