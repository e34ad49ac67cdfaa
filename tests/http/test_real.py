"""The real program with real models: the same routes, with text that can be checked."""
import json
import os
import pathlib
import socket
import threading
import time
import unittest

from support import BUILD, Server, chunks, content, events, finish, skip_all, text

SOURCE = pathlib.Path(os.environ.get("EA_SOURCE_DIR", "."))
DATA = pathlib.Path(os.environ.get("EA_SHARED_DATA") or SOURCE / ".." / "shared" / "data")
MODELS = pathlib.Path(os.environ.get("EDGEAGENT_MODELS") or pathlib.Path.home() / ".cache" / "edgeagent" / "models")
TINY = DATA / "tiny" / "stories260K-f32.gguf"
SMOL = MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf"
PROGRAM = BUILD / "edgeagent"
COMPLETIONS = "/v1/completions"


def serve(model, *options):
    return Server([str(PROGRAM), "serve", "-m", str(model), "--port", "0", "-t", "2", *options], ready=120)


class Real(unittest.TestCase):
    MODEL, OPTIONS = None, ()

    @classmethod
    def setUpClass(cls):
        if not cls.MODEL.exists():
            raise unittest.SkipTest(f"{cls.MODEL} is not there")
        cls.server = serve(cls.MODEL, *cls.OPTIONS)

    @classmethod
    def tearDownClass(cls):
        seconds, status, _ = cls.server.stop()
        if status != 0:
            raise AssertionError(f"the server ended with {status}: {cls.server.said[-4000:]}")


