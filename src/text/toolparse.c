/* toolparse.c: a model's answer, cut into reasoning, content and tool calls while it arrives.
 *
 * Formats of a call:
 *   tags    <tool_call>{"name": .., "arguments": {..}}</tool_call>, or a list of such objects in
 *           one pair of tags (Hermes, Qwen, SmolLM2); the closing tag may be missing
 *   bare    the whole answer is one or more {"name": .., "parameters": {..}} (Llama 3)
 *   fenced  a block ``` or ```json whose JSON is such an object or a list of them; not when strict
 * In the last two the name must be one of the request's tools and nothing else may be in the
 * object, since JSON is an answer too. Where the JSON ends is decided by a scanner that knows
 * strings, so arguments may contain any of the marks above.
 *
 * Invariant: what happens depends on the text so far, never on how it was cut into pieces: each
 * decision waits until the bytes that it needs are there (`wait`), or the answer has ended. White
 * space is held back too: it is dropped before a call and after reasoning.
 *
 * One thread at a time. Errors of memory turn the rest of the answer into silence, never a crash.
 */
#include <string.h>

#include "base/mem.h"
#include "text/chat.h"
#include "text/jscan.h"

typedef enum state {
    START, /* nothing but white space yet: may open with thinking */
    REASONING,
    CONTENT,
    CANDIDATE,  /* buf starts with what may be a call */
    AFTER_CALL, /* white space and the closing tag may follow */
} state;

typedef enum candidate { TAGGED, BARE, FENCED } candidate;

typedef enum verdict { GO_ON, WAIT } verdict;

struct ea_chat_parser {
    ea_buf tools; /* names of the request's tools, each NUL-terminated */
    bool has_tools, strict;
    ea_chat_style style;

    state state;
    candidate kind;
    bool fresh;   /* no content and no call yet: a bare call may start */
    bool in_code; /* inside a fenced block that is text */
    bool trim;    /* drop white space until text comes: after reasoning, after a call */
    int n_calls;

    ea_buf buf;   /* received, not decided */
    size_t at;    /* start of the undecided part in buf */
    ea_buf space; /* white space held back before more text of the same kind */
    /* CANDIDATE; offsets from `at` */
    size_t json, scanned;
    ea_jscan scan;
    bool json_done; /* the value ends at `scanned` */

    ea_chat_delta_fn fn; /* during feed and finish */
    void *user;
};

static const char think_open[] = "<think>", think_close[] = "</think>";
static const char call_open[] = "<tool_call>", call_close[] = "</tool_call>", fence[] = "```";

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* ---- output ---- */

static void send_text(ea_chat_parser *p, ea_chat_delta_kind kind, const char *s, size_t n)
{
    if (n == 0)
        return;
    ea_chat_delta delta = {.kind = kind, .text = s, .n_bytes = n};
    p->fn(p->user, &delta);
}

/* Text of one kind, its trailing white space held back. */
static void put_text(ea_chat_parser *p, ea_chat_delta_kind kind, const char *s, size_t n)
{
    while (p->trim && n && is_space(*s)) {
        s++;
        n--;
    }
    if (n == 0)
        return;
    p->trim = false;
    /* Without tools no call can follow content that would make its last blanks noise: a reader
     * then waits for no blank. */
    bool hold = p->has_tools || kind == EA_CHAT_REASONING;
    size_t solid = n;
    while (hold && solid && is_space(s[solid - 1]))
        solid--;
    if (solid) {
        send_text(p, kind, p->space.data, p->space.n);
        ea_buf_clear(&p->space);
        send_text(p, kind, s, solid);
        if (kind == EA_CHAT_CONTENT)
            p->fresh = false;
    }
    ea_buf_add(&p->space, s + solid, n - solid);
}

static void put_content(ea_chat_parser *p, size_t n)
{
    put_text(p, EA_CHAT_CONTENT, p->buf.data + p->at, n);
    p->at += n;
}

