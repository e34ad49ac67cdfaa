/* sample.c: see sample.h.
 *
 * Memory: only what the chosen chain needs is allocated, so that 64 agents with the usual top-k 40
 * cost kilobytes, not a vocabulary each. `work` (adjusted logits) exists when a bias or a penalty
 * is set, `cand` holds top_k entries, or the vocabulary when top-k is off. Ties: among equal logits
 * the lower token id comes first, everywhere. NaN counts as -infinity. */
#include "sample/sample.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"

typedef struct candidate {
    int32_t id;
    float logit;
} candidate;

struct ea_sampler {
    ea_sampling params; /* logit_bias points to our copy */
    int n_vocab;
    bool penalties;
    ea_logit_bias *bias;
    float *work; /* [n_vocab] adjusted logits, or NULL */
    int32_t *
        count; /* [n_vocab] occurrences in the window, zero between calls; NULL without penalties */
    candidate *cand; /* [n_cand_max] */
    int n_cand_max;
};

/* ---- parameters ---- */

static ea_status check_range(const char *field, double value, double lo, double hi, ea_error *err)
{
    if (value >= lo && value <= hi)
        return EA_OK;
    return ea_fail(err, EA_EINVAL, "%s: %g is not in %g..%g", field, value, lo, hi);
}

static ea_status check_params(const ea_sampling *p, int n_vocab, ea_error *err)
{
    EA_TRY(check_range("temperature", p->temperature, -FLT_MAX, 100, err));
    EA_TRY(check_range("top_k", p->top_k, -1, 1e9, err));
    EA_TRY(check_range("top_p", p->top_p, 0, 1, err));
    EA_TRY(check_range("min_p", p->min_p, 0, 1, err));
    EA_TRY(check_range("repeat_penalty", p->repeat_penalty, 1e-3, 100, err));
    EA_TRY(check_range("repeat_last_n", p->repeat_last_n, -1, 1e9, err));
    EA_TRY(check_range("presence_penalty", p->presence_penalty, -100, 100, err));
    EA_TRY(check_range("frequency_penalty", p->frequency_penalty, -100, 100, err));
    if (p->n_logit_bias > EA_MAX_LOGIT_BIAS)
        return ea_fail(err, EA_EINVAL, "logit_bias: %zu entries, at most %d", p->n_logit_bias,
                       EA_MAX_LOGIT_BIAS);
    for (size_t i = 0; i < p->n_logit_bias; i++) {
        int32_t token = p->logit_bias[i].token;
        if (token < 0 || token >= n_vocab)
            return ea_fail(err, EA_EINVAL, "logit_bias: token %d is not in 0..%d", token,
                           n_vocab - 1);
        if (isnan(p->logit_bias[i].bias))
            return ea_fail(err, EA_EINVAL, "logit_bias: bias of token %d is not a number", token);
    }
    return EA_OK;
}

ea_status ea_sampler_create(const ea_sampling *params, int n_vocab, ea_sampler **out, ea_error *err)
{
    EA_ASSERT(n_vocab > 0);
    EA_TRY(check_params(params, n_vocab, err));
    ea_sampler *s = ea_calloc(1, sizeof *s);
    if (!s)
        return ea_fail(err, EA_ENOMEM, "out of memory: sampler");
    s->params = *params;
    s->n_vocab = n_vocab;
    s->penalties = params->repeat_last_n != 0 &&
                   (params->repeat_penalty != 1 || params->presence_penalty != 0 ||
                    params->frequency_penalty != 0);
    size_t n = (size_t)n_vocab;
    bool greedy = params->temperature <= 0;
    if (!greedy) {
        s->n_cand_max = params->top_k > 0 && params->top_k < n_vocab ? params->top_k : n_vocab;
        s->cand = ea_malloc((size_t)s->n_cand_max * sizeof *s->cand);
    }
    if (params->n_logit_bias) {
        s->bias = ea_malloc(params->n_logit_bias * sizeof *s->bias);
        if (s->bias)
            memcpy(s->bias, params->logit_bias, params->n_logit_bias * sizeof *s->bias);
    }
    s->params.logit_bias = s->bias;
    if (s->penalties || s->bias)
        s->work = ea_malloc(n * sizeof *s->work);
    if (s->penalties)
        s->count = ea_calloc(n, sizeof *s->count);
    if ((!greedy && !s->cand) || (params->n_logit_bias && !s->bias) ||
        ((s->penalties || s->bias) && !s->work) || (s->penalties && !s->count)) {
        ea_sampler_destroy(s);
        return ea_fail(err, EA_ENOMEM, "out of memory: sampler");
    }
    *out = s;
    return EA_OK;
}

void ea_sampler_destroy(ea_sampler *s)
{
    if (!s)
        return;
    ea_free(s->bias);
    ea_free(s->work);
    ea_free(s->count);
    ea_free(s->cand);
    ea_free(s);
}

