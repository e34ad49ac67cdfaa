"""Routes, methods, keys, bodies that are no requests, and what else arrives on a socket."""
import http.client
import json
import random
import socket
import threading
import unittest

from support import Case, fake_server

CHAT = "/v1/chat/completions"
ROUTES = {"/v1/chat/completions": "POST", "/v1/completions": "POST", "/v1/models": "GET", "/v1/models/fake-1": "GET",
          "/health": "GET", "/metrics": "GET", "/v1/agents": "GET", "/props": "GET"}


class Routes(Case):
    def test_models(self):
        status, body = self.server.get("/v1/models")
        self.assertEqual((status, body["object"], len(body["data"])), (200, "list", 1))
        model = body["data"][0]
        self.assertEqual((model["id"], model["object"], model["owned_by"]), ("fake-1", "model", "edgeagent"))
        self.assertEqual(self.server.get("/v1/models/fake-1"), (200, model))
        self.refused(self.server.get("/v1/models/gpt-4"), 404, "model", "model_not_found", ["gpt-4", "fake-1"])
        self.refused(self.server.get("/v1/models/a%2Fb%20c"), 404, "model", words=["a/b c"])

    def test_any_model_name_is_served(self):
        status, body = self.server.chat("hi", model="gpt-4")
        self.assertEqual((status, body["model"]), (200, "fake-1"))

    def test_health(self):
        self.assertEqual(self.server.get("/health"), (200, {"status": "ok"}))

    def test_props(self):
        status, body = self.server.get("/props")
        self.assertEqual((status, body["total_slots"], body["model_path"]), (200, 4, "/models/fake-1.gguf"))
        self.assertEqual(body["default_generation_settings"]["n_ctx"], 200000)
        self.assertEqual(body["default_generation_settings"]["params"]["temperature"], 0.8)

    def test_agents(self):
        self.server.chat("@words=7", agent={"id": "planner", "role": "reasoning"})
        status, body = self.server.get("/v1/agents")
        agent = next(a for a in body["data"] if a["id"] == "planner")
        self.assertEqual((status, agent["role"], agent["state"], agent["requests"], agent["generated_tokens"]),
                         (200, "reasoning", "idle", 1, 7))
        self.assertEqual(set(agent), {"id", "role", "state", "n_ctx", "requests", "prompt_tokens", "cached_tokens",
                                      "generated_tokens", "tokens_per_second", "idle_seconds"})
        self.assertGreaterEqual(body["total"], 1)

    def test_long_agent_names_are_cut_between_characters(self):
        self.server.chat("hi", agent={"id": "é" * 100, "role": "日" * 20})
        agent = next(a for a in self.server.get("/v1/agents")[1]["data"] if a["id"].startswith("éé"))
        self.assertEqual((set(agent["id"]), set(agent["role"])), ({"é"}, {"日"}))

    def test_metrics_format(self):
        self.server.chat("@words=2")
        status, headers, body = self.server.request("GET", "/metrics")
        self.assertEqual(status, 200)
        self.assertTrue(headers["Content-Type"].startswith("text/plain; version=0.0.4"))
        typed, helped = set(), set()
        for line in body.decode().splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ", 3)
                self.assertIn(kind, ("counter", "gauge", "histogram"))
                self.assertIn(name, helped)
                typed.add(name)
            elif line.startswith("# HELP "):
                helped.add(line.split(" ")[2])
            else:
                name, value = line.rsplit(" ", 1)
                float(value)
                base = name.split("{")[0]
                stem = base
                for suffix in ("_bucket", "_sum", "_count"):
                    stem = stem.removesuffix(suffix)
                self.assertTrue(base in typed or stem in typed, line)
        for name in ("edgeagent_http_requests_total", "edgeagent_generated_tokens_total", "edgeagent_requests_running",
                     "edgeagent_time_to_first_token_seconds", "llamacpp:requests_processing"):
            self.assertIn(name, typed)
        self.assertGreaterEqual(self.server.metric("edgeagent_generated_tokens_total"), 2)

    def test_unknown_path(self):
        for path in ("/", "/v2/models", "/v1/chat/completions/x", "/v1/models/", "/V1/models", "/v1//models"):
            self.refused(self.server.get(path), 404, words=["GET", path])
        self.refused(self.server.post("/nowhere", {"a": 1}), 404)

    def test_wrong_method(self):
        for path, method in ROUTES.items():
            for wrong in {"GET", "POST", "PUT", "DELETE", "PATCH", "BREW"} - {method}:
                status, headers, body = self.server.request(wrong, path, b"{}" if wrong == "POST" else None)
                self.refused((status, json.loads(body)), 405, words=[wrong])
                self.assertIn(method, headers["Allow"], path)

    def test_head(self):
        for path, method in ROUTES.items():
            status, headers, body = self.server.request("HEAD", path)
            self.assertEqual((status, body), (200 if method == "GET" else 405, b""), path)
            self.assertGreater(int(headers["Content-Length"]), 0)

    def test_options_and_cors(self):
        ask = {"Origin": "http://a.example", "Access-Control-Request-Method": "POST",
               "Access-Control-Request-Headers": "authorization,x-mine"}
        for path, method in ROUTES.items():
            status, headers, body = self.server.request("OPTIONS", path, None, ask)
            self.assertEqual((status, body), (204, b""))
            self.assertEqual(headers["Access-Control-Allow-Origin"], "*")
            self.assertEqual(headers["Access-Control-Allow-Headers"], "authorization,x-mine")
            self.assertIn(method, headers["Access-Control-Allow-Methods"])
        self.assertEqual(self.server.request("GET", "/health")[1]["Access-Control-Allow-Origin"], "*")

    def test_short_paths(self):
        self.assertEqual(self.server.chat("hi", path="/chat/completions")[0], 200)
        self.assertEqual(self.server.post("/completions", {"prompt": "hi"})[0], 200)
        self.assertEqual(self.server.get("/models")[0], 200)
        self.assertEqual(self.server.get("/v1/health")[0], 200)


