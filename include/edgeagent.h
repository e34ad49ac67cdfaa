/* edgeagent.h: the public C interface of EdgeAgent. UNSTABLE until 1.0: names and layouts may
 * change between minor versions; EA_API_VERSION tells which one a program was compiled against.
 *
 * Objects and who owns them:
 *   ea_model    immutable weights, vocabulary and chat template; shared by any number of engines
 * and threads. Must outlive every engine, prompt and chat parser made from it. ea_engine   one
 * engine thread plus its workers, the KV pages and the queue. No process globals: several engines
 *               may live in one process.
 *   agents      one token timeline (a conversation) each; owned by the engine, named by the
 * caller's strings. ea_request  one generation. Reference held by the caller; the engine keeps its
 * own while it runs.
 *
 * Threads: every function may be called from any thread unless its comment says otherwise.
 * Callbacks run on the engine thread: they must return quickly and must not call back into the
 * engine, except ea_request_cancel.
 *
 * Errors: functions return EA_OK (0) or a negative ea_status and, where `err` is not NULL, fill it
 * with a code and one line of text. Output parameters are written only on success. Parameter
 * structs start with `size`, to be set to sizeof; ea_*_params_default fills everything.
 */
#ifndef EDGEAGENT_H
#define EDGEAGENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EA_API_VERSION 1
#define EA_VERSION "0.1.0"

#if defined(__GNUC__)
#define EA_API __attribute__((visibility("default")))
#define EA_MUST_CHECK __attribute__((warn_unused_result))
#define EA_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define EA_API
#define EA_MUST_CHECK
#define EA_PRINTF(fmt, args)
#endif

/* ---- status and errors
 * ------------------------------------------------------------------------------------------ */

typedef enum ea_status {
    EA_OK = 0,
    EA_EINVAL = -1,       /* an argument is out of its range */
    EA_ENOMEM = -2,       /* memory, or more than this machine has */
    EA_EIO = -3,          /* the operating system refused a read, a write, a thread, ... */
    EA_EFORMAT = -4,      /* a file or text is malformed */
    EA_EUNSUPPORTED = -5, /* well-formed, but not something this build can do */
    EA_ETOOLONG = -6,     /* prompt longer than the context */
    EA_EBUSY = -7,        /* the queue is full */
    EA_ECANCELLED = -8,
    EA_ECLOSED = -9, /* the engine is shutting down */
    EA_ENOTFOUND = -10,
    EA_EINTERNAL = -11, /* our bug */
} ea_status;

enum { EA_ERROR_TEXT = 480 };

/* One error. The first writer wins: later failures on the way out do not hide the cause. */
typedef struct ea_error {
    ea_status code;
    char text[EA_ERROR_TEXT]; /* one line, no newline at the end; "" while code is EA_OK */
} ea_error;

EA_API const char *ea_status_name(ea_status status);
EA_API const char *ea_version(void);

/* ---- log
 * --------------------------------------------------------------------------------------------------------
 */

typedef enum ea_log_level { EA_LOG_ERROR, EA_LOG_WARN, EA_LOG_INFO, EA_LOG_DEBUG } ea_log_level;

/* Where a model or an engine writes its messages: one line, no newline. NULL: nothing is written.
 * May be called from any thread. The library itself logs at most at debug level; progress goes to
 * the progress callbacks. */
typedef void (*ea_log_fn)(void *user, ea_log_level level, const char *line);

/* ---- model
 * ------------------------------------------------------------------------------------------------------
 */

typedef struct ea_model ea_model;

typedef struct ea_model_params {
    size_t size;
    int n_threads;   /* threads for packing the weights; 0 = as many as there are physical cores
                        allowed to us */
    bool vocab_only; /* load no weights: tokenize and render templates only */
    ea_log_fn log;
    void *log_user;
    /* Progress 0..1 from the loading thread; return false to stop (EA_ECANCELLED). May be NULL. */
    bool (*progress)(void *user, double fraction);
    void *progress_user;
} ea_model_params;

