/* fake.h: a stand-in for the library behind include/edgeagent.h, so that the server can be tested
 * alone, quickly and with every kind of trouble. The prompt says what the "model" does:
 *
 *   @words=N    N words " w0 w1 ..." (default 5)     @say=TEXT   that text, to the line's end
 *   @delay=MS   time of a token (default 0)          @prefill=MS time before the first token
 *   @fail=N     an engine error after N tokens       @params     the request as the engine sees it
 *   @raw        messages, tools, template variables as they reached the chat template
 *   @stall=MS   the engine thread makes no progress for that long
 *
 * Tokens: 0..255 bytes, 256.. words, then BOS and EOS. */
#ifndef EA_TESTS_HTTP_FAKE_H
#define EA_TESTS_HTTP_FAKE_H

#include "base/buf.h"
#include "base/error.h"

enum { FAKE_BOS = 1280, FAKE_EOS, FAKE_N_VOCAB };

ea_engine *fake_engine_create(const ea_engine_params *params);

#endif
