/* pretok.c: see pretok.h. The patterns follow the published tokenizer.json files of the models; a
 * pre-tokenizer of several patterns applies each to the pieces that the one before left, and text
 * between two matches is a piece too.
 *
 * Two rules keep a match linear: repeats that never need to give a character back are possessive,
 * and white space is matched by one class. So the limits of the regular-expression library are
 * lifted; when the compiled matcher runs out of its own stack, the interpreter does the same match
 * on the heap, and when that is out of memory too, the call fails. Text is never cut elsewhere than
 * the pattern says. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pretok.h"

#include <pcre2.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

/* White_Space of Unicode. \s of PCRE2 also has U+180E, which it lost in Unicode 6.3. */
#define WS                                                                                      \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}" \
    "\\x{205f}\\x{3000}"
/* White space but CR and LF. */
#define BLANK                                                                               \
    "\\x{9}\\x{b}\\x{c}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}" \
    "\\x{202f}\\x{205f}\\x{3000}"

/* A run of white space up to its last but one character when a word follows, else all of it. */
#define SPACES "[" WS "]+(?![^" WS "])|[" WS "]++"

#define GPT2 "'(?:s|t|re|ve|m|ll|d)| ?\\p{L}++| ?\\p{N}++| ?[^" WS "\\p{L}\\p{N}]++|" SPACES
/* As in Llama 3; the number rule is put in between. The fifth rule is \s*[\r\n]+ without its
 * backtracking: blanks and line ends up to the last line end of the run. */
#define TIKTOKEN(number)                                                                         \
    "'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])|[^\\r\\n\\p{L}\\p{N}]?\\p{L}++|" number \
    "| ?[^" WS "\\p{L}\\p{N}]++[\\r\\n]*+|(?:[" BLANK "]*+[\\r\\n]++)++|" SPACES

#define PUNCT "\\p{P}\\$\\+<=>\\^~\\|"
#define CJK "[\\x{4e00}-\\x{9fa5}\\x{0800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]++"

enum { MAX_PATTERNS = 5 };

typedef struct rule {
    const char *names; /* of tokenizer.ggml.pre, separated by blanks */
    bool add_bos, ignore_merges;
    const char *patterns[MAX_PATTERNS];
} rule;

static const rule rules[] = {
    {"default",
     false,
     false,
     {"[" PUNCT "]++",
      "'(?:s|t|re|ve|m|ll|d)| ?\\p{L}++| ?\\p{N}++| ?[^" WS "\\p{L}\\p{N}]++|[" WS "]+(?![^" WS
      "])",
      "\\p{N}++", "[0-9][0-9][0-9]"}},
    {"gpt-2 gpt2 phi-2 mpt olmo jais jina-es jina-de jina-v2-es jina-v2-de gigachat",
     false,
     false,
     {GPT2}},
    {"smollm starcoder refact command-r codeshell exaone minerva-7b",
     false,
     false,
     {"\\p{N}", GPT2}},
    {"qwen2 deepseek-r1-qwen stablelm2 megrez hunyuan", false, false, {TIKTOKEN("\\p{N}")}},
    {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
     true,
     true,
     {TIKTOKEN("\\p{N}{1,3}+")}},
    {"dbrx smaug-bpe", false, false, {TIKTOKEN("\\p{N}{1,3}+")}},
    {"deepseek-coder",
     false,
     false,
     {"[\\r\\n]", "[" WS "]?\\p{L}++", "[" WS "]?\\p{P}++", CJK, "\\p{N}"}},
    {"falcon",
     false,
     false,
     {"[" PUNCT "`]++",
      "'(?:s|t|re|ve|m|ll|d)| ?\\p{L}++| ?\\p{N}++| ?[^" WS "\\p{L}\\p{N}]++|[" WS "]+(?![^" WS
      "])",
      "[0-9][0-9][0-9]"}},
};

struct ea_pretok {
    const rule *rule;
    pcre2_code *codes[MAX_PATTERNS];
    int n_codes;
};

/* True if the blank-separated list has the word. */
static bool list_has(const char *list, const char *word, size_t n)
{
    for (const char *p = list; *p;) {
        size_t len = strcspn(p, " ");
        if (len == n && memcmp(p, word, n) == 0)
            return true;
        p += len + (p[len] == ' ');
    }
    return false;
}

static ea_status unknown_name(const char *name, size_t n, ea_error *err)
{
    char known[400] = "";
    for (size_t i = 0; i < EA_ARRAY_LEN(rules); i++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i ? " " : "", rules[i].names);
    }
    return ea_fail(err, EA_EUNSUPPORTED,
                   "tokenizer.ggml.pre: unknown pre-tokenizer \"%.*s\" (known: %s)",
                   (int)EA_MIN(n, 40), name, known);
}

static ea_status compile(const char *pattern, pcre2_code **out, ea_error *err)
{
    int code;
    PCRE2_SIZE at;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
    if (!re)
        return ea_fail(err, code == PCRE2_ERROR_HEAP_FAILED ? EA_ENOMEM : EA_EINTERNAL,
                       "pre-tokenizer pattern: error %d at %zu", code, (size_t)at);
    /* Without a compiled matcher (no executable memory here, say) the interpreter is used. */
    (void)pcre2_jit_compile(re, PCRE2_JIT_COMPLETE);
    *out = re;
    return EA_OK;
}