EA_API void ea_model_params_default(ea_model_params *params);

/* Load a GGUF file (v2, v3; the first file of a split set stands for all). */
EA_API ea_status ea_model_load(const char *path, const ea_model_params *params, ea_model **out,
                               ea_error *err) EA_MUST_CHECK;

/* A model of random weights with a real model's shapes, for benchmarks: SPEC is "<shape>:<type>",
 * shape one of the names that ea_model_synthetic_shapes lists or
 * "layers=..,embd=..,ff=..,heads=..,kv=..,vocab=..", type a GGUF type such as Q4_K. The same spec
 * and seed give the same weights. */
EA_API ea_status ea_model_synthetic(const char *spec, uint64_t seed, const ea_model_params *params,
                                    ea_model **out, ea_error *err) EA_MUST_CHECK;
EA_API const char *ea_model_synthetic_shapes(void);

EA_API void ea_model_destroy(ea_model *model); /* NULL is fine */

/* Block until the model's work in the background is done. On machines that are slow to hand out
 * huge pages, weights are loaded into small ones, which are joined afterwards: for the first minute
 * a model is a tenth slower. For benchmarks; nothing else needs to wait. */
EA_API void ea_model_settle(const ea_model *model);

typedef struct ea_model_info {
    const char *path;  /* as given */
    const char *arch;  /* general.architecture */
    const char *name;  /* general.name, or "" */
    const char *type;  /* as llama.cpp prints it, e.g. "qwen2 1.5B Q4_K - Medium" */
    uint64_t n_params; /* weights */
    uint64_t n_bytes;  /* size of the tensors as stored in the file */
    int n_vocab, n_embd, n_layer, n_head, n_head_kv, n_ctx_train;
    bool has_chat_template;
    int32_t bos, eos, eot; /* -1 where there is none */
    bool add_bos;
} ea_model_info;

/* Strings stay valid as long as the model. */
EA_API void ea_model_info_get(const ea_model *model, ea_model_info *out);

/* ---- tokens
 * -----------------------------------------------------------------------------------------------------
 */

enum {
    EA_TOKENIZE_SPECIAL = 1, /* spellings of control tokens become those tokens */
    EA_TOKENIZE_ADD_BOS = 2, /* put BOS in front where the model asks for it */
};

/* Text (n_bytes of any bytes; invalid UTF-8 is encoded byte by byte) to token ids. *out is
 * malloc'ed, freed by ea_free. */
EA_API ea_status ea_tokenize(const ea_model *model, const char *text, size_t n_bytes,
                             unsigned flags, int32_t **out, size_t *n_out,
                             ea_error *err) EA_MUST_CHECK;

/* Bytes of one token, written to buf (not terminated); returns their number, which may be larger
 * than size (then nothing past size is written). Control tokens give their spelling if `special`,
 * else nothing. */
EA_API size_t ea_token_bytes(const ea_model *model, int32_t token, bool special, char *buf,
                             size_t size);

/* True for tokens that end a generation (EOS, EOT and the like). */
EA_API bool ea_token_is_eog(const ea_model *model, int32_t token);

EA_API void ea_free(void *ptr); /* what this library handed out */

/* ---- chat
 * -------------------------------------------------------------------------------------------------------
 */

typedef struct ea_chat_params {
    size_t size;
    const char *messages_json;     /* JSON array of OpenAI messages, as the client sent it */
    const char *tools_json;        /* JSON array of OpenAI tools, or NULL */
    const char *template_kwargs;   /* JSON object of extra template variables, or NULL */
    const char *template_override; /* Jinja source instead of the model's own, or NULL */
    bool add_generation_prompt;
    bool strict_tools; /* only the template's own call format is a call (--tool-parse strict) */
} ea_chat_params;

EA_API void ea_chat_params_default(ea_chat_params *params);

