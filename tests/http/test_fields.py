"""Every documented field of the two generating endpoints: its effect, its limits, its refusal."""
import json
import unittest

from support import Case, chunks, content, finish, text

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_penalty": 1, "repeat_last_n": 64,
            "presence_penalty": 0, "frequency_penalty": 0, "seed_set": False, "max_tokens": -1, "ignore_eos": False,
            "n_top_logprobs": -1, "prompt_logprobs": False, "stop": [], "bias": [], "agent": "", "role": ""}


class Params(Case):
    """What reaches the engine (the fake one answers with its parameters)."""

    def params(self, headers=None, **fields):
        seen = []
        status, body = self.server.chat("@params", headers=headers, **fields)
        self.assertEqual(status, 200, body)
        seen.append(json.loads(body["choices"][0]["message"]["content"]))
        status, body = self.server.post(COMPLETIONS, {"prompt": "@params", **fields}, headers)
        self.assertEqual(status, 200, body)
        seen.append(json.loads(body["choices"][0]["text"]))
        self.assertEqual(seen[0], seen[1])
        return seen[0]

    def test_defaults(self):
        got = self.params()
        del got["seed"]
        self.assertEqual(got, DEFAULTS)

    def test_numbers(self):
        for name, values in {"temperature": (0, 1.5), "top_p": (0, 0.5, 1), "min_p": (0, 0.25),
                             "repeat_penalty": (1.25,), "presence_penalty": (-2, 0.5), "frequency_penalty": (2, -0.5),
                             "top_k": (0, 1, 100), "repeat_last_n": (-1, 0, 128)}.items():
            for value in values:
                self.assertEqual(self.params(**{name: value})[name], value, name)
        self.assertEqual(self.params(repetition_penalty=1.5)["repeat_penalty"], 1.5)
        self.assertEqual(self.params(top_k=-1)["top_k"], 0)
        self.assertEqual(self.params(temperature=None)["temperature"], 0.8)

    def test_wrong_numbers(self):
        for name, value in {"temperature": "hot", "top_p": 1.5, "min_p": -0.1, "top_k": 1.5, "repeat_penalty": 0,
                            "presence_penalty": True, "frequency_penalty": [1], "repeat_last_n": -2, "seed": "x",
                            "max_tokens": -2, "max_completion_tokens": 1.5, "n": 0}.items():
            shown = json.dumps(value)
            self.refused(self.server.chat("hi", **{name: value}), 400, name, words=[f"'{name}'", shown])

    def test_negative_n(self):
        self.refused(self.server.chat("hi", n=-1), 400, "n", words=["1 to 64", "-1"])
        self.refused(self.server.chat("hi", n=65), 400, "n", words=["65"])

    def test_huge_numbers(self):
        for value in ("1e999", "-1e999", "99999999999999999999999", "1" * 4000, "0." + "1" * 4000):
            body = '{"messages":[{"role":"user","content":"hi"}],"%s":' + value + "}"
            self.refused(self.server.post(CHAT, body % "seed"), 400, "seed")
            self.refused(self.server.post(CHAT, body % "max_tokens"), 400, "max_tokens")
        self.refused(self.server.post(CHAT, '{"messages":[],"temperature":1e999}'), 400, "temperature", words=["1e999"])

    def test_nan_is_no_json(self):
        for word in ("NaN", "Infinity", "-Infinity"):
            self.refused(self.server.post(CHAT, '{"messages":[],"temperature":%s}' % word), 400, words=["line 1"])

    def test_seed(self):
        self.assertEqual(self.params(seed=42)["seed"], 42)
        self.assertTrue(self.params(seed=42)["seed_set"])
        self.assertFalse(self.params(seed=-1)["seed_set"])
        self.assertEqual(self.params(seed=2**63 - 1)["seed"], 2**63 - 1)
        self.assertEqual(self.params(seed=7.0)["seed"], 7)

    def test_lengths(self):
        # The fake answer is cut by these, so they are read back from its length.
        for name in ("max_tokens", "max_completion_tokens", "n_predict"):
            status, body = self.server.chat("@words=9", **{name: 4})
            self.assertEqual((status, body["usage"]["completion_tokens"]), (200, 4), name)
            self.assertEqual(body["choices"][0]["finish_reason"], "length")
        _, body = self.server.chat("@words=9", max_tokens=8, max_completion_tokens=3, n_predict=7)
        self.assertEqual(body["usage"]["completion_tokens"], 3)
        _, body = self.server.chat("@words=9", max_tokens=-1)
        self.assertEqual(body["usage"]["completion_tokens"], 9)
        _, body = self.server.chat("@words=9", max_tokens=0)
        choice = body["choices"][0]
        self.assertEqual((choice["message"]["content"], choice["finish_reason"]), ("", "length"))

    def test_stop(self):
        self.assertEqual(self.params(stop="END")["stop"], ["END"])
        self.assertEqual(self.params(stop=["a\n", "é"])["stop"], ["a\n", "é"])
        self.assertEqual(self.params(stop=None)["stop"], [])
        self.assertEqual(self.params(stop=["", "x"])["stop"], ["x"])
        _, body = self.server.chat("@words=9", stop=" w3")
        self.assertEqual(body["choices"][0]["message"]["content"], " w0 w1 w2")
        self.assertEqual(body["choices"][0]["finish_reason"], "stop")
        self.refused(self.server.chat("hi", stop=5), 400, "stop", words=["5"])
        self.refused(self.server.chat("hi", stop=["a", 5]), 400, "stop")
        self.refused(self.server.chat("hi", stop=["a"] * 65), 400, "stop")
        self.refused(self.server.chat("hi", stop="a" * 5000), 400, "stop", words=["5000"])
        self.refused(self.server.chat("hi", stop="a\0b"), 400, "stop")

    def test_logit_bias(self):
        self.assertEqual(self.params(logit_bias={"5": 2.5, "7": -100})["bias"], [[5, "2.5"], [7, "-100"]])
        self.assertEqual(self.params(logit_bias={"5": False})["bias"], [[5, "-inf"]])
        self.assertEqual(self.params(logit_bias=[[5, 1], [6, False]])["bias"], [[5, "1"], [6, "-inf"]])
        self.assertEqual(self.params(logit_bias={})["bias"], [])
        self.refused(self.server.chat("hi", logit_bias={"x": 1}), 400, "logit_bias")
        self.refused(self.server.chat("hi", logit_bias={"5": "a lot"}), 400, "logit_bias")
        self.refused(self.server.chat("hi", logit_bias={"99999": 1}), 400, "logit_bias", words=["99999", "1281"])
        self.refused(self.server.chat("hi", logit_bias=3), 400, "logit_bias")
        self.refused(self.server.chat("hi", logit_bias=[[1, 2, 3]]), 400, "logit_bias")

    def test_ignore_eos(self):
        status, body = self.server.chat("@words=2", ignore_eos=True, max_tokens=6)
        self.assertEqual((status, body["usage"]["completion_tokens"]), (200, 6))
        self.refused(self.server.chat("hi", ignore_eos=1), 400, "ignore_eos")

    def test_agent_label(self):
        label = lambda headers=None, **f: (lambda p: (p["agent"], p["role"]))(self.params(headers, **f))
        self.assertEqual(label(user="u"), ("u", ""))
        self.assertEqual(label(prompt_cache_key="k", user="u"), ("k", ""))
        self.assertEqual(label({"X-Session-Id": "s"}, user="u"), ("s", ""))
        self.assertEqual(label({"X-Agent-Id": "a", "X-Agent-Role": "code"}, user="u"), ("a", "code"))
        self.assertEqual(label({"X-Session-Id": "s"}, agent={"id": "e", "role": "tool"}, user="u"), ("e", "tool"))
        self.assertEqual(label({"X-Session-Affinity": "f"}, user="u"), ("f", ""))
        self.assertEqual(label({"X-Conversation-Id": "c"}, user="u"), ("c", ""))
        self.assertEqual(label({"X-Session-Id": "s"}, session_id="b", user="u"), ("b", ""))
        self.assertEqual(label(safety_identifier="i"), ("i", ""))
        self.assertEqual(label(agent="short"), ("short", ""))
        self.refused(self.server.chat("hi", agent=5), 400, "agent")
        self.refused(self.server.chat("hi", agent={"id": 5}), 400, "agent")
        self.refused(self.server.chat("hi", agent={"id": "x" * 256}), 400, "agent")
        self.refused(self.server.chat("hi", user=5), 400, "user")

    def test_accepted_without_effect(self):
        got = self.params(model="any-name", cache_prompt=True, store=False, metadata={"a": "b"}, service_tier="auto",
                          reasoning_effort="low", verbosity="low", unknown_field={"x": [1]}, id_slot=3, best_of=1, n=1)
        del got["seed"]
        self.assertEqual(got, DEFAULTS)
        self.refused(self.server.chat("hi", model=5), 400, "model")
        self.refused(self.server.chat("hi", cache_prompt="yes"), 400, "cache_prompt")

    def test_refused_fields(self):
        for name, value in {"grammar": "root ::= x", "json_schema": {"type": "object"}, "functions": [{"name": "f"}],
                            "function_call": "auto", "mirostat": 2, "typical_p": 0.5, "dry_multiplier": 0.8,
                            "xtc_probability": 0.5, "best_of": 2, "min_tokens": 5, "use_beam_search": True,
                            "guided_json": {"a": 1}, "audio": {"voice": "x"}, "lora": [{"id": 0}],
                            "continue_final_message": True, "n_probs": 3, "tfs_z": 0.5, "top_a": 0.1, "top_n_sigma": 2,
                            "dynatemp_range": 0.5, "length_penalty": 2, "n_keep": 5, "n_discard": 5, "n_indent": 1,
                            "t_max_predict_ms": 100, "samplers": ["top_k"], "prediction": {"type": "content"},
                            "prompt_embeds": "x", "bad_words": ["x"], "web_search_options": {"a": 1},
                            "guided_regex": "x", "guided_choice": ["x"], "guided_grammar": "x",
                            "structured_outputs": {"json": {}}}.items():
            self.refused(self.server.chat("hi", **{name: value}), 400, name, "unsupported", [f"'{name}'"])
        for name, value in {"grammar": "", "functions": [], "mirostat": 0, "typical_p": 1, "min_tokens": 0,
                            "use_beam_search": False}.items():
            self.assertEqual(self.server.chat("hi", **{name: value})[0], 200, name)

    def test_response_format(self):
        self.assertEqual(self.server.chat("hi", response_format={"type": "text"})[0], 200)
        for kind in ("json_object", "json_schema"):
            self.refused(self.server.chat("hi", response_format={"type": kind}), 400, "response_format", "unsupported",
                         ["not yet supported", kind])
        self.refused(self.server.chat("hi", response_format="json"), 400, "response_format")