class Keys(Case):
    OPTIONS = ("--api-key", "sesame,second", "--alias", "my/alias")

    def test_key(self):
        for header in ({"Authorization": "Bearer sesame"}, {"Authorization": "bearer second"}, {"X-Api-Key": "sesame"}):
            self.assertEqual(self.server.get("/v1/models", header)[0], 200)
            self.assertEqual(self.server.chat("hi", headers=header)[0], 200)
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "sesame"}, {"Authorization": "Bearer "},
                       {"Authorization": "Bearer sesame2"}, {"X-Api-Key": "sesam"}, {"Authorization": "Basic sesame"}):
            for path in ("/v1/models", "/metrics", "/v1/agents", "/props", "/nowhere"):
                error = self.refused(self.server.get(path, header), 401, code="invalid_api_key")
                self.assertNotIn("sesame", error["message"])
            self.refused(self.server.chat("hi", headers=header), 401)
        self.assertEqual(self.server.request("GET", "/v1/models")[1]["WWW-Authenticate"], "Bearer")

    def test_open_without_key(self):
        self.assertEqual(self.server.get("/health")[0], 200)
        self.assertEqual(self.server.request("OPTIONS", CHAT)[0], 204)

    def test_alias(self):
        key = {"Authorization": "Bearer sesame"}
        self.assertEqual(self.server.get("/v1/models", key)[1]["data"][0]["id"], "my/alias")
        self.assertEqual(self.server.get("/v1/models/my/alias", key)[0], 200)
        self.assertEqual(self.server.get("/v1/models/my%2Falias", key)[0], 200)
        self.assertEqual(self.server.get("/v1/models/fake-1", key)[0], 200)