static void drop_space(ea_chat_parser *p)
{
    ea_buf_clear(&p->space);
    p->trim = true;
}

/* ---- calls ---- */

static bool is_tool(const ea_chat_parser *p, const char *name)
{
    for (size_t i = 0; i < p->tools.n; i += strlen(p->tools.data + i) + 1)
        if (strcmp(p->tools.data + i, name) == 0)
            return true;
    return false;
}

/* The arguments' JSON text: an object as written, or what a string of one contains (some models
 * write that). False if it is neither. */
static bool take_arguments(ea_str value, ea_buf *out)
{
    if (ea_json_is_object(value)) {
        ea_buf_add(out, value.s, value.n);
        return true;
    }
    if (!ea_json_is_string(value))
        return false;
    ea_json_unescape(value, out);
    size_t skip = 0;
    while (skip < out->n && is_space(out->data[skip]))
        skip++;
    return !out->failed && skip < out->n && out->data[skip] == '{' &&
           ea_json_valid(out->data, out->n);
}

/* Name and arguments of one object; false if it is no call of this kind. */
static bool read_call(const ea_chat_parser *p, ea_str object, ea_buf *name, ea_buf *arguments)
{
    ea_str name_value, value, key, ignored;
    if (!ea_json_is_object(object) || !ea_json_member(object, "name", &name_value) ||
        !ea_json_is_string(name_value))
        return false;
    ea_json_unescape(name_value, name);
    if (name->failed || name->n == 0 || strlen(name->data) != name->n)
        return false;
    bool given =
        ea_json_member(object, "arguments", &value) || ea_json_member(object, "parameters", &value);
    bool none = !given || (value.n == 4 && memcmp(value.s, "null", 4) == 0);
    if (p->kind != TAGGED) {
        int n_members = 0;
        ea_jwalk walk;
        for (bool more = ea_jwalk_begin(&walk, object); more && n_members < 3; n_members += more)
            more = ea_jwalk_next(&walk, &key, &ignored);
        if (!given || n_members != 2 || !is_tool(p, name->data))
            return false;
    }
    if (none && p->kind == TAGGED)
        ea_buf_puts(arguments, "{}");
    else if (!take_arguments(value, arguments))
        return false;
    return !arguments->failed;
}

/* All calls of one JSON value (an object, or a list of them). With `send` they go out, else they
 * are only looked at. False if anything in it is no call. */
static bool take_calls(ea_chat_parser *p, ea_str json, bool send)
{
    ea_jwalk walk;
    ea_str key, item = json;
    bool list = !ea_json_is_object(json), good = true;
    if (list && !ea_jwalk_begin(&walk, json))
        return false;
    int n = 0;
    while (good && (list ? ea_jwalk_next(&walk, &key, &item) : n == 0)) {
        ea_buf name = EA_BUF_INIT, arguments = EA_BUF_INIT;
        good = read_call(p, item, &name, &arguments);
        if (good && send) {
            ea_chat_delta delta = {.kind = EA_CHAT_TOOL_CALL,
                                   .name = name.data,
                                   .arguments = arguments.data,
                                   .index = p->n_calls++};
            p->fn(p->user, &delta);
        }
        n++;
        ea_buf_done(&name);
        ea_buf_done(&arguments);
    }
    /* An empty list in tags says "no call" (SmolLM2); elsewhere it is just JSON. */
    return good && (n > 0 || p->kind == TAGGED);
}

static ea_str json_text(const ea_chat_parser *p)
{
    return (ea_str){p->buf.data + p->at + p->json, p->scanned - p->json};
}

static verdict call_taken(ea_chat_parser *p, size_t n)
{
    /* The white space before a call separates the text around it; at the end it is dropped. */
    if (p->fresh)
        ea_buf_clear(&p->space);
    p->trim = true;
    take_calls(p, json_text(p), true);
    p->at += n;
    p->fresh = false;
    p->state = AFTER_CALL;
    return GO_ON;
}

