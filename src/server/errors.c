/* errors.c: failures as clients see them: an HTTP status and OpenAI's error object,
 * {"error":{"message","type","param","code"}}. Clients branch on status and code, people read the
 * message, so a message names the field and the value at fault. The first failure of a request is
 * the one that is told: later ones are its consequences. Pure. */
#include "server/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *type_of(int http)
{
    switch (http) {
    case 401: return "authentication_error";
    case 429: return "rate_limit_error";
    case 503: return "unavailable_error";
    default: return http >= 500 ? "server_error" : "invalid_request_error";
    }
}

ea_status ea_server_refuse(ea_http_error *e, int http, const char *param, const char *code,
                           const char *fmt, ...)
{
    if (e->http != 0)
        return EA_EINVAL;
    ea_error text = {0};
    va_list ap;
    va_start(ap, fmt);
    char line[EA_ERROR_TEXT];
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    ea_fail(&text, EA_EINVAL, "%s", line); /* one line, no control characters */
    memcpy(e->text, text.text, sizeof e->text);
    e->http = http;
    e->type = type_of(http);
    e->code = code;
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    return EA_EINVAL;
}

ea_status ea_server_refuse_status(ea_http_error *e, ea_status status, const char *text)
{
    const char *say = text && *text ? text : ea_status_name(status);
    switch (status) {
    /* The code that agent frameworks look for in order to shorten their history. */
    case EA_ETOOLONG: return ea_server_refuse(e, 400, NULL, "context_length_exceeded", "%s", say);
    case EA_EBUSY:
        ea_server_refuse(e, 429, NULL, "rate_limit_exceeded", "%s", say);
        e->retry_after_s = 1; /* places are freed by the second, not by the minute */
        return EA_EINVAL;
    case EA_EINVAL:
    /* The text side refuses messages with this one: they are the client's. */
    case EA_EFORMAT: return ea_server_refuse(e, 400, NULL, NULL, "%s", say);
    case EA_EUNSUPPORTED: return ea_server_refuse(e, 400, NULL, "unsupported", "%s", say);
    case EA_ENOTFOUND: return ea_server_refuse(e, 404, NULL, "not_found", "%s", say);
    case EA_ECLOSED:
    case EA_ECANCELLED: return ea_server_refuse(e, 503, NULL, "shutting_down", "%s", say);
    case EA_ENOMEM: return ea_server_refuse(e, 503, NULL, "out_of_memory", "%s", say);
    default: return ea_server_refuse(e, 500, NULL, NULL, "%s", say);
    }
}

void ea_server_error_json(ea_buf *out, const ea_http_error *e)
{
    ea_buf_puts(out, "{\"error\":{\"message\":");
    ea_buf_json_string(out, e->text, strlen(e->text));
    ea_buf_printf(out, ",\"type\":\"%s\",\"param\":", e->type ? e->type : "server_error");
    if (e->param[0])
        ea_buf_json_string(out, e->param, strlen(e->param));
    else
        ea_buf_puts(out, "null");
    ea_buf_puts(out, ",\"code\":");
    if (e->code)
        ea_buf_json_string(out, e->code, strlen(e->code));
    else
        ea_buf_puts(out, "null");
    if (e->n_ctx)
        ea_buf_printf(out, ",\"n_prompt_tokens\":%d,\"n_ctx\":%d", e->n_prompt, e->n_ctx);
    ea_buf_puts(out, "}}");
}