class Bodies(Case):
    OPTIONS = ("--max-body", "2000000", "--ctx", "500")

    def test_bad_json(self):
        for body, words in {
                "": ["empty"], "   ": ["empty"], "{": ["line 1, column 2"], '{"a":1,}': ["column 8"],
                "[1]": ["object"], '"x"': ["object"], "null": ["object"], "{}x": ["after the end"],
                '{"a":\n  tru}': ["line 2, column 3"], '{"a":"\n"}': ["control character"], '{"a":"x': ["does not end"],
                '{"a":01}': ["start with 0"], '{"a":1.}': ["after the point"], '{"a":1e}': ["exponent"],
                '{"a":-}': ["digits"], '{"a":"\\x"}': ["escape"], '{"a":"\\u12g4"}': ["hexadecimal"],
                "{a:1}": ["double quotes"], '{"a" 1}': ["':'"], '{"a":1 "b":2}': ["','"], '{"é":1,}': ["column 8"],
                '{"n":1,"n":2}': ["'n'", "twice"], '{"n":1,"\\u006e":2}': ["twice"]}.items():
            for path in (CHAT, "/v1/completions"):
                self.refused(self.server.post(path, body), 400, words=words)

    def test_bytes_that_are_no_text(self):
        for body in (b'{"a":"\xff"}', b'{"a":"\xc3"}', b'{"a":"\xed\xa0\x80"}', b'{"a":"\xc0\xaf"}', b"\x00",
                     b'{"a":\x00}',
                     b"\xff\xfe{\x00}\x00", b"\x1f\x8b\x08\x00"):
            self.refused(self.server.post(CHAT, body), 400)

    def test_byte_order_mark(self):
        self.assertEqual(self.server.post(CHAT, b'\xef\xbb\xbf{"messages":[{"role":"user","content":"x"}]}')[0], 200)

    def test_deep_nesting(self):
        for depth in (200, 100000):
            for a, b in (("[", "]"), ('{"a":', "}")):
                body = '{"messages":%s1%s}' % (a * depth, b * depth)
                self.refused(self.server.post(CHAT, body), 400, words=["nested too deeply"])
            self.refused(self.server.post(CHAT, '{"messages":' + "[" * depth), 400)

    def test_many_fields(self):
        body = "{" + ",".join(f'"f{i}":1' for i in range(300)) + "}"
        self.refused(self.server.post(CHAT, body), 400, words=["256"])

    def test_long_keys_that_look_alike(self):
        body = {"x" * 100 + "1": 1, "x" * 100 + "2": 2, "messages": [{"role": "user", "content": "hi"}]}
        self.assertEqual(self.server.post(CHAT, body)[0], 200)

    def test_content_type(self):
        body = b'{"messages":[{"role":"user","content":"hi"}]}'
        for kind in ("application/json", "application/json; charset=utf-8", "text/plain", "application/vnd.x+json",
                     "application/x-www-form-urlencoded"):
            self.assertEqual(self.server.post(CHAT, body, {"Content-Type": kind})[0], 200, kind)
        for kind in ("multipart/form-data; boundary=x", "image/png"):
            self.refused(self.server.post(CHAT, body, {"Content-Type": kind}), 415, words=[kind.split(";")[0]])
        self.refused(self.server.post(CHAT, body, {"Content-Encoding": "gzip"}), 415, words=["gzip"])

    def test_too_large(self):
        self.refused(self.server.post(CHAT, b" " * 2000001), 413, words=["2000000"])
        self.refused(self.server.post(CHAT, b" " * 7000000), 413)

    def test_much_too_large(self):
        # 100 MB against a limit of 2: answered, or cut off once it is clear; never taken in.
        try:
            self.refused(self.server.post(CHAT, b" " * 100_000_000), 413)
        except OSError:
            pass
        self.assertEqual(self.server.get("/health")[0], 200)

    def test_too_large_in_chunks(self):
        conn = self.server.connect()
        conn.request("POST", CHAT, iter([b" " * 100000] * 30), encode_chunked=True,
                     headers={"Transfer-Encoding": "chunked"})
        r = conn.getresponse()
        self.refused((r.status, json.loads(r.read())), 413)
        conn.close()

    def test_chunked_body(self):
        body = b'{"messages":[{"role":"user","content":"@words=1"}]}'
        conn = self.server.connect()
        conn.request("POST", CHAT, (body[i:i + 1] for i in range(len(body))), encode_chunked=True,
                     headers={"Transfer-Encoding": "chunked"})
        r = conn.getresponse()
        self.assertEqual(json.loads(r.read())["choices"][0]["message"]["content"], " w0")
        conn.close()

    def test_expect_continue(self):
        body = b'{"messages":[{"role":"user","content":"hi"}]}'
        head = "POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self.server.port), 10) as s:
            s.sendall((head % (CHAT, len(body))).encode())
            self.assertTrue(s.recv(1000).startswith(b"HTTP/1.1 100"))
            s.sendall(body)
            self.assertIn(b"200 OK", s.makefile("rb").read())
        got = self.server.raw((head % (CHAT, 5_000_000)).encode())
        self.assertTrue(got.startswith(b"HTTP/1.1 413"), got[:100])

    def test_prompt_longer_than_the_context(self):
        error = self.refused(self.server.chat("x" * 600), 400, code="context_length_exceeded", words=["500"])
        self.assertEqual(error["n_ctx"], 500)
        self.assertGreater(error["n_prompt_tokens"], 600)
        self.assertIn(str(error["n_prompt_tokens"]), error["message"])
        self.refused(self.server.chat("x" * 600, stream=True), 400, code="context_length_exceeded")
        self.refused(self.server.post("/v1/completions", {"prompt": ["a", "x" * 600]}), 400,
                     code="context_length_exceeded")
        self.server.until_metric("edgeagent_requests_running", 0)

    def test_engine_error(self):
        self.refused(self.server.chat("@fail=3"), 500, words=["fake device"])
        evs = self.server.stream_chat("@fail=3")
        self.assertIn("fake device", evs[-1]["error"]["message"])
        self.assertNotIn("[DONE]", evs)
        evs = self.server.stream_chat("@fail=3", n=3)
        self.assertEqual(sum("error" in e for e in evs), 1)
        self.server.until_metric("edgeagent_requests_running", 0)