bool ea_sampler_is_argmax(const ea_sampler *s)
{
    return s->params.temperature <= 0 && !s->penalties && !s->bias;
}

/* ---- logit bias and penalties ---- */

/* Penalise tokens of the window once each (llama.cpp's rule): a positive logit is divided by
 * repeat_penalty, a negative one multiplied; then minus count * frequency_penalty and minus
 * presence_penalty. */
static void apply_penalties(ea_sampler *s, const int32_t *history, int n_history)
{
    const ea_sampling *p = &s->params;
    int n = p->repeat_last_n < 0 ? n_history : EA_MIN(p->repeat_last_n, n_history);
    const int32_t *window = history + (n_history - n);
    for (int i = 0; i < n; i++)
        s->count[window[i]]++;
    for (int i = 0; i < n; i++) {
        int32_t token = window[i], count = s->count[token];
        if (count == 0) /* this token's turn was before */
            continue;
        float *logit = &s->work[token];
        *logit = *logit <= 0 ? *logit * p->repeat_penalty : *logit / p->repeat_penalty;
        *logit -= (float)count * p->frequency_penalty + p->presence_penalty;
        s->count[token] = 0;
    }
}

/* The logits that the rest of the chain reads. */
static const float *adjusted(ea_sampler *s, const float *logits, const int32_t *history,
                             int n_history)
{
    if (!s->work)
        return logits;
    memcpy(s->work, logits, (size_t)s->n_vocab * sizeof *s->work);
    for (size_t i = 0; i < s->params.n_logit_bias; i++)
        s->work[s->bias[i].token] += s->bias[i].bias;
    if (s->penalties)
        apply_penalties(s, history, n_history);
    return s->work;
}

static bool is_banned(int32_t token, const int32_t *banned, int n_banned)
{
    for (int i = 0; i < n_banned; i++)
        if (banned[i] == token)
            return true;
    return false;
}

/* ---- selection ---- */