class Chat(Case):
    def test_whole_answer(self):
        status, body = self.server.chat("@words=3")
        self.assertEqual(status, 200)
        self.assertEqual(body["object"], "chat.completion")
        self.assertTrue(body["id"].startswith("chatcmpl-"))
        self.assertEqual(body["model"], "fake-1")
        self.assertEqual(body["choices"], [{"index": 0, "message": {"role": "assistant", "content": " w0 w1 w2",
                                                                    "refusal": None},
                                            "logprobs": None, "finish_reason": "stop"}])
        u = body["usage"]
        self.assertEqual(u["total_tokens"], u["prompt_tokens"] + u["completion_tokens"])
        self.assertEqual(u["completion_tokens"], 3)

    def test_stream(self):
        evs = self.server.stream_chat("@words=3")
        self.assertEqual(evs[-1], "[DONE]")
        self.assertEqual(content(evs), " w0 w1 w2")
        self.assertEqual(chunks(evs)[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        self.assertEqual(len(chunks(evs)), 5)  # role, one a token, finish
        self.assertEqual(finish(evs), ["stop"])
        self.assertEqual({e["object"] for e in chunks(evs)}, {"chat.completion.chunk"})
        self.assertEqual(len({e["id"] for e in chunks(evs)}), 1)
        self.assertTrue(all("usage" not in e for e in chunks(evs)))

    def test_timings(self):
        keys = {"cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_n",
                "predicted_ms", "predicted_per_token_ms", "predicted_per_second"}
        _, body = self.server.chat("@words=4")
        for timings in (body["timings"], self.server.stream_chat("@words=4")[-2]["timings"],
                        self.server.stream_chat("@words=4", stream_options={"include_usage": True})[-2]["timings"]):
            self.assertEqual(set(timings), keys)
            self.assertEqual(timings["predicted_n"], 4)
        self.assertEqual(body["timings"]["cache_n"] + body["timings"]["prompt_n"], body["usage"]["prompt_tokens"])

    def test_include_usage(self):
        evs = chunks(self.server.stream_chat("@words=3", stream_options={"include_usage": True}))
        self.assertEqual(evs[-1]["choices"], [])
        self.assertEqual(evs[-1]["usage"]["completion_tokens"], 3)
        self.assertTrue(all(e["usage"] is None for e in evs[:-1]))
        evs = chunks(self.server.stream_chat("@words=3", stream_options={"include_usage": False}))
        self.assertTrue(all("usage" not in e for e in evs))
        self.refused(self.server.chat("hi", stream_options={"include_usage": True}), 400, "stream_options")
        self.refused(self.server.chat("hi", stream=True, stream_options=1), 400, "stream_options")
        self.refused(self.server.chat("hi", stream="yes"), 400, "stream")

    def test_cached_tokens(self):
        first = self.server.chat("once upon a cached time @words=1")[1]["usage"]
        again = self.server.chat("once upon a cached time @words=1")[1]["usage"]
        self.assertEqual(again["prompt_tokens_details"]["cached_tokens"], first["prompt_tokens"] - 1)

    def test_n(self):
        _, body = self.server.chat("@params", n=3, seed=10)
        self.assertEqual([c["index"] for c in body["choices"]], [0, 1, 2])
        self.assertEqual([json.loads(c["message"]["content"])["seed"] for c in body["choices"]], [10, 11, 12])
        evs = self.server.stream_chat("@words=4", n=3)
        for i in range(3):
            self.assertEqual((content(evs, i), finish(evs, i)), (" w0 w1 w2 w3", ["stop"]))
        one, three = self.server.chat("@words=4")[1]["usage"], self.server.chat("@words=4", n=3)[1]["usage"]
        self.assertEqual(three["prompt_tokens"], one["prompt_tokens"])
        self.assertEqual(three["completion_tokens"], 3 * one["completion_tokens"])

    def test_raw_json_reaches_the_template(self):
        messages = '[ {"role":"user", "content":"@raw 7.6 1e2 \\u00e9 9007199254740993",  "x":0.10}]'
        tools = '[{"type":"function","function":{"name":"f","parameters":{"b":1,"a":18446744073709551616}}}]'
        kwargs = '{"enable_thinking": false, "x": 1.50}'
        body = '{"messages":%s,"tools":%s,"chat_template_kwargs":%s}' % (messages, tools, kwargs)
        status, answer = self.server.post(CHAT, body)
        self.assertEqual(status, 200, answer)
        self.assertEqual(answer["choices"][0]["message"]["content"], "\x02".join([messages, tools, kwargs]))
        status, answer = self.server.post(CHAT, '{"messages":%s,"tools":[ ]}' % messages)
        self.assertEqual(answer["choices"][0]["message"]["content"], "\x02".join([messages, "none", "none"]))

    def test_messages_refused(self):
        for body in ({}, {"messages": None}, {"messages": "hi"}, {"messages": {}}, {"messages": []},
                     {"messages": [{"content": "no role"}]}, {"messages": [5]}):
            self.refused(self.server.post(CHAT, body), 400, "messages")
        self.refused(self.server.chat("hi", tools={}), 400, "tools")
        self.refused(self.server.chat("hi", chat_template_kwargs=[]), 400, "chat_template_kwargs")

    def test_content_parts(self):
        parts = [{"type": "text", "text": "@say=a"}, {"type": "text", "text": "b"}]
        _, body = self.server.post(CHAT, {"messages": [{"role": "user", "content": parts}]})
        self.assertEqual(body["choices"][0]["message"]["content"], "ab")

    def test_reasoning(self):
        _, body = self.server.chat("@say=<think>hmm</think>yes")
        message = body["choices"][0]["message"]
        self.assertEqual((message["reasoning_content"], message["content"]), ("hmm", "yes"))
        evs = self.server.stream_chat("@say=<think>hmm</think>yes")
        thought = "".join(e["choices"][0]["delta"].get("reasoning_content", "") for e in chunks(evs))
        self.assertEqual((thought, content(evs)), ("hmm", "yes"))

    def test_logprobs(self):
        _, body = self.server.chat("@words=2", logprobs=True, top_logprobs=2)
        entries = body["choices"][0]["logprobs"]["content"]
        self.assertEqual(entries[0], {"token": " w0", "logprob": -0.5, "bytes": [32, 119, 48], "top_logprobs": [
            {"token": " w0", "logprob": -0.5, "bytes": [32, 119, 48]},
            {"token": " w1", "logprob": -1.5, "bytes": [32, 119, 49]}]})
        self.assertEqual(len(entries), 2)
        _, body = self.server.chat("@words=2", logprobs=True)
        self.assertEqual(body["choices"][0]["logprobs"]["content"][1]["top_logprobs"], [])
        evs = self.server.stream_chat("@words=2", logprobs=True, top_logprobs=1)
        streamed = [t for e in chunks(evs) for t in (e["choices"][0]["logprobs"] or {"content": []})["content"]]
        self.assertEqual([t["token"] for t in streamed], [" w0", " w1"])
        self.refused(self.server.chat("hi", top_logprobs=2), 400, "top_logprobs")
        self.refused(self.server.chat("hi", logprobs=True, top_logprobs=21), 400, "top_logprobs")
        self.refused(self.server.chat("hi", logprobs=3), 400, "logprobs")

    def test_logprobs_of_split_characters(self):
        # One token a byte: three have no text of their own, all are reported, with exact bytes.
        evs = self.server.stream_chat("@say=é🙂", logprobs=True)
        streamed = [t for e in chunks(evs) for t in (e["choices"][0]["logprobs"] or {"content": []})["content"]]
        self.assertEqual(bytes(b for t in streamed for b in t["bytes"]).decode(), "é🙂")
        self.assertEqual(len(streamed), 6)
        self.assertEqual(content(evs), "é🙂")

    def test_characters_stay_whole(self):
        word = "Grüße 🙂 日本語 é"
        evs = self.server.stream_chat("@say=" + word)
        self.assertEqual(content(evs), word)
        self.assertNotIn("\ufffd", content(evs))
        self.assertEqual(self.server.chat("@say=" + word)[1]["choices"][0]["message"]["content"], word)


CALL = '@say=ok <tool_call>{"name":"read","arguments":{"path":"a b","n":7.6}}</tool_call>'
TWO = '@say=<tool_call>{"name":"a","arguments":{}}</tool_call><tool_call>{"name":"b","arguments":{}}</tool_call>after'
TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]


class Tools(Case):
    def state(self, agent):
        return next(a["state"] for a in self.server.get("/v1/agents")[1]["data"] if a["id"] == agent)

    def test_whole(self):
        _, body = self.server.chat(CALL, tools=TOOLS, user="whole")
        choice = body["choices"][0]
        self.assertEqual(choice["finish_reason"], "tool_calls")
        call = choice["message"]["tool_calls"][0]
        self.assertTrue(call["id"].startswith("call_"))
        self.assertEqual((call["type"], call["function"]["name"]), ("function", "read"))
        self.assertEqual(json.loads(call["function"]["arguments"]), {"path": "a b", "n": 7.6})
        self.assertEqual(choice["message"]["content"], "ok ")
        self.assertEqual(self.state("whole"), "suspended")

    def test_content_is_null_beside_a_call(self):
        _, body = self.server.chat(TWO.replace("after", ""), tools=TOOLS)
        self.assertIsNone(body["choices"][0]["message"]["content"])

    def test_streamed(self):
        evs = self.server.stream_chat(CALL, tools=TOOLS, user="streamed")
        parts = [t for e in chunks(evs) for t in e["choices"][0]["delta"].get("tool_calls", [])]
        self.assertEqual(len({t["id"] for t in parts if "id" in t}), 1)
        self.assertEqual("".join(t["function"].get("name", "") for t in parts), "read")
        self.assertEqual(json.loads("".join(t["function"]["arguments"] for t in parts)), {"path": "a b", "n": 7.6})
        self.assertEqual((content(evs), finish(evs)), ("ok ", ["tool_calls"]))
        self.assertEqual(self.state("streamed"), "suspended")

    def test_several(self):
        _, body = self.server.chat(TWO, tools=TOOLS)
        calls = body["choices"][0]["message"]["tool_calls"]
        self.assertEqual([c["function"]["name"] for c in calls], ["a", "b"])
        self.assertEqual(len({c["id"] for c in calls}), 2)
        parts = [t for e in chunks(self.server.stream_chat(TWO, tools=TOOLS))
                 for t in e["choices"][0]["delta"].get("tool_calls", [])]
        self.assertEqual([t["index"] for t in parts if "id" in t], [0, 1])

    def test_not_parallel(self):
        for evs in ([self.server.chat(TWO, tools=TOOLS, parallel_tool_calls=False)[1]],):
            choice = evs[0]["choices"][0]
            self.assertEqual([c["function"]["name"] for c in choice["message"]["tool_calls"]], ["a"])
            self.assertEqual((choice["finish_reason"], choice["message"]["content"]), ("tool_calls", None))
        evs = self.server.stream_chat(TWO + "x" * 50 + " @delay=5", tools=TOOLS, parallel_tool_calls=False)
        self.assertEqual((content(evs), finish(evs), evs[-1]), ("", ["tool_calls"], "[DONE]"))
        self.refused(self.server.chat("hi", parallel_tool_calls="no"), 400, "parallel_tool_calls")

    def test_per_choice(self):
        evs = self.server.stream_chat(CALL, tools=TOOLS, n=2)
        for i in range(2):
            self.assertEqual((content(evs, i), finish(evs, i)), ("ok ", ["tool_calls"]))

    def test_without_tools_it_is_text(self):
        self.assertIn("<tool_call>", self.server.chat(CALL)[1]["choices"][0]["message"]["content"])
        _, body = self.server.chat(CALL, tools=TOOLS, tool_choice="none", user="none")
        self.assertEqual(body["choices"][0]["finish_reason"], "stop")
        self.assertIn("<tool_call>", body["choices"][0]["message"]["content"])
        self.assertEqual(self.state("none"), "idle")

    def test_tool_choice(self):
        self.assertEqual(self.server.chat(CALL, tools=TOOLS, tool_choice="auto")[1]["choices"][0]["finish_reason"],
                         "tool_calls")
        for value in ("required", {"type": "function", "function": {"name": "read"}}):
            self.refused(self.server.chat("hi", tools=TOOLS, tool_choice=value), 400, "tool_choice", "unsupported",
                         ["not yet supported"])
        self.refused(self.server.chat("hi", tools=TOOLS, tool_choice="perhaps"), 400, "tool_choice", words=["perhaps"])
        self.refused(self.server.chat("hi", tools=TOOLS, tool_choice=5), 400, "tool_choice")


class Completions(Case):
    def complete(self, prompt, **fields):
        return self.server.post(COMPLETIONS, {"prompt": prompt, **fields})

    def test_whole_and_streamed(self):
        status, body = self.complete("@words=3")
        self.assertEqual((status, body["object"]), (200, "text_completion"))
        self.assertTrue(body["id"].startswith("cmpl-"))
        self.assertEqual(body["choices"],
                         [{"index": 0, "text": " w0 w1 w2", "logprobs": None, "finish_reason": "stop"}])
        evs = self.server.stream(COMPLETIONS, {"prompt": "@words=3", "stream_options": {"include_usage": True}})
        self.assertEqual((text(evs), finish(evs), evs[-1]), (" w0 w1 w2", ["stop"], "[DONE]"))
        self.assertEqual(chunks(evs)[-1]["usage"]["completion_tokens"], 3)

    def test_prompt_forms(self):
        ids = list(b"@words=2")
        for prompt in ("@words=2", ["@words=2"], ids, [ids]):
            status, body = self.complete(prompt)
            self.assertEqual((status, body["choices"][0]["text"]), (200, " w0 w1"), prompt)
        _, body = self.complete(["@words=1", "@words=2", ids], n=2)
        self.assertEqual([c["text"] for c in body["choices"]], [" w0", " w0", " w0 w1", " w0 w1", " w0 w1", " w0 w1"])
        self.assertEqual(body["usage"]["completion_tokens"], 10)
        self.assertEqual(body["usage"]["prompt_tokens"], 9 + 9 + 8)  # BOS is added to text only
        evs = self.server.stream(COMPLETIONS, {"prompt": ["@words=1", "@words=2"]})
        self.assertEqual((text(evs, 0), text(evs, 1)), (" w0", " w0 w1"))

    def test_prompt_refused(self):
        for prompt in (None, 5, {}, [], [[]], [1.5], [-1], [99999], [True], ["a", 5], [["a"]], {"a": 1}):
            self.refused(self.complete(prompt), 400, "prompt")
        self.refused(self.complete(["a"] * 65), 400, "prompt", words=["65", "64"])
        self.refused(self.complete(["a"] * 33, n=2), 400, "prompt")

    def test_echo(self):
        _, body = self.complete("@words=2", echo=True)
        self.assertEqual(body["choices"][0]["text"], "@words=2 w0 w1")
        _, body = self.complete(list(b"@words=2"), echo=True)
        self.assertEqual(body["choices"][0]["text"], "@words=2 w0 w1")
        evs = self.server.stream(COMPLETIONS, {"prompt": "@words=2", "echo": True})
        self.assertEqual(text(evs), "@words=2 w0 w1")
        self.refused(self.complete("hi", echo="yes"), 400, "echo")

    def test_logprobs(self):
        _, body = self.complete("@words=2", logprobs=1)
        self.assertEqual(body["choices"][0]["logprobs"], {
            "tokens": [" w0", " w1"], "token_logprobs": [-0.5, -0.5],
            "top_logprobs": [{" w0": -0.5}, {" w1": -0.5}], "text_offset": [0, 3]})
        _, body = self.complete("@words=2", logprobs=0)
        self.assertEqual(body["choices"][0]["logprobs"]["top_logprobs"], [{}, {}])
        self.assertIsNone(self.complete("@words=2", logprobs=None)[1]["choices"][0]["logprobs"])
        evs = self.server.stream(COMPLETIONS, {"prompt": "@words=2", "logprobs": 1})
        got = [t for e in chunks(evs) for t in (e["choices"][0]["logprobs"] or {"tokens": []})["tokens"]]
        self.assertEqual(got, [" w0", " w1"])
        self.refused(self.complete("hi", logprobs=21), 400, "logprobs")
        self.refused(self.complete("hi", logprobs=True), 400, "logprobs")

    def test_echo_with_logprobs(self):
        # Scoring a text: nothing generated, each prompt token with its log-probability.
        _, body = self.complete("é@words=1", echo=True, logprobs=0, max_tokens=0)
        lp = body["choices"][0]["logprobs"]
        self.assertEqual(lp["tokens"], ["bytes:\\xc3", "bytes:\\xa9"] + list("@words=1"))
        self.assertEqual(lp["token_logprobs"], [-0.5] * 10)  # the first stands after BOS
        self.assertEqual(lp["text_offset"], [0, 1, 1, 2, 3, 4, 5, 6, 7, 8])
        self.assertEqual((body["choices"][0]["text"], body["choices"][0]["finish_reason"]), ("é@words=1", "length"))
        _, body = self.complete(list(b"abc"), echo=True, logprobs=1, max_tokens=0)
        lp = body["choices"][0]["logprobs"]
        self.assertEqual((lp["tokens"], lp["token_logprobs"]), (["a", "b", "c"], [None, -0.5, -0.5]))
        self.assertIsNone(lp["top_logprobs"][0])

    def test_suffix_refused(self):
        self.refused(self.complete("hi", suffix="end"), 400, "suffix", "unsupported")
        self.assertEqual(self.complete("hi", suffix="")[0], 200)
        self.assertEqual(self.complete("hi", suffix=None)[0], 200)


if __name__ == "__main__":
    unittest.main()