ea_status ea_pretok_create(const char *name, size_t n, ea_pretok **out, ea_error *err)
{
    const rule *found = NULL;
    for (size_t i = 0; i < EA_ARRAY_LEN(rules) && !found; i++)
        if (n && list_has(rules[i].names, name, n))
            found = &rules[i];
    if (!found)
        return unknown_name(name, n, err);
    ea_pretok *p = ea_calloc(1, sizeof *p);
    if (!p)
        return ea_fail(err, EA_ENOMEM, "out of memory");
    p->rule = found;
    for (; p->n_codes < MAX_PATTERNS && found->patterns[p->n_codes]; p->n_codes++) {
        ea_status status = compile(found->patterns[p->n_codes], &p->codes[p->n_codes], err);
        if (status != EA_OK) {
            ea_pretok_destroy(p);
            return status;
        }
    }
    *out = p;
    return EA_OK;
}

void ea_pretok_destroy(ea_pretok *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->n_codes; i++)
        pcre2_code_free(p->codes[i]);
    ea_free(p);
}

bool ea_pretok_add_bos(const ea_pretok *p)
{
    return p->rule->add_bos;
}

bool ea_pretok_ignore_merges(const ea_pretok *p)
{
    return p->rule->ignore_merges;
}

void ea_words_done(ea_words *w)
{
    ea_free(w->ends);
    *w = (ea_words){NULL, 0, 0};
}

static ea_status push_end(ea_words *w, size_t end, ea_error *err)
{
    void *grown = w->ends;
    ea_status status = ea_grow(&grown, &w->cap, w->n + 1, sizeof *w->ends, err);
    w->ends = grown;
    if (status == EA_OK)
        w->ends[w->n++] = end;
    return status;
}

/* Per-call state of the matcher; nothing of it is shared between threads. */
typedef struct matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
} matcher;

static void matcher_done(matcher *m)
{
    pcre2_jit_stack_free(m->stack);
    pcre2_match_context_free(m->context);
    pcre2_match_data_free(m->data);
}

static ea_status matcher_init(matcher *m, ea_error *err)
{
    *m = (matcher){pcre2_match_data_create(1, NULL), pcre2_match_context_create(NULL), NULL};
    if (!m->data || !m->context) {
        matcher_done(m);
        return ea_fail(err, EA_ENOMEM, "out of memory");
    }
    /* Our patterns are linear, so a limit could only break text that is merely long. */
    pcre2_set_match_limit(m->context, UINT32_MAX);
    pcre2_set_heap_limit(m->context, UINT32_MAX);
    pcre2_set_depth_limit(m->context, UINT32_MAX);
    /* NULL (no executable memory) is fine: the matcher then has 32 KiB of its own. */
    m->stack = pcre2_jit_stack_create(32 * 1024, 1024 * 1024, NULL);
    if (m->stack)
        pcre2_jit_stack_assign(m->context, NULL, m->stack);
    return EA_OK;
}

/* One piece of valid UTF-8, s[0, n): append its words, offsets counted from `base`. */
static ea_status split_piece(const pcre2_code *re, matcher *m, const char *s, size_t n, size_t base,
                             ea_words *out, ea_error *err)
{
    size_t at = 0, done = 0; /* search position, end of the last word */
    while (at < n) {
        int rc = pcre2_match(re, (PCRE2_SPTR)s, n, at, PCRE2_NO_UTF_CHECK, m->data, m->context);
        if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
            rc = pcre2_match(re, (PCRE2_SPTR)s, n, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, m->data,
                             m->context);
        if (rc == PCRE2_ERROR_NOMATCH)
            break;
        if (rc < 0)
            return ea_fail(err, rc == PCRE2_ERROR_NOMEMORY ? EA_ENOMEM : EA_EINTERNAL,
                           "pre-tokenizer: matching failed with %d after %zu bytes", rc, at);
        const PCRE2_SIZE *pair = pcre2_get_ovector_pointer(m->data);
        EA_ASSERT(pair[1] > pair[0]); /* no pattern matches the empty text */
        if (pair[0] > done)
            EA_TRY(push_end(out, base + pair[0], err));
        EA_TRY(push_end(out, base + pair[1], err));
        at = done = pair[1];
    }
    if (done < n)
        EA_TRY(push_end(out, base + n, err));
    return EA_OK;
}

/* A stretch of valid UTF-8 at offset `base` of the text: all patterns in turn. */
static ea_status split_valid(const ea_pretok *p, matcher *m, const char *s, size_t n, size_t base,
                             ea_words *out, ea_error *err)
{
    if (p->n_codes == 1)
        return split_piece(p->codes[0], m, s, n, base, out, err);
    ea_words pieces = {NULL, 0, 0}, next = {NULL, 0, 0};
    ea_status status = push_end(&pieces, n, err);
    for (int i = 0; status == EA_OK && i < p->n_codes; i++) {
        bool last = i + 1 == p->n_codes;
        size_t from = 0;
        next.n = 0;
        for (size_t k = 0; status == EA_OK && k < pieces.n; from = pieces.ends[k++])
            status = split_piece(p->codes[i], m, s + from, pieces.ends[k] - from,
                                 last ? base + from : from, last ? out : &next, err);
        ea_words swap = pieces;
        pieces = next;
        next = swap;
    }
    ea_words_done(&pieces);
    ea_words_done(&next);
    return status;
}

ea_status ea_pretok_split(const ea_pretok *p, const char *s, size_t n, ea_words *out, ea_error *err)
{
    matcher m;
    EA_TRY(matcher_init(&m, err));
    ea_status status = EA_OK;
    for (size_t i = 0; status == EA_OK && i < n;) {
        size_t from = i, len;
        while (i < n && (len = (uint8_t)s[i] < 0x80 ? 1 : ea_utf8_valid_len(s + i, n - i)) != 0)
            i += len;
        if (i > from)
            status = split_valid(p, &m, s + from, i - from, from, out, err);
        from = i;
        while (i < n && ea_utf8_valid_len(s + i, n - i) == 0)
            i++;
        if (status == EA_OK && i > from)
            status = push_end(out, i, err);
    }
    matcher_done(&m);
    return status;
}