/* What looked like a call is text: its opening mark goes out, the rest is looked at again. */
static verdict reject(ea_chat_parser *p)
{
    p->state = CONTENT;
    p->fresh = false;
    if (p->kind == TAGGED)
        put_content(p, sizeof call_open - 1);
    if (p->kind == FENCED) {
        p->in_code = true;
        put_content(p, sizeof fence - 1);
    }
    return GO_ON;
}

/* ---- states ---- */

/* More white space than this inside a candidate is no call: it bounds what is looked at again with
 * each new byte. */
enum { MAX_SPACE = 256 };

/* 1: s starts with word; 0: it may, when more comes; -1: it does not. */
static int starts_with(const char *s, size_t n, const char *word)
{
    size_t len = strlen(word);
    if (memcmp(s, word, EA_MIN(n, len)) != 0)
        return -1;
    return n >= len;
}

static size_t count_space(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && is_space(s[i]))
        i++;
    return i;
}

static verdict step_start(ea_chat_parser *p, const char *s, size_t n, bool last)
{
    size_t skip = count_space(s, n);
    if (skip) {
        put_content(p, skip);
        return GO_ON;
    }
    int match = starts_with(s, n, think_open);
    if (match == 0 && !last)
        return WAIT;
    if (match == 1) {
        p->at += sizeof think_open - 1;
        p->state = REASONING;
        drop_space(p);
    } else {
        p->state = CONTENT;
    }
    return GO_ON;
}

static verdict step_reasoning(ea_chat_parser *p, const char *s, size_t n, bool last)
{
    size_t i = 0;
    int match = -1;
    for (; i < n; i++) {
        const char *hit = memchr(s + i, '<', n - i);
        i = hit ? (size_t)(hit - s) : n;
        if (hit && (match = starts_with(hit, n - i, think_close)) >= 0)
            break;
    }
    i = EA_MIN(i, n);
    if (match == 0 && last)
        i = n;
    put_text(p, EA_CHAT_REASONING, s, i);
    p->at += i;
    if (match != 1)
        return WAIT;
    p->at += sizeof think_close - 1;
    p->state = CONTENT;
    drop_space(p);
    return GO_ON;
}

static verdict begin_candidate(ea_chat_parser *p, candidate kind, size_t json)
{
    p->state = CANDIDATE;
    p->kind = kind;
    p->json = p->scanned = json;
    p->scan = (ea_jscan){0};
    p->json_done = false;
    return GO_ON;
}

/* At an opening fence: its label, then JSON? */
static verdict step_fence(ea_chat_parser *p, const char *s, size_t n, bool last)
{
    enum { LABEL_BYTES = 12 };
    static const char *const labels[] = {"", "json", "JSON", "tool_call"};
    size_t label = sizeof fence - 1, end = label;
    while (end < n && end - label <= LABEL_BYTES && s[end] != '\n')
        end++;
    if (end == n && end - label <= LABEL_BYTES && !last)
        return WAIT;
    size_t json = end < n ? end + count_space(s + end, n - end) : n;
    if (end < n && json == n && !last && json - end <= MAX_SPACE)
        return WAIT;
    size_t len = end - label;
    while (len && is_space(s[label + len - 1]))
        len--;
    bool known = false;
    for (size_t i = 0; i < EA_ARRAY_LEN(labels); i++)
        known = known || (strlen(labels[i]) == len && memcmp(labels[i], s + label, len) == 0);
    if (known && json < n && json - end <= MAX_SPACE && (s[json] == '{' || s[json] == '['))
        return begin_candidate(p, FENCED, json);
    p->in_code = true;
    put_content(p, sizeof fence - 1);
    return GO_ON;
}

/* At a '<' or '`' that may open something. */
static verdict step_mark(ea_chat_parser *p, const char *s, size_t n, bool last)
{
    bool tag = *s == '<';
    int match = starts_with(s, n, tag ? call_open : fence);
    if (match == 0 && !last)
        return WAIT;
    if (match == 1 && tag)
        return begin_candidate(p, TAGGED, sizeof call_open - 1);
    if (match == 1 && !p->in_code)
        return step_fence(p, s, n, last);
    if (match == 1)
        p->in_code = false;
    put_content(p, match == 1 ? sizeof fence - 1 : 1);
    return GO_ON;
}