class Mutations(Case):
    """Requests with one or more things changed at random: an answer or a refusal, never an end."""
    SEED = {"model": "m", "messages": [{"role": "user", "content": "@words=3 é"}], "prompt": "@words=2",
            "max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 3, "n": 2,
            "stop": ["x", "y"], "logit_bias": {"5": 1}, "stream": False, "user": "u", "echo": True,
            "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "auto",
            "agent": {"id": "a", "role": "r"}, "response_format": {"type": "text"}, "presence_penalty": 0.1,
            "chat_template_kwargs": {"a": 1}}
    VALUES = [None, True, False, 0, -1, 1, 2**31, -2**31, 2**63, 10**30, 0.5, -0.0, 1e300, "", "x", "\0", "\ud800",
              "é" * 40, [], [None], [0], ["a"], [[0]], [[0, 0]], {}, {"id": 0}, {"type": 0}, {"0": None},
              {"a": {"b": [1]}}]

    def body(self, rng):
        fields = dict(self.SEED)
        for _ in range(rng.randrange(1, 4)):
            fields[rng.choice(list(fields))] = rng.choice(self.VALUES)
        data = bytearray(json.dumps(fields).encode())
        for _ in range(rng.choice((0, 0, 0, 1, 2))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        return bytes(data)

    def test_mutated_requests(self):
        rng = random.Random(11)
        conn, seen = self.server.connect(), {}
        for i in range(1500):
            body, path = self.body(rng), rng.choice((CHAT, "/v1/completions"))
            conn.request("POST", path, body, {"Content-Type": "application/json"})
            r = conn.getresponse()
            answer = r.read()
            self.assertIn(r.status, (200, 400), body)
            if r.status == 400:
                self.assertTrue(json.loads(answer)["error"]["message"], body)
            seen[r.status] = seen.get(r.status, 0) + 1
        conn.close()
        self.assertGreater(seen[200], 100)  # both kinds were tried
        self.assertGreater(seen[400], 100)
        self.server.until_metric("edgeagent_requests_running", 0)


class Sockets(Case):
    OPTIONS = ("--threads", "2")

    def alive(self):
        self.assertEqual(self.server.get("/health")[0], 200)

    def test_garbage(self):
        for data in (b"\x00" * 1000, b"\xff\xfe\xfd" * 500, b"\r\n" * 2000, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
                     b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x41" * 512,
                     b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                     b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n{}",
                     b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n{}",
                     b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n{}",
                     b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                     b"GET /%00%ff%zz HTTP/1.1\r\nHost: x\r\n\r\n",
                     b"GET /" + b"a" * 200000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
                     b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"A: " + b"b" * 200000 + b"\r\n\r\n",
                     b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 50000 + b"\r\n"):
            try:
                with socket.create_connection(("127.0.0.1", self.server.port), 10) as s:
                    s.sendall(data)
                    s.shutdown(socket.SHUT_WR)
                    s.settimeout(10)
                    got = b""
                    while part := s.recv(65536):
                        got += part
                self.assertNotIn(b"200 OK", got, data[:80])
            except TimeoutError:
                raise
            except OSError:
                pass  # cut off in the middle of it: fine
            self.alive()

    def test_half_requests_do_not_block(self):
        halves = []
        for i in range(60):
            s = socket.create_connection(("127.0.0.1", self.server.port), 10)
            head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
            s.sendall((head, head + b"Content-Length: 100\r\n\r\n{", b"G", b"")[i % 4])
            halves.append(s)
        for _ in range(20):
            self.assertEqual(self.server.chat("@words=2")[0], 200)
        for s in halves:
            s.close()
        self.alive()

    def test_pipelined(self):
        one = b'{"messages":[{"role":"user","content":"@words=%d @delay=5"}]}'
        data = b""
        for i in range(1, 6):
            body = one % i
            last = b"Connection: close\r\n" if i == 5 else b""
            data += b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n" % (last, len(body))
            data += body
        got = self.server.raw(data)
        answers = [json.loads(part[:part.index(b"HTTP/1.1")] if b"HTTP/1.1" in part else part)
                   for part in got.split(b"\r\n\r\n")[1:]]
        self.assertEqual([a["usage"]["completion_tokens"] for a in answers], [1, 2, 3, 4, 5])

    def test_keep_alive(self):
        conn = self.server.connect()
        for stream in (False, True, False, True):
            conn.request("POST", CHAT, json.dumps({"messages": [{"role": "user", "content": "@words=3"}],
                                                   "stream": stream}).encode())
            r = conn.getresponse()
            self.assertEqual(r.status, 200)
            self.assertIn(b"w2", r.read())
        sock = conn.sock
        conn.request("GET", "/health")
        conn.getresponse().read()
        self.assertIs(conn.sock, sock)
        conn.close()

    def test_old_http(self):
        body = b'{"messages":[{"role":"user","content":"@words=2"}],"stream":true}'
        got = self.server.raw(b"POST %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (CHAT.encode(), len(body), body))
        self.assertIn(b"data: [DONE]\n\n", got)
        self.assertNotIn(b"chunked", got.lower())

    def test_many_at_once(self):
        failures = []

        def work(i):
            for k in range(10):
                evs = self.server.stream_chat(f"@words={i % 7 + 1}") if k % 2 else None
                status, body = self.server.chat(f"@words={i % 7 + 1}")
                if status != 200 or body["usage"]["completion_tokens"] != i % 7 + 1 or (evs and evs[-1] != "[DONE]"):
                    failures.append((i, status, body))
        threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(failures, [])


class Limit(Case):
    OPTIONS = ("--threads", "2", "--connections", "4")

    def test_connections_beyond_the_limit_wait(self):
        held = [socket.create_connection(("127.0.0.1", self.server.port), 10) for _ in range(12)]
        answers = []
        t = threading.Thread(target=lambda: answers.append(self.server.get("/health")))
        t.start()
        for s in held:
            s.close()
        t.join()
        self.assertEqual(answers, [(200, {"status": "ok"})])


class Start(unittest.TestCase):
    def test_port_in_use(self):
        first = fake_server()
        try:
            with self.assertRaises(RuntimeError) as e:
                fake_server("--port", str(first.port))
            self.assertIn(f"port {first.port} on 127.0.0.1 is already in use", str(e.exception))
        finally:
            first.stop()

    def test_bad_host(self):
        for host in ("256.1.1.1", "192.0.2.1"):
            with self.assertRaises(RuntimeError) as e:
                fake_server("--host", host)
            self.assertIn(host, str(e.exception))

    def test_restart_on_the_same_port(self):
        first = fake_server()
        first.chat("hi")
        first.stop()
        again = fake_server("--port", str(first.port))
        self.assertEqual(again.get("/health")[0], 200)
        self.assertEqual(again.stop()[1], 0)

    def test_other_addresses(self):
        server = fake_server("--host", "::1")
        try:
            conn = http.client.HTTPConnection("::1", server.port, timeout=10)
            conn.request("GET", "/health")
            self.assertEqual(conn.getresponse().status, 200)
            conn.close()
        finally:
            server.stop()


if __name__ == "__main__":
    unittest.main()
