"""Clients that vanish, read slowly or wait; full queues; stopping in the middle of everything."""
import json
import random
import socket
import threading
import time
import unittest

from support import Case, chunks, content, events, fake_server

CHAT = "/v1/chat/completions"


def post_bytes(content, **fields):
    body = json.dumps({"messages": [{"role": "user", "content": content}], **fields}).encode()
    return b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (CHAT.encode(), len(body), body)


class Vanish(Case):
    OPTIONS = ("--parallel", "4")

    def nothing_left(self, seconds=20):
        self.server.until_metric("edgeagent_requests_queued", 0, seconds)
        self.server.until_metric("edgeagent_requests_running", 0, seconds)
        self.assertEqual(self.server.chat("@words=1")[0], 200)

    def vanish(self, request, seen=b"", hard=False):
        """Send a request, wait until `seen` has come, go away."""
        s = socket.create_connection(("127.0.0.1", self.server.port), 10)
        s.sendall(request)
        got = b""
        while seen and seen not in got:
            got += s.recv(4096)
        if hard:  # reset instead of an orderly end
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        return s

    def test_in_prefill(self):
        for hard in (False, True):
            for stream in (False, True):
                before = self.server.metric("edgeagent_requests_cancelled_total")
                s = self.vanish(post_bytes("@prefill=60000", stream=stream), hard=hard)
                self.server.until_metric("edgeagent_requests_running", 1)
                s.close()
                self.nothing_left()
                self.assertGreater(self.server.metric("edgeagent_requests_cancelled_total"), before)

    def test_while_streaming(self):
        for hard in (False, True):
            s = self.vanish(post_bytes("@words=100000 @delay=2", stream=True), b"w5", hard)
            s.close()
            self.nothing_left()

    def test_not_streamed(self):
        s = self.vanish(post_bytes("@words=100000 @delay=2"))
        self.server.until_metric("edgeagent_requests_running", 1)
        s.close()
        self.nothing_left()

    def test_in_the_queue(self):
        running = [self.vanish(post_bytes("@prefill=60000")) for _ in range(4)]
        self.server.until_metric("edgeagent_requests_running", 4)
        waiting = [self.vanish(post_bytes("@words=3", stream=bool(i % 2))) for i in range(4)]
        self.server.until_metric("edgeagent_requests_queued", 4)
        for s in waiting:
            s.close()
        self.server.until_metric("edgeagent_requests_queued", 0)
        self.assertEqual(self.server.metric("edgeagent_requests_running"), 4)
        for s in running:
            s.close()
        self.nothing_left()

    def test_several_answers(self):
        s = self.vanish(post_bytes("@words=100000 @delay=2", stream=True, n=4), b"w5")
        s.close()
        self.nothing_left()

    def test_before_the_request_is_whole(self):
        whole = post_bytes("@words=3")
        for n in (1, 10, 60, len(whole) - 1):
            self.vanish(whole[:n]).close()
        self.nothing_left()

    def test_right_after_sending(self):
        for stream in (False, True):
            for _ in range(20):
                self.vanish(post_bytes("@words=100000 @delay=2", stream=stream)).close()
        self.nothing_left()

    def test_fifty_at_random_moments(self):
        rng = random.Random(3)
        kinds = ["@words=100000 @delay=1", "@prefill=5000 @words=9", "@words=30 @delay=3", "@words=200000"]
        threads = []

        def one(kind, stream, n, wait, hard):
            s = self.vanish(post_bytes(kind, stream=stream, n=n), hard=hard)
            time.sleep(wait)
            s.close()
        for _ in range(50):
            args = (rng.choice(kinds), rng.random() < 0.7, rng.choice([1, 1, 2]), rng.random() * 0.3,
                    rng.random() < 0.3)
            threads.append(threading.Thread(target=one, args=args))
            threads[-1].start()
        for t in threads:
            t.join()
        self.nothing_left()

    def test_others_are_not_hurt(self):
        evs = []
        t = threading.Thread(target=lambda: evs.extend(self.server.stream_chat("@words=100 @delay=5")))
        t.start()
        for _ in range(10):
            self.vanish(post_bytes("@words=100000 @delay=1", stream=True), b"w3").close()
        t.join()
        self.assertEqual(content(evs), "".join(f" w{i}" for i in range(100)))
        self.nothing_left()