static verdict step_content(ea_chat_parser *p, const char *s, size_t n, bool last)
{
    if (!p->has_tools) {
        put_content(p, n);
        return WAIT;
    }
    if (p->fresh && (!p->strict || p->style.bare_json)) {
        size_t skip = count_space(s, n);
        if (skip == n) {
            put_content(p, n);
            return WAIT;
        }
        if (s[skip] == '{' || s[skip] == '[')
            return begin_candidate(p, BARE, skip);
    }
    size_t i = 0;
    while (i < n && s[i] != '<' && (s[i] != '`' || p->strict))
        i++;
    put_content(p, i);
    return i < n ? step_mark(p, s + i, n - i, last) : WAIT;
}

/* After the JSON of a fenced block: the closing fence. */
static verdict close_fenced(ea_chat_parser *p, const char *s, size_t n, bool last)
{
    if (!take_calls(p, json_text(p), false))
        return reject(p);
    size_t end = p->scanned + count_space(s + p->scanned, n - p->scanned);
    int match = starts_with(s + end, n - end, fence);
    if (match == 0 && !last && end - p->scanned <= MAX_SPACE)
        return WAIT;
    if (match == -1 || end - p->scanned > MAX_SPACE)
        return reject(p);
    return call_taken(p, match == 1 ? end + sizeof fence - 1 : n);
}

/* After one bare object: only more of them, up to the end of the answer. */
static verdict close_bare(ea_chat_parser *p, const char *s, size_t n, bool last)
{
    if (!take_calls(p, json_text(p), false))
        return reject(p);
    size_t end = p->scanned;
    while (end < n && (is_space(s[end]) || s[end] == ';' || s[end] == ','))
        end++;
    if ((end < n && s[end] != '{') || end - p->scanned > MAX_SPACE)
        return reject(p);
    if (end < n) { /* the next one; `scanned` goes on, `json` marks its start */
        p->json = p->scanned = end;
        p->scan = (ea_jscan){0};
        p->json_done = false;
        return GO_ON;
    }
    if (!last)
        return WAIT;
    /* The end: all of them, one after the other. */
    drop_space(p);
    for (size_t at = 0; at < n;) {
        while (at < n && s[at] != '{' && s[at] != '[')
            at++;
        ea_jscan scan = {0};
        size_t stop = at;
        while (stop < n && ea_jscan_feed(&scan, s[stop]) == EA_JSCAN_MORE)
            stop++;
        if (stop < n)
            take_calls(p, (ea_str){s + at, stop + 1 - at}, true);
        at = stop + 1;
    }
    p->at += n;
    p->state = AFTER_CALL;
    return GO_ON;
}

static verdict step_candidate(ea_chat_parser *p, const char *s, size_t n, bool last)
{
    ea_jscan_result result = EA_JSCAN_MORE;
    while (!p->json_done && p->scanned < n && result == EA_JSCAN_MORE) {
        result = ea_jscan_feed(&p->scan, s[p->scanned++]);
        p->json_done = result == EA_JSCAN_DONE;
    }
    if (result == EA_JSCAN_INVALID || (!p->json_done && last))
        return reject(p);
    if (!p->json_done)
        return WAIT;
    if (p->kind == TAGGED) {
        p->json += count_space(s + p->json, n - p->json);
        return take_calls(p, json_text(p), false) ? call_taken(p, p->scanned) : reject(p);
    }
    return p->kind == FENCED ? close_fenced(p, s, n, last) : close_bare(p, s, n, last);
}

static verdict step_after_call(ea_chat_parser *p, const char *s, size_t n, bool last)
{
    size_t skip = count_space(s, n);
    if (skip) {
        p->at += skip;
        return GO_ON;
    }
    int match = p->kind == TAGGED ? starts_with(s, n, call_close) : -1;
    if (match == 0 && !last)
        return WAIT;
    if (match == 1)
        p->at += sizeof call_close - 1;
    p->state = CONTENT;
    return GO_ON;
}