/* Render messages with the model's chat template (its own Jinja, a small ChatML default where it
 * has none) and tokenize. Control-token spellings inside message contents stay plain text. *text
 * (may be NULL) and *tokens are freed by ea_free. EA_EFORMAT: messages malformed or refused by the
 * template, with its reason. */
EA_API ea_status ea_chat_render(const ea_model *model, const ea_chat_params *params, char **text,
                                int32_t **tokens, size_t *n_tokens, ea_error *err) EA_MUST_CHECK;

/* Incremental parser of a model's answer into content, reasoning and tool calls. Not thread-safe.
 */
typedef struct ea_chat_parser ea_chat_parser;

typedef enum ea_chat_delta_kind {
    EA_CHAT_CONTENT,   /* text for the reader */
    EA_CHAT_REASONING, /* text between the model's thinking tags */
    EA_CHAT_TOOL_CALL, /* one complete call: name and arguments (JSON text as the model wrote it) */
} ea_chat_delta_kind;

typedef struct ea_chat_delta {
    ea_chat_delta_kind kind;
    const char *text; /* content or reasoning, n_bytes; valid during the callback */
    size_t n_bytes;
    const char *name; /* tool call */
    const char *arguments;
    int index; /* tool call: 0, 1, ... */
} ea_chat_delta;

typedef void (*ea_chat_delta_fn)(void *user, const ea_chat_delta *delta);

/* tools_json and strict_tools of params are looked at; without tools nothing is taken for a call.
 */
EA_API ea_status ea_chat_parser_create(const ea_model *model, const ea_chat_params *params,
                                       ea_chat_parser **out, ea_error *err) EA_MUST_CHECK;
/* Text that may still become a call is held back until it is clear. */
EA_API void ea_chat_parser_feed(ea_chat_parser *parser, const char *text, size_t n_bytes,
                                ea_chat_delta_fn fn, void *user);
/* End of the answer: what was held back and is no call comes out as text. Returns the number of
 * calls in all. */
EA_API int ea_chat_parser_finish(ea_chat_parser *parser, ea_chat_delta_fn fn, void *user);
EA_API void ea_chat_parser_destroy(ea_chat_parser *parser);

/* ---- engine
 * -----------------------------------------------------------------------------------------------------
 */

typedef struct ea_engine ea_engine;

/* How keys and values are stored: 16, 8.5 or 4.5 bits a number. */
typedef enum ea_kv_type { EA_KV_F16, EA_KV_Q8_0, EA_KV_Q4_0 } ea_kv_type;

typedef struct ea_engine_params {
    size_t size;
    int n_threads; /* workers, engine thread included; 0 = physical cores allowed to us */
    int n_ctx; /* KV tokens in all (-c); 0 = min(trained context, 32768) * up to what memory allows
                */
    int n_parallel;    /* agents running at once (-np), 1..256; 0 = 4 */
    int n_ctx_agent;   /* longest single timeline (--ctx-agent); 0 = the smaller of n_ctx and the
                          trained length */
    int n_batch;       /* most rows of one step; 0 = 512 */
    int n_queue;       /* requests waiting beyond the running ones before EA_EBUSY; 0 = 1024 */
    double max_gap_ms; /* bound on the time between two tokens of a running agent; 0 = 400 */
    bool no_bind; /* false: where there is a worker for each core allowed to us, each is bound to
                     one; true: they go where the system puts them */
    ea_kv_type kv_type; /* EA_EUNSUPPORTED unless EA_KV_F16 or the heads' width is a multiple of 32
                         */
    ea_log_fn log;
    void *log_user;
} ea_engine_params;

EA_API void ea_engine_params_default(ea_engine_params *params);
EA_API ea_status ea_engine_create(const ea_model *model, const ea_engine_params *params,
                                  ea_engine **out, ea_error *err) EA_MUST_CHECK;

