/* fuzz_toolparse.c: answers of a model, whole and byte by byte: the same deltas, and no text lost.
 * The first byte chooses strictness, style and tools. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "fuzz.h"
#include "text/chat.h"

static void collect(void *user, const ea_chat_delta *delta)
{
    ea_buf *out = user; /* one for each kind */
    if (delta->kind == EA_CHAT_TOOL_CALL)
        ea_buf_printf(&out[2], "%d %s %s\n", delta->index, delta->name, delta->arguments);
    else
        ea_buf_add(&out[delta->kind], delta->text, delta->n_bytes);
}

static void parse(uint8_t how, const char *text, size_t n, size_t piece, ea_buf out[3])
{
    static const char tools[] = "[{\"function\":{\"name\":\"now\"}},{\"name\":\"get_weather\"}]";
    ea_chat_style style = {.bare_json = how & 1, .opens_thinking = how & 2};
    ea_chat_parser *p;
    if (ea_chat_parser_init(&style, how & 4 ? NULL : tools, how & 8, &p, NULL) != EA_OK)
        abort();
    for (size_t i = 0; i < n; i += piece)
        ea_chat_parser_feed(p, text + i, EA_MIN(piece, n - i), collect, out);
    ea_chat_parser_finish(p, collect, out);
    ea_chat_parser_destroy(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    const char *text = (const char *)data + 1;
    size_t n = size - 1;
    ea_buf whole[3] = {EA_BUF_INIT, EA_BUF_INIT, EA_BUF_INIT},
           bytes[3] = {EA_BUF_INIT, EA_BUF_INIT, EA_BUF_INIT};
    parse(data[0], text, n, n, whole);
    parse(data[0], text, n, 1, bytes);
    for (int i = 0; i < 3; i++) {
        if (whole[i].n != bytes[i].n ||
            (whole[i].n && memcmp(whole[i].data, bytes[i].data, whole[i].n) != 0))
            abort();
        ea_buf_done(&whole[i]);
        ea_buf_done(&bytes[i]);
    }
    return 0;
}
