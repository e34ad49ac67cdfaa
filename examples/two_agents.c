/* two_agents.c: two agents on one engine through the C interface. Both share a system prompt, which
 * is computed once: the second agent's figures show it as cached.
 *
 *   cc two_agents.c -o two_agents $(pkg-config --cflags --libs edgeagent)
 *   ./two_agents model.gguf
 */
#include <edgeagent.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SYSTEM                                                                                     \
    "{\"role\":\"system\",\"content\":\"You are one of several agents that plan a garden. Answer " \
    "in one short sentence, name concrete plants, and never repeat what you were told.\"}"

/* One agent's answer, filled by the engine thread and read after ea_request_wait. */
typedef struct agent {
    const char *name, *messages;
    char text[4096];
    size_t n;
    ea_finish finish;
    ea_usage usage;
    ea_request *request;
} agent;

static bool on_event(void *user, const ea_event *event)
{
    agent *a = user;
    if (event->n_bytes < sizeof a->text - a->n) {
        if (event->n_bytes)
            memcpy(a->text + a->n, event->text, event->n_bytes);
        a->n += event->n_bytes;
    }
    if (event->kind == EA_EVENT_DONE) {
        a->finish = event->finish;
        a->usage = event->usage;
    }
    return true; /* false would cancel the request */
}

static void check(ea_status status, const ea_error *err)
{
    if (status != EA_OK) {
        fprintf(stderr, "two_agents: %s\n", err->text);
        exit(1);
    }
}

static void submit(const ea_model *model, ea_engine *engine, agent *a)
{
    ea_chat_params chat;
    ea_request_params params;
    ea_error err = {0};
    int32_t *tokens;
    size_t n;
    ea_chat_params_default(&chat);
    chat.messages_json = a->messages;
    chat.add_generation_prompt = true;
    check(ea_chat_render(model, &chat, NULL, &tokens, &n, &err), &err);

    ea_request_params_default(&params);
    params.tokens = tokens;
    params.n_tokens = n;
    params.agent = a->name; /* the engine keeps this agent's timeline for its next turn */
    params.max_tokens = 60;
    params.sampling.temperature = 0;
    params.on_event = on_event;
    params.user = a;
    check(ea_request_submit(engine, &params, &a->request, &err), &err);
    ea_free(tokens); /* the request has its own copy */
}

int main(int argc, char **argv)
{
    agent agents[2] = {
        {.name = "planner",
         .messages = "[" SYSTEM ",{\"role\":\"user\",\"content\":\"What grows in the shade?\"}]"},
        {.name = "critic",
         .messages = "[" SYSTEM ",{\"role\":\"user\",\"content\":\"What must I never plant?\"}]"},
    };
    ea_model *model;
    ea_engine *engine;
    ea_model_params model_params;
    ea_engine_params params;
    ea_error err = {0};
    if (argc != 2) {
        fprintf(stderr, "usage: two_agents MODEL.gguf\n");
        return 2;
    }
    ea_model_params_default(&model_params);
    check(ea_model_load(argv[1], &model_params, &model, &err), &err);
    ea_engine_params_default(&params);
    params.n_ctx = 2048;
    params.n_parallel = 2;
    check(ea_engine_create(model, &params, &engine, &err), &err);
    for (int i = 0; i < 2; i++)
        submit(model, engine, &agents[i]);
    for (int i = 0; i < 2; i++) {
        ea_request_wait(agents[i].request);
        ea_request_unref(agents[i].request);
        printf("%s (%d prompt tokens, %d of them cached, %d generated):\n%.*s\n\n", agents[i].name,
               agents[i].usage.n_prompt, agents[i].usage.n_cached, agents[i].usage.n_generated,
               (int)agents[i].n, agents[i].text);
    }
    ea_engine_destroy(engine);
    ea_model_destroy(model);
    return agents[0].finish == EA_FINISH_ERROR || agents[1].finish == EA_FINISH_ERROR;
}