/* Cancels what runs (their callbacks get EA_EVENT_DONE with EA_FINISH_CANCELLED) and joins the
 * engine thread; returns within one step. NULL is fine. */
EA_API void ea_engine_destroy(ea_engine *engine);

/* ---- requests
 * ---------------------------------------------------------------------------------------------------
 */

typedef struct ea_request ea_request;

typedef struct ea_logit_bias {
    int32_t token;
    float bias; /* -INFINITY forbids the token */
} ea_logit_bias;

/* Sampler chain, in llama.cpp's order: logit bias, penalties, top-k, top-p, min-p, temperature,
 * draw. */
typedef struct ea_sampling {
    float temperature;    /* <= 0: greedy (default 0.8) */
    int top_k;            /* 0 = all (default 40) */
    float top_p;          /* 1 = off (default 0.95) */
    float min_p;          /* 0 = off (default 0.05) */
    float repeat_penalty; /* 1 = off */
    int repeat_last_n;    /* tokens looked at by the penalties; -1 = whole timeline (default 64) */
    float presence_penalty, frequency_penalty; /* 0 = off */
    uint64_t seed; /* with seed_set; else a random one, reported in the events */
    bool seed_set;
    const ea_logit_bias *logit_bias; /* copied */
    size_t n_logit_bias;
} ea_sampling;

typedef enum ea_finish {
    EA_FINISH_NONE = 0,
    EA_FINISH_STOP,   /* end token or stop string */
    EA_FINISH_LENGTH, /* max_tokens, or the timeline is full */
    EA_FINISH_CANCELLED,
    EA_FINISH_ERROR,
} ea_finish;

typedef enum ea_event_kind {
    EA_EVENT_STARTED, /* left the queue; n_cached is what the tree has now, it may still grow */
    EA_EVENT_PROMPT_LOGPROB, /* one prompt position, only with prompt_logprobs */
    EA_EVENT_TOKEN, /* one generated token; text may be empty (held back for UTF-8 or a stop string)
                     */
    EA_EVENT_DONE,  /* last event of every request */
} ea_event_kind;

typedef struct ea_token_prob {
    int32_t token;
    float logprob;
} ea_token_prob;

/* Times and counts of a request so far. */
typedef struct ea_usage {
    int n_prompt; /* prompt tokens */
    int n_cached; /* of them, not computed again */
    int n_generated;
    double queue_ms;    /* submit -> left the queue */
    double prompt_ms;   /* left the queue -> first token sampled */
    double generate_ms; /* first token -> last token */
    uint64_t seed;      /* the one used */
} ea_usage;

typedef struct ea_event {
    ea_event_kind kind;
    const char *text; /* TOKEN, DONE (rest that was held back): whole UTF-8 characters, n_bytes, not
                         terminated */
    size_t n_bytes;
    int32_t token;
    float logprob; /* of `token`, from the plain softmax of the model's logits; if n_top or
                      prompt_logprobs asked */
    const ea_token_prob *top; /* n_top most likely tokens, best first */
    int n_top;
    int pos;           /* position of `token` in the timeline */
    ea_finish finish;  /* DONE */
    const char *stop;  /* DONE by a stop string: that string, else NULL */
    ea_status status;  /* DONE with EA_FINISH_ERROR */
    const char *error; /* its text */
    ea_usage usage;
} ea_event;

/* Called on the engine thread, in order. Pointers in *event are valid during the call only.
 * Returning false cancels. */
typedef bool (*ea_event_fn)(void *user, const ea_event *event);