class Slow(Case):
    OPTIONS = ("--keepalive", "200", "--idle", "2")

    def test_slow_reader(self):
        # The slow one gets 1.3 MB into a tiny window and does not read; the quick one is served beside it.
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        s.connect(("127.0.0.1", self.server.port))
        s.sendall(post_bytes("@words=6000", stream=True))
        for _ in range(5):
            self.assertEqual(content(self.server.stream_chat("@words=200")), "".join(f" w{i}" for i in range(200)))
        self.server.until_metric("edgeagent_requests_running", 0)  # the engine has long finished both
        got = b""
        s.settimeout(20)
        while b"[DONE]" not in got[-100:]:
            part = s.recv(65536)
            self.assertTrue(part, "cut off")
            got += part
        self.assertEqual(got.count(b'"content":" w'), 6000)
        s.close()

    def test_comments_keep_a_silent_stream_alive(self):
        evs = self.server.stream_chat("@prefill=900 @words=2")
        self.assertGreaterEqual(sum(e == (":", ": keepalive") for e in evs), 2)
        self.assertEqual((content(evs), evs[-1]), (" w0 w1", "[DONE]"))

    def test_waiting_outlasts_the_idle_time(self):
        status, body = self.server.chat("@prefill=3500 @words=2")
        self.assertEqual((status, body["choices"][0]["message"]["content"]), (200, " w0 w1"))
        evs = self.server.stream_chat("@words=3 @delay=1300")
        self.assertEqual((content(evs), evs[-1]), (" w0 w1 w2", "[DONE]"))

    def test_idle_connections_are_closed(self):
        with socket.create_connection(("127.0.0.1", self.server.port), 20) as s:
            s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n")
            while s.recv(4096):  # at most an error answer, then the end
                pass

    def test_each_token_comes_at_once(self):
        conn = self.server.connect()
        conn.request("POST", CHAT, json.dumps({"messages": [{"role": "user", "content": "@words=4 @delay=300"}],
                                               "stream": True}).encode())
        times = []
        for e in events(conn.getresponse()):
            if isinstance(e, dict) and e["choices"][0]["delta"].get("content"):
                times.append(time.monotonic())
        conn.close()
        self.assertEqual(len(times), 4)
        self.assertTrue(all(b - a > 0.1 for a, b in zip(times, times[1:])), times)  # not in one lump


class Full(Case):
    OPTIONS = ("--parallel", "1", "--queue", "2", "--stall", "300")

    def test_queue_full(self):
        sockets = []
        for i in range(3):
            s = socket.create_connection(("127.0.0.1", self.server.port), 10)
            s.sendall(post_bytes("@prefill=60000", stream=bool(i % 2)))
            sockets.append(s)
            self.server.until_metric("edgeagent_requests_running", 1)
            self.server.until_metric("edgeagent_requests_queued", i)
        for stream in (False, True):
            status, headers, body = self.server.request("POST", CHAT, json.dumps(
                {"messages": [{"role": "user", "content": "hi"}], "stream": stream}))
            self.refused((status, json.loads(body)), 429, code="rate_limit_exceeded")
            self.assertGreaterEqual(int(headers["Retry-After"]), 1)
        sockets.pop().close()
        self.server.until_metric("edgeagent_requests_queued", 1)
        # Two answers, one place: refused as a whole, and the one that fitted does not stay.
        self.refused(self.server.chat("hi", n=2), 429)
        self.server.until_metric("edgeagent_requests_queued", 1)
        for s in sockets:
            s.close()
        self.server.until_metric("edgeagent_requests_running", 0)
        self.assertEqual(self.server.chat("@words=1")[0], 200)

    def test_health_follows_the_engine(self):
        t = threading.Thread(target=self.server.chat, args=("@stall=2000",))
        t.start()
        end = time.monotonic() + 10
        while (answer := self.server.get("/health"))[0] == 200 and time.monotonic() < end:
            time.sleep(0.02)
        self.refused(answer, 503, code="no_progress", words=["1 requests"])
        t.join()
        self.assertEqual(self.server.get("/health"), (200, {"status": "ok"}))


class Stop(unittest.TestCase):
    def stopped(self, server):
        seconds, status, out = server.stop()
        self.assertEqual(status, 0, server.said[-3000:])
        self.assertLess(float(out.split()[-1]), 1000, out)  # milliseconds in ea_server_stop
        return seconds

    def test_idle(self):
        server = fake_server()
        server.get("/health")
        self.stopped(server)

    def test_while_streams_run(self):
        server = fake_server("--parallel", "20")
        answers, started = [], threading.Semaphore(0)

        def one():
            conn = server.connect()
            conn.request("POST", CHAT, json.dumps({"messages": [{"role": "user", "content": "@words=99999 @delay=5"}],
                                                   "stream": True}).encode())
            r = conn.getresponse()
            evs, first = [], True
            for e in events(r):
                evs.append(e)
                if first and len(evs) > 3:
                    first = False
                    started.release()
            answers.append(evs)
            conn.close()
        threads = [threading.Thread(target=one) for _ in range(20)]
        for t in threads:
            t.start()
        for _ in threads:
            started.acquire()
        self.stopped(server)
        for t in threads:
            t.join()
        self.assertEqual(len(answers), 20)
        for evs in answers:
            self.assertIn("shutting down", chunks(evs)[-1]["error"]["message"])

    def test_while_clients_wait(self):
        server = fake_server("--parallel", "2")
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(server.chat("@prefill=60000"))) for _ in range(6)]
        for t in threads:
            t.start()
        server.until_metric("edgeagent_requests_running", 2)
        server.until_metric("edgeagent_requests_queued", 4)
        self.stopped(server)
        for t in threads:
            t.join()
        self.assertEqual([(s, b["error"]["code"]) for s, b in answers], [(503, "shutting_down")] * 6)

    def test_while_clients_do_odd_things(self):
        server = fake_server()
        sockets = []
        for data in (b"", b"POST ", post_bytes("@words=90000", stream=True), post_bytes("@delay=1 @words=9999")[:80],
                     post_bytes("@words=5") * 20):
            s = socket.create_connection(("127.0.0.1", server.port), 10)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            s.sendall(data)
            sockets.append(s)
        time.sleep(0.2)
        self.stopped(server)
        for s in sockets:
            s.close()


if __name__ == "__main__":
    unittest.main()
