"""support: start a server program, talk HTTP to it, read server-sent events. Standard library only."""
import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

BUILD = pathlib.Path(os.environ.get("EA_BINARY_DIR", "."))
SKIPPED = 77                        # exit status that ctest reports as skipped
PATIENCE = 20                       # seconds before a wait counts as a failure


class Server:
    """A server process. argv prints "listening PORT" (or ...:PORT) when it is ready."""

    def __init__(self, argv, ready=60):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=self.log, text=True)
        end = time.monotonic() + ready
        line = ""
        while "listening" not in line:
            line = self.process.stdout.readline()
            if not line or time.monotonic() > end:
                self.process.kill()
                self.process.communicate()
                said = self.errors()
                self.log.close()
                raise RuntimeError(f"{argv[0]} did not start: {said}")
        self.port = int(line.rstrip().rsplit(" ", 1)[-1].rsplit(":", 1)[-1].rstrip("/"))

    def errors(self):
        self.log.seek(0)
        return self.log.read()

    def stop(self):
        """SIGTERM; returns (seconds until the end, exit status, rest of standard output). What it said on standard
        error is in self.said from then on."""
        start = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        out = self.process.communicate(timeout=PATIENCE)[0]
        seconds = time.monotonic() - start
        self.said = self.errors()
        self.log.close()
        return seconds, self.process.returncode, out

    # ---- HTTP ----

    def connect(self, timeout=PATIENCE):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None):
        """One request on its own connection; returns (status, headers, body bytes)."""
        conn = self.connect()
        try:
            conn.request(method, path, body, headers or {})
            r = conn.getresponse()
            return r.status, r.headers, r.read()
        finally:
            conn.close()

    def get(self, path, headers=None):
        status, _, body = self.request("GET", path, None, headers)
        return status, json.loads(body)

    def post(self, path, body, headers=None):
        """body: text, bytes, or anything that becomes JSON. Returns (status, decoded answer)."""
        if not isinstance(body, (str, bytes)):
            body = json.dumps(body)
        if isinstance(body, str):
            body = body.encode()
        headers = {"Content-Type": "application/json", **(headers or {})}
        status, _, answer = self.request("POST", path, body, headers)
        return status, json.loads(answer)

    def chat(self, content, path="/v1/chat/completions", headers=None, **fields):
        return self.post(path, {"messages": [{"role": "user", "content": content}], **fields}, headers)

    def stream(self, path, fields):
        """Events of a streamed answer: decoded data, "[DONE]" as text, comments as (":", text)."""
        conn = self.connect()
        try:
            conn.request("POST", path, json.dumps({"stream": True, **fields}).encode(),
                         {"Content-Type": "application/json"})
            r = conn.getresponse()
            if r.status != 200:
                raise AssertionError(f"HTTP {r.status}: {r.read()!r}")
            return list(events(r))
        finally:
            conn.close()

    def stream_chat(self, content, **fields):
        return self.stream("/v1/chat/completions",
                           {"messages": [{"role": "user", "content": content}], **fields})

    def raw(self, data, read=True, timeout=PATIENCE):
        """Bytes on a socket; returns what came back until the other side closed or fell silent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as s:
            s.sendall(data)
            got = b""
            with contextlib.suppress(OSError):
                while read:
                    part = s.recv(65536)
                    if not part:
                        break
                    got += part
            return got

    def metric(self, name):
        text = self.request("GET", "/metrics")[2].decode()
        for line in text.splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
        raise AssertionError(f"no metric {name}")

    def until_metric(self, name, value, seconds=PATIENCE):
        """Wait until a metric has a value; fails after a long time. Returns the seconds it took."""
        start = time.monotonic()
        while (got := self.metric(name)) != value:
            if time.monotonic() - start > seconds:
                raise AssertionError(f"{name} is {got}, not {value}")
            time.sleep(0.01)
        return time.monotonic() - start


def events(response):
    """Decoded server-sent events; checks the framing on the way."""
    block = []
    for raw in response:
        line = raw.decode("utf-8")  # raises where a character is split over two events
        assert line.endswith("\n"), line
        line = line[:-1]
        if line:
            block.append(line)
            continue
        assert len(block) == 1, f"an event is one line: {block}"
        text, block = block[0], []
        if text.startswith(":"):
            yield (":", text)
        else:
            assert text.startswith("data: "), text
            data = text[6:]
            yield data if data == "[DONE]" else json.loads(data)
    assert not block, block


def chunks(evs):
    return [e for e in evs if isinstance(e, dict)]


def content(evs, index=0):
    return "".join(c["delta"].get("content") or "" for e in chunks(evs) for c in e["choices"] if c["index"] == index)


def text(evs, index=0):
    return "".join(c["text"] for e in chunks(evs) for c in e["choices"] if c["index"] == index)


def finish(evs, index=0):
    return [c["finish_reason"] for e in chunks(evs) for c in e["choices"]
            if c["index"] == index and c["finish_reason"]]


def fake_server(*options):
    return Server([str(BUILD / "tests" / "http" / "fake_server"), *options])


class Case(unittest.TestCase):
    """One server for all tests of a class."""
    OPTIONS = ()
    server = None

    @classmethod
    def setUpClass(cls):
        cls.server = fake_server(*cls.OPTIONS)

    @classmethod
    def tearDownClass(cls):
        _, status, _ = cls.server.stop()
        if status != 0:
            raise AssertionError(f"the server ended with {status}: {cls.server.said[-4000:]}")

    def refused(self, answer, status, param=None, code=None, words=()):
        """An error in OpenAI's shape that names the field and says the words."""
        got, body = answer
        self.assertEqual(got, status, body)
        error = body["error"]
        self.assertEqual(set(error) - {"n_prompt_tokens", "n_ctx"}, {"message", "type", "param", "code"})
        if param:
            self.assertEqual(error["param"], param, error)
        if code:
            self.assertEqual(error["code"], code, error)
        for word in words:
            self.assertIn(word, error["message"])
        return error


def skip_all(reason):
    print(f"SKIPPED: {reason}")
    sys.exit(SKIPPED)