typedef struct ea_request_params {
    size_t size;
    const int32_t *tokens; /* the whole timeline so far, as prompt; copied. What the KV already has
                              is not computed */
    size_t n_tokens;       /* >= 1 */
    const char *agent;     /* name of the timeline, "" or NULL: anonymous */
    const char *role;      /* free text for displays, or NULL */
    int max_tokens;        /* -1 = until the timeline is full; 0 = compute the prompt only */
    ea_sampling sampling;
    bool ignore_eos; /* end tokens are never sampled */
    const char *const
        *stop; /* stop strings, copied; the text before the first of them is the answer */
    size_t n_stop;
    int n_top_logprobs;   /* 0..20; -1 = none */
    bool prompt_logprobs; /* an event for each prompt token but the first; computes the whole prompt
                           */
    ea_event_fn on_event;
    void *user;
} ea_request_params;

EA_API void ea_request_params_default(ea_request_params *params);

/* Queue a request. EA_ETOOLONG: prompt does not fit the timeline (the text names both lengths);
 * EA_EBUSY: queue full; EA_EINVAL names the field. *out (may be NULL: fire and forget) is a
 * reference, released by ea_request_unref. */
EA_API ea_status ea_request_submit(ea_engine *engine, const ea_request_params *params,
                                   ea_request **out, ea_error *err) EA_MUST_CHECK;
/* Ask for an early end; its rows are free within one step. EA_EVENT_DONE still comes. */
EA_API void ea_request_cancel(ea_request *request);
/* Block until EA_EVENT_DONE was delivered. Not from a callback. */
EA_API void ea_request_wait(ea_request *request);
EA_API void ea_request_unref(ea_request *request);
/* The request's timeline: its prompt and the tokens generated so far, without the end token. To be
 * called once EA_EVENT_DONE was delivered; valid until ea_request_unref. */
EA_API const int32_t *ea_request_tokens(const ea_request *request, size_t *n_tokens);

/* ---- state
 * ------------------------------------------------------------------------------------------------------
 */

typedef enum ea_agent_state {
    EA_AGENT_QUEUED,
    EA_AGENT_PREFILL,
    EA_AGENT_RUNNING,
    EA_AGENT_SUSPENDED,
    EA_AGENT_IDLE,
    EA_AGENT_CLOSED,
} ea_agent_state;

EA_API const char *ea_agent_state_name(ea_agent_state state);

/* One timeline as seen from outside: a snapshot. */
typedef struct ea_agent_info {
    char id[64]; /* longer names are cut */
    char role[24];
    ea_agent_state state;
    int n_ctx;                                /* tokens in the timeline now */
    int n_requests;                           /* answered or running */
    uint64_t n_prompt, n_cached, n_generated; /* sums over its requests */
    double tokens_per_s;                      /* of the running or the last request's generation */
    double idle_s;                            /* since its last token */
} ea_agent_info;

/* The caller tells that the answer just given ended in a tool call: the agent is shown as
 * suspended. */
EA_API void ea_agent_suspend(ea_engine *engine, const char *agent);

/* Fill up to n entries, most recently active first; returns how many named timelines there are. */
EA_API size_t ea_engine_agents(ea_engine *engine, ea_agent_info *out, size_t n);

typedef struct ea_engine_stats {
    uint64_t n_steps, n_prompt_tokens, n_cached_tokens, n_generated_tokens, n_requests_done,
        n_requests_cancelled, n_requests_failed, n_preemptions, n_evicted_pages;
    int n_running, n_queued; /* requests now */
    int n_pages, n_pages_free,
        n_pages_cached; /* KV pages: all, never used or free, held only by the prefix tree */
    int page_tokens;
    int n_ctx, n_ctx_agent, n_parallel, n_threads; /* in force */
    double last_step_ms, max_step_ms;
    double since_progress_ms; /* time since the engine thread last finished a step or found nothing
                                 to do */
    uint64_t kv_bytes;
} ea_engine_stats;

EA_API void ea_engine_stats_get(ea_engine *engine, ea_engine_stats *out);

/* CPU features and which kernel each slot uses, as text of several lines; freed by ea_free. */
EA_API char *ea_system_report(void);