/* Is a better than b? Total order: higher logit, then lower id. */
static bool better(candidate a, candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static int compare_candidates(const void *a, const void *b)
{
    candidate x = *(const candidate *)a, y = *(const candidate *)b;
    return better(x, y) ? -1 : better(y, x);
}

/* Sift down in a heap whose root is the worst. */
static void sift_down(candidate *heap, int n, int i)
{
    for (;;) {
        int worst = i, l = 2 * i + 1, r = l + 1;
        if (l < n && better(heap[worst], heap[l]))
            worst = l;
        if (r < n && better(heap[worst], heap[r]))
            worst = r;
        if (worst == i)
            return;
        candidate t = heap[i];
        heap[i] = heap[worst];
        heap[worst] = t;
        i = worst;
    }
}

/* The k best of n logits, best first; returns their number. -infinity and NaN are left out. */
static int select_top(const float *logits, int n, int k, const int32_t *banned, int n_banned,
                      candidate *out)
{
    int m = 0;
    for (int i = 0; i < n; i++) {
        candidate c = {i, logits[i]};
        if (m == k) {
            if (!better(c, out[0]) || is_banned(i, banned, n_banned))
                continue;
            out[0] = c;
            sift_down(out, m, 0);
        } else if (c.logit > -INFINITY && !is_banned(i, banned, n_banned)) {
            out[m++] = c;
            if (m == k)
                for (int j = m / 2 - 1; j >= 0; j--)
                    sift_down(out, m, j);
        }
    }
    qsort(out, (size_t)m, sizeof *out, compare_candidates);
    return m;
}

static int32_t argmax(const float *logits, int n, const int32_t *banned, int n_banned)
{
    int best = -1;
    for (int i = 0; i < n; i++)
        if (logits[i] > (best < 0 ? -INFINITY : logits[best]) && !is_banned(i, banned, n_banned))
            best = i;
    if (best >= 0)
        return best;
    for (int i = 0; i < n; i++) /* nothing finite is left: the first token that is allowed at all */
        if (!is_banned(i, banned, n_banned))
            return i;
    return 0;
}

/* Probability mass of the best candidates, in units of that of c[0]. */
static double mass_of(const candidate *c, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += exp((double)c[i].logit - c[0].logit);
    return sum;
}

/* Keep the best candidates (sorted) that hold `mass` together; at least one. */
static int cut_mass(const candidate *c, int n, double mass)
{
    double sum = 0;
    for (int i = 0; i < n; i++) {
        sum += exp((double)c[i].logit - c[0].logit);
        if (sum >= mass)
            return i + 1;
    }
    return n;
}

/* Candidates for top-p without top-k: sorting a whole vocabulary costs milliseconds, so take those
 * within a distance of the best logit, and widen it while they hold less than top_p of all
 * probability. */
static int select_nucleus(ea_sampler *s, const float *logits, const int32_t *banned, int n_banned)
{
    double total = 0;
    int32_t best = argmax(logits, s->n_vocab, banned, n_banned);
    float max = logits[best];
    if (!(max > -INFINITY)) {
        s->cand[0] = (candidate){best, max};
        return 1;
    }
    for (int i = 0; i < s->n_vocab; i++)
        if (logits[i] > -INFINITY && !is_banned(i, banned, n_banned))
            total += exp((double)logits[i] - max);
    bool all = s->params.top_p >= 1 && s->params.min_p <= 0;
    for (double reach = 8;; reach *= 2) {
        int m = 0;
        double mass = 0;
        for (int i = 0; i < s->n_vocab; i++)
            if (logits[i] > -INFINITY && (all || logits[i] >= max - reach) &&
                !is_banned(i, banned, n_banned)) {
                s->cand[m++] = (candidate){i, logits[i]};
                mass += exp((double)logits[i] - max);
            }
        bool min_p_inside = s->params.min_p > 0 && exp(-reach) < s->params.min_p;
        if (all || reach > 1e6 ||
            (s->params.top_p < 1 ? mass >= s->params.top_p * total : min_p_inside)) {
            qsort(s->cand, (size_t)m, sizeof *s->cand, compare_candidates);
            if (s->params.top_p < 1) /* cut here: probabilities are over the whole vocabulary */
                return cut_mass(s->cand, m, s->params.top_p * total);
            return m;
        }
    }
}

/* ---- truncation and draw ---- */

static int cut_min_p(const candidate *c, int n, double min_p)
{
    int kept = 1;
    while (kept < n && exp((double)c[kept].logit - c[0].logit) >= min_p)
        kept++;
    return kept;
}

static int32_t draw(const candidate *c, int n, double temperature, double u)
{
    double total = 0, sum = 0;
    for (int i = 0; i < n; i++)
        total += exp(((double)c[i].logit - c[0].logit) / temperature);
    for (int i = 0; i < n; i++) {
        sum += exp(((double)c[i].logit - c[0].logit) / temperature);
        if (u * total < sum)
            return c[i].id;
    }
    return c[n - 1].id;
}

int32_t ea_sampler_draw(ea_sampler *s, const float *logits, const int32_t *history, int n_history,
                        int pos, const int32_t *banned, int n_banned)
{
    const ea_sampling *p = &s->params;
    const float *l = adjusted(s, logits, history, n_history);
    if (p->temperature <= 0)
        return argmax(l, s->n_vocab, banned, n_banned);
    bool top_k = s->n_cand_max < s->n_vocab;
    int n = top_k ? select_top(l, s->n_vocab, s->n_cand_max, banned, n_banned, s->cand)
                  : select_nucleus(s, l, banned, n_banned);
    if (n == 0)
        return argmax(l, s->n_vocab, banned, n_banned);
    if (top_k && p->top_p < 1)
        n = cut_mass(s->cand, n, p->top_p * mass_of(s->cand, n));
    if (p->min_p > 0)
        n = cut_min_p(s->cand, n, p->min_p);
    return draw(s->cand, n, p->temperature, ea_random_uniform(p->seed, (uint64_t)pos));
}

/* ---- probabilities and random numbers ---- */

/* log of the sum of e^logit; *max is the largest logit. */
static double log_sum_exp(const float *logits, int n)
{
    double max = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++)
        if (logits[i] > max)
            max = logits[i];
    if (max == -INFINITY)
        return 0;
    for (int i = 0; i < n; i++)
        if (logits[i] > -INFINITY)
            sum += exp(logits[i] - max);
    return max + log(sum);
}

float ea_logprob(const float *logits, int n_vocab, int32_t token)
{
    return (float)(logits[token] - log_sum_exp(logits, n_vocab));
}

int ea_top_logprobs(const float *logits, int n_vocab, int n, ea_token_prob *out)
{
    candidate best[EA_MAX_TOP_LOGPROBS];
    if (n <= 0)
        return 0;
    int m = select_top(logits, n_vocab, EA_MIN(n, EA_MAX_TOP_LOGPROBS), NULL, 0, best);
    double lse = log_sum_exp(logits, n_vocab);
    for (int i = 0; i < m; i++)
        out[i] = (ea_token_prob){best[i].id, (float)(best[i].logit - lse)};
    return m;
}

/* The output function of SplitMix64 (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

double ea_random_uniform(uint64_t seed, uint64_t counter)
{
    /* The seed is mixed first, so that neighbouring seeds are not shifted copies of one stream. */
    uint64_t bits = mix(mix(seed + 0x9e3779b97f4a7c15u) + 0x9e3779b97f4a7c15u * (counter + 1));
    return (double)(bits >> 11) * 0x1p-53;
}