static void run(ea_chat_parser *p, bool last)
{
    verdict v = GO_ON;
    while (v == GO_ON && p->at < p->buf.n && !p->buf.failed) {
        const char *s = p->buf.data + p->at;
        size_t n = p->buf.n - p->at;
        switch (p->state) {
        case START: v = step_start(p, s, n, last); break;
        case REASONING: v = step_reasoning(p, s, n, last); break;
        case CONTENT: v = step_content(p, s, n, last); break;
        case CANDIDATE: v = step_candidate(p, s, n, last); break;
        case AFTER_CALL: v = step_after_call(p, s, n, last); break;
        }
    }
    ea_buf_drop_front(&p->buf, p->at);
    p->at = 0;
}

/* ---- the interface ---- */

static ea_status read_tools(ea_chat_parser *p, const char *tools_json, ea_error *err)
{
    ea_str tools = {tools_json, strlen(tools_json)}, key, tool, function, name;
    size_t skip = count_space(tools.s, tools.n);
    if (tools.n - skip >= 4 && memcmp(tools.s + skip, "null", 4) == 0)
        return EA_OK;
    ea_jwalk walk;
    if (!ea_json_valid(tools.s, tools.n) || !ea_jwalk_begin(&walk, tools) || walk.is_object)
        return ea_fail(err, EA_EFORMAT, "tools: not a JSON array");
    for (int i = 0; ea_jwalk_next(&walk, &key, &tool); i++) {
        if (!ea_json_member(tool, "function", &function))
            function = tool;
        if (!ea_json_member(function, "name", &name) || !ea_json_is_string(name))
            return ea_fail(err, EA_EFORMAT, "tools[%d].function.name: not a string", i);
        ea_json_unescape(name, &p->tools);
        ea_buf_putc(&p->tools, '\0');
        p->has_tools = true;
    }
    return p->tools.failed ? ea_fail(err, EA_ENOMEM, "out of memory") : EA_OK;
}

ea_status ea_chat_parser_init(const ea_chat_style *style, const char *tools_json, bool strict_tools,
                              ea_chat_parser **out, ea_error *err)
{
    ea_chat_parser *p = ea_calloc(1, sizeof *p);
    if (!p)
        return ea_fail(err, EA_ENOMEM, "out of memory");
    p->style = *style;
    p->strict = strict_tools;
    p->fresh = true;
    p->state = style->opens_thinking ? REASONING : START;
    p->trim = style->opens_thinking;
    ea_status status = tools_json ? read_tools(p, tools_json, err) : EA_OK;
    if (status != EA_OK) {
        ea_chat_parser_destroy(p);
        return status;
    }
    *out = p;
    return EA_OK;
}

void ea_chat_parser_feed(ea_chat_parser *p, const char *text, size_t n_bytes, ea_chat_delta_fn fn,
                         void *user)
{
    if (n_bytes == 0)
        return;
    p->fn = fn;
    p->user = user;
    ea_buf_add(&p->buf, text, n_bytes);
    run(p, false);
}

int ea_chat_parser_finish(ea_chat_parser *p, ea_chat_delta_fn fn, void *user)
{
    p->fn = fn;
    p->user = user;
    run(p, true);
    /* Blanks at the end belong to a plain answer; after calls or thinking they are noise. */
    if (p->n_calls == 0 && p->state != REASONING && !p->space.failed)
        send_text(p, EA_CHAT_CONTENT, p->space.data, p->space.n);
    ea_buf_clear(&p->space);
    return p->n_calls;
}

void ea_chat_parser_destroy(ea_chat_parser *p)
{
    if (!p)
        return;
    ea_buf_done(&p->tools);
    ea_buf_done(&p->buf);
    ea_buf_done(&p->space);
    ea_free(p);
}