/* One kernel of this build: the table of an instruction-set level has it. Strings are static. */
typedef struct ea_kernel_info {
    const char *op;     /* "rms_norm", ...; "matmul" for products with weights */
    const char *format; /* of the weights, such as "Q4_K"; "" unless op is "matmul" */
    const char *level;  /* "avx2", ...; EA_CPU and ea_probe take these names */
    bool usable;        /* the machine has the level, and EA_CPU does not mask it */
    bool used;          /* what engines of this process run: the highest usable level's */
} ea_kernel_info;

/* Fill up to n entries, operator by operator, levels ascending; returns how many there are. */
EA_API size_t ea_kernels(ea_kernel_info *out, size_t n);

/* ---- measuring
 * --------------------------------------------------------------------------------------------------
 */

/* Memory and worker threads to measure the machine and its kernels with. One thread at a time;
 * while it measures, each thread is bound to a core of its own (where there are as many), unlike
 * those of an engine. An engine that runs meanwhile makes every figure wrong. All figures are the
 * best of the runs that fit into the time of a measurement, at least two. */
typedef struct ea_probe ea_probe;

typedef struct ea_probe_params {
    size_t size;
    int n_threads;    /* the caller included; 0 = physical cores allowed to us */
    size_t n_bytes;   /* memory to stream from; 0 = twice the last-level cache, from 128 MiB to 1
                         GiB, but at most a quarter of what is available */
    double seconds;   /* time of one measurement; 0 = 0.1 */
    bool small_pages; /* no huge pages for it */
} ea_probe_params;

EA_API void ea_probe_params_default(ea_probe_params *params);
EA_API ea_status ea_probe_create(const ea_probe_params *params, ea_probe **out,
                                 ea_error *err) EA_MUST_CHECK;
EA_API void ea_probe_destroy(ea_probe *probe); /* NULL is fine */
/* From here on measure with n_threads (0 as above). */
EA_API ea_status ea_probe_set_threads(ea_probe *probe, int n_threads, ea_error *err) EA_MUST_CHECK;
EA_API int ea_probe_threads(const ea_probe *probe);

/* What all threads together read from memory, in bytes a second. */
EA_API double ea_probe_bandwidth(ea_probe *probe);

typedef enum ea_peak_kind {
    EA_PEAK_INT8, /* products of bytes, summed: weights of quantised formats */
    EA_PEAK_F32,  /* fused multiply-adds of floats: weights of float formats */
} ea_peak_kind;

/* What all threads together compute in registers, in multiply-adds a second, with the instructions
 * of a level and those below it; level NULL = the highest usable one. EA_EINVAL: no such level;
 * EA_EUNSUPPORTED: this machine lacks it, or EA_CPU masks it. */
EA_API ea_status ea_probe_peak(ea_probe *probe, ea_peak_kind kind, const char *level, double *out,
                               ea_error *err) EA_MUST_CHECK;

/* A product of n_rows rows of k inputs with n x k weights, which come from memory: each run takes
 * other weights than the run before it. */
typedef struct ea_product {
    const char *format; /* of the weights, such as "Q4_K" */
    const char *level;  /* whose kernel; NULL = the highest usable one that has the format */
    int n, k;           /* k is a multiple of the format's block */
    int n_rows;         /* 1..512 */
} ea_product;

typedef struct ea_product_time {
    const char *level; /* whose kernel it was */
    ea_peak_kind peak; /* the peak that bounds it */
    double seconds;    /* of one product; quantising the rows is not counted */
    double n_bytes;    /* of weights that it reads, as packed */
    double n_macs;     /* multiply-adds: n * k * n_rows */
} ea_product_time;

/* EA_EINVAL names what is out of range; EA_EUNSUPPORTED: no such kernel, or not on this machine;
 * EA_ENOMEM: the weights do not fit into the probe's memory. */
EA_API ea_status ea_probe_product(ea_probe *probe, const ea_product *product, ea_product_time *out,
                                  ea_error *err) EA_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif
