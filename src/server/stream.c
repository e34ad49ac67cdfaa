/* stream.c: server-sent events (the "text/event-stream" of the HTML standard, section 9.2), one
 * "data:" line an event. libmicrohttpd asks for bytes on the connection's thread; when there are
 * none the connection is suspended, and the inbox resumes it at the next event.
 *
 * Invariant: call->out holds whole events from the engine's whole characters; what lies before
 * out_at was sent. Once `ended` is set nothing is added. */
#include "server/internal.h"

#include <string.h>

void ea_sse_chunk_begin(ea_call *call)
{
    ea_buf_puts(&call->out, "data: ");
}

void ea_sse_chunk_end(ea_call *call)
{
    ea_buf_puts(&call->out, "\n\n");
}

/* The status line is long gone: the error travels as an event, and no [DONE] follows it. */
static void add_error_event(ea_call *call)
{
    ea_sse_chunk_begin(call);
    ea_server_error_json(&call->out, &call->error);
    ea_sse_chunk_end(call);
    call->ended = true;
}

/* Close the stream when its last choice is done or something failed. */
static void after_feed(ea_call *call)
{
    if (call->failed) {
        add_error_event(call);
    } else if (call->n_done == call->n_choices) {
        if (call->gen.include_usage) { /* a chunk of its own, without choices */
            ea_sse_chunk_begin(call);
            ea_server_put_head(call, &call->out, call->endpoint->stream_object);
            ea_buf_puts(&call->out, "\"choices\":[],\"usage\":");
            ea_server_put_usage(call, &call->out);
            ea_buf_puts(&call->out, ",\"timings\":");
            ea_server_put_timings(call, &call->out);
            ea_buf_puts(&call->out, "}\n\n");
        }
        ea_buf_puts(&call->out, "data: [DONE]\n\n");
        call->ended = true;
    }
}

/* Fill call->out from the inbox. False: nothing to send now, the connection is suspended. */
static bool refill(ea_call *call)
{
    ea_gone gone = EA_GONE_NOT;
    ea_buf *records = &call->body; /* free since the request was parsed: its memory serves again */
    switch (ea_inbox_take(call->inbox, records, &gone)) {
    case EA_INBOX_ASLEEP: return false;
    case EA_INBOX_KEEPALIVE: ea_buf_puts(&call->out, ": keepalive\n\n"); return true;
    case EA_INBOX_GONE:
        if (gone == EA_GONE_CLIENT) {
            call->out.failed = true; /* nobody listens: end with an error */
            return true;
        }
        ea_server_refuse_status(&call->error, EA_ECLOSED, "the server is shutting down");
        call->failed = true;
        break;
    case EA_INBOX_RECORDS:
        ea_generate_feed(call, records);
        records->failed = false;
        ea_buf_clear(records);
        break;
    }
    after_feed(call);
    return true;
}

/* libmicrohttpd's reader. 0 is only allowed with the connection suspended: it would spin. */
static ssize_t read_stream(void *cls, uint64_t pos, char *to, size_t max)
{
    (void)pos;
    ea_call *call = cls;
    for (;;) {
        if (call->out.failed)
            return MHD_CONTENT_READER_END_WITH_ERROR;
        size_t left = call->out.n - call->out_at;
        if (left > 0) {
            size_t n = EA_MIN(left, max);
            memcpy(to, call->out.data + call->out_at, n);
            call->out_at += n;
            if (call->out_at == call->out.n) {
                ea_buf_clear(&call->out);
                call->out_at = 0;
            }
            return (ssize_t)n;
        }
        if (call->ended)
            return MHD_CONTENT_READER_END_OF_STREAM;
        if (!refill(call))
            return 0;
    }
}

enum MHD_Result ea_sse_start(ea_call *call)
{
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, read_stream, call, NULL);
    if (!response)
        return MHD_NO;
    ea_server_common_headers(response);
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, "text/event-stream");
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    MHD_add_response_header(response, "X-Accel-Buffering", "no"); /* proxies: pass it on at once */
    call->endpoint->begin(call);
    call->phase = EA_PHASE_ANSWERED;
    call->http = MHD_HTTP_OK;
    enum MHD_Result result = MHD_queue_response(call->conn, MHD_HTTP_OK, response);
    MHD_destroy_response(response);
    return result;
}