class Stories(Real):
    MODEL = TINY
    OPTIONS = ("-np", "2", "-c", "1024")

    def complete(self, prompt, **fields):
        status, body = self.server.post(COMPLETIONS, {"prompt": prompt, "temperature": 0, **fields})
        self.assertEqual(status, 200, body)
        return body

    def golden(self):
        with open(DATA / "tiny" / "stories260K-golden.jsonl", encoding="utf-8") as f:
            return [row for row in map(json.loads, f) if "greedy_ids" in row]

    def test_greedy_text_is_the_published_one(self):
        for row in self.golden():
            n = min(len(row["greedy_ids"]), 100)
            body = self.complete(row["prompt_ids"], max_tokens=n)
            got = body["choices"][0]["text"]
            self.assertGreater(len(got), 20)
            self.assertEqual(row["greedy_text"].lstrip()[:len(got.strip())], got.strip())

    def test_streamed_is_the_same(self):
        whole = self.complete("Lily and Tom", max_tokens=60)["choices"][0]["text"]
        evs = self.server.stream(COMPLETIONS, {"prompt": "Lily and Tom", "temperature": 0, "max_tokens": 60,
                                               "stream_options": {"include_usage": True}})
        self.assertEqual((text(evs), finish(evs)), (whole, ["length"]))
        usage = chunks(evs)[-1]["usage"]
        self.assertEqual(usage["completion_tokens"], 60)
        self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"] - 1)

    def test_stop_string(self):
        whole = self.complete("Once", max_tokens=80)["choices"][0]["text"]
        word = whole.split()[10]
        body = self.complete("Once", max_tokens=80, stop=word)
        self.assertEqual(body["choices"][0]["text"], whole[:whole.index(word)])
        self.assertEqual(body["choices"][0]["finish_reason"], "stop")

    def test_seeds(self):
        ask = lambda seed: self.complete("The dog", max_tokens=30, temperature=1.0, seed=seed)["choices"][0]["text"]
        body = self.complete("The dog", max_tokens=30, temperature=1.0, seed=7, n=3)
        texts = [c["text"] for c in body["choices"]]
        self.assertEqual(texts, [ask(7), ask(8), ask(9)])
        self.assertEqual(len(set(texts)), 3)

    def test_logprobs(self):
        body = self.complete("Once upon", max_tokens=8, logprobs=3)
        lp = body["choices"][0]["logprobs"]
        self.assertEqual("".join(lp["tokens"]), body["choices"][0]["text"])
        for token, p, top in zip(lp["tokens"], lp["token_logprobs"], lp["top_logprobs"]):
            self.assertEqual(max(top, key=top.get), token)  # greedy
            self.assertAlmostEqual(top[token], p)
            self.assertLessEqual(p, 0)

    def test_scoring_a_text(self):
        row = next(r for r in self.golden() if len(r["prompt_ids"]) > 5)
        body = self.complete(row["prompt_ids"], max_tokens=0, echo=True, logprobs=0)
        got = body["choices"][0]["logprobs"]["token_logprobs"]
        want = row["prompt_logprob"]
        self.assertIsNone(got[0])
        self.assertEqual(len(got), len(row["prompt_ids"]))
        for a, b in zip(got[1:], want[-(len(got) - 1):]):
            self.assertAlmostEqual(a, b, delta=2e-2)

    def test_logit_bias(self):
        first = self.complete("Once upon", max_tokens=1, logprobs=0)["choices"][0]["logprobs"]["tokens"][0]
        ids = [i for i in range(512) if self.complete([i], max_tokens=0, echo=True)["choices"][0]["text"] == first]
        body = self.complete("Once upon", max_tokens=1, logprobs=0, logit_bias={str(i): False for i in ids})
        self.assertNotEqual(body["choices"][0]["logprobs"]["tokens"][0], first)

    def test_prompt_too_long(self):
        status, body = self.server.post(COMPLETIONS, {"prompt": [5] * 600})
        self.assertEqual((status, body["error"]["code"]), (400, "context_length_exceeded"), body)
        self.assertIn("600", body["error"]["message"])
        self.assertIn(str(body["error"]["n_ctx"]), body["error"]["message"])

    def test_full_timeline_ends_with_length(self):
        body = self.complete("Once", ignore_eos=True)
        self.assertEqual(body["choices"][0]["finish_reason"], "length")
        self.assertGreater(body["usage"]["total_tokens"], 500)

    def test_vanished_clients_free_their_rows(self):
        for stream in (False, True):
            body = json.dumps({"prompt": "Once", "ignore_eos": True, "max_tokens": 400, "n": 2, "stream": stream})
            head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            for _ in range(10):
                with socket.create_connection(("127.0.0.1", self.server.port), 10) as s:
                    s.sendall((head + body).encode())
                    time.sleep(0.01)
        self.server.until_metric("edgeagent_requests_queued", 0)
        self.server.until_metric("edgeagent_requests_running", 0)
        self.assertGreater(self.server.metric("edgeagent_requests_cancelled_total"), 0)

    def test_many_at_once(self):
        alone = {p: self.complete(p, max_tokens=40)["choices"][0]["text"]
                 for p in ("Tom", "The cat", "One day", "Mom said")}
        failures = []

        def work(prompt):
            for _ in range(3):
                if self.complete(prompt, max_tokens=40)["choices"][0]["text"] != alone[prompt]:
                    failures.append(prompt)
        threads = [threading.Thread(target=work, args=(p,)) for p in alone for _ in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(failures, [])  # more requests than places, and the same text


class Stopping(unittest.TestCase):
    def test_sigterm_while_streams_run(self):
        if not TINY.exists():
            raise unittest.SkipTest(f"{TINY} is not there")
        server = serve(TINY, "-np", "8", "-c", "8192", "--ctx-agent", "512")
        started, ended = threading.Semaphore(0), []

        def one():
            conn = server.connect()
            conn.request("POST", COMPLETIONS, json.dumps({"prompt": "Once", "ignore_eos": True, "stream": True,
                                                          "n": 8, "echo": True}).encode())
            evs = []
            for e in events(conn.getresponse()):
                if not evs:
                    started.release()
                evs.append(e)
            ended.append(evs)
            conn.close()
        threads = [threading.Thread(target=one) for _ in range(20)]
        for t in threads:
            t.start()
        for _ in threads:
            started.acquire()
        seconds, status, _ = server.stop()
        for t in threads:
            t.join()
        self.assertEqual(status, 0, server.said[-3000:])
        self.assertLess(seconds, 2)  # a second, and a busy test machine
        self.assertEqual(len(ended), 20)


class Smol(Real):
    MODEL = SMOL
    OPTIONS = ("-np", "2", "-c", "4096")

    def test_chat(self):
        status, body = self.server.chat("What is the capital of France? Answer in one sentence.", temperature=0,
                                        max_tokens=40)
        self.assertEqual(status, 200, body)
        self.assertIn("Paris", body["choices"][0]["message"]["content"])
        self.assertEqual(body["choices"][0]["finish_reason"], "stop")

    def test_a_conversation_is_cached(self):
        messages, shared = [{"role": "system", "content": "You are brief."}], 0
        for turn in ("Name a colour.", "Another one.", "And a fruit."):
            messages.append({"role": "user", "content": turn})
            evs = self.server.stream("/v1/chat/completions", {
                "messages": messages, "temperature": 0, "max_tokens": 24, "user": "talk",
                "stream_options": {"include_usage": True}})
            usage = chunks(evs)[-1]["usage"]
            self.assertGreaterEqual(usage["prompt_tokens_details"]["cached_tokens"], shared)
            shared = usage["prompt_tokens"] - 8  # all but the opening of the answer comes back
            messages.append({"role": "assistant", "content": content(evs)})

    def test_agent_is_listed(self):
        self.server.chat("Hello", max_tokens=4, agent={"id": "greeter", "role": "tool"})
        agent = next(a for a in self.server.get("/v1/agents")[1]["data"] if a["id"] == "greeter")
        self.assertEqual((agent["role"], agent["state"], agent["requests"]), ("tool", "idle", 1))

    def test_template_refusals(self):
        status, body = self.server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": 5}]})
        self.assertEqual(status, 400, body)
        status, body = self.server.post("/v1/chat/completions", {"messages": []})
        self.assertEqual(status, 400, body)


if __name__ == "__main__":
    if not PROGRAM.exists():
        skip_all(f"{PROGRAM} is not built")
    if not TINY.exists() and not SMOL.exists():
        skip_all(f"neither {TINY} nor {SMOL} is there")
    unittest.main()
