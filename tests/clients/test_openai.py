"""The openai package, unchanged, against the server: list, chat, stream, tools, errors.

Twice: over the scripted engine (what is said is known), and with a real model where there is one.
"""
import json
import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "http"))
from support import BUILD, Server, fake_server, skip_all  # noqa: E402

try:
    import openai
except ImportError:
    skip_all("the Python package openai is not installed (tools/setup does it)")

MODELS = pathlib.Path(os.environ.get("EDGEAGENT_MODELS") or pathlib.Path.home() / ".cache" / "edgeagent" / "models")
SMOL = MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf"
PROGRAM = BUILD / "edgeagent"
TOOLS = [{"type": "function", "function": {"name": "read", "description": "Read a file", "parameters": {
    "type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}}}]
CALL = '@say=<tool_call>{"name":"read","arguments":{"path":"a.txt"}}</tool_call>'


def client_of(server, key="none"):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=key, max_retries=0)


def user(content):
    return [{"role": "user", "content": content}]


class Scripted(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = fake_server("--api-key", "k", "--ctx", "2000")
        cls.client = client_of(cls.server, "k")

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        assert cls.server.stop()[1] == 0, cls.server.said

    def test_models(self):
        self.assertEqual([m.id for m in self.client.models.list()], ["fake-1"])
        self.assertEqual(self.client.models.retrieve("fake-1").owned_by, "edgeagent")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("other")

    def test_chat(self):
        r = self.client.chat.completions.create(model="fake-1", messages=user("@words=3"), seed=1, temperature=0.5)
        self.assertEqual((r.choices[0].message.content, r.choices[0].finish_reason), (" w0 w1 w2", "stop"))
        self.assertEqual(r.usage.completion_tokens, 3)
        self.assertIsInstance(r.usage.prompt_tokens_details.cached_tokens, int)

    def test_stream(self):
        said, usage = "", None
        for chunk in self.client.chat.completions.create(model="fake-1", messages=user("@words=4"), stream=True,
                                                         stream_options={"include_usage": True}):
            said += (chunk.choices[0].delta.content or "") if chunk.choices else ""
            usage = chunk.usage or usage
        self.assertEqual((said, usage.completion_tokens), (" w0 w1 w2 w3", 4))

    def test_stream_ended_early(self):
        stream = self.client.chat.completions.create(model="fake-1", messages=user("@words=90000 @delay=5"),
                                                     stream=True)
        next(stream)
        stream.close()
        headers = {"Authorization": "Bearer k"}
        for _ in range(2000):
            body = self.server.request("GET", "/metrics", None, headers)[2].decode()
            if "\nedgeagent_requests_running 0\n" in body:
                break
        else:
            self.fail("the request still runs")

    def test_tools(self):
        r = self.client.chat.completions.create(model="fake-1", messages=user(CALL), tools=TOOLS)
        call = r.choices[0].message.tool_calls[0]
        self.assertEqual((r.choices[0].finish_reason, call.function.name, json.loads(call.function.arguments)),
                         ("tool_calls", "read", {"path": "a.txt"}))
        back = user(CALL) + [r.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "text"}]
        r = self.client.chat.completions.create(model="fake-1", messages=back + user("@words=1"), tools=TOOLS)
        self.assertEqual(r.choices[0].message.content, " w0")

    def test_streamed_tools(self):
        with self.client.chat.completions.stream(model="fake-1", messages=user(CALL), tools=TOOLS) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion()
        call = final.choices[0].message.tool_calls[0]
        self.assertEqual((final.choices[0].finish_reason, call.function.name, json.loads(call.function.arguments)),
                         ("tool_calls", "read", {"path": "a.txt"}))

    def test_logprobs(self):
        r = self.client.chat.completions.create(model="fake-1", messages=user("@words=2"), logprobs=True,
                                                top_logprobs=2)
        self.assertEqual([t.token for t in r.choices[0].logprobs.content], [" w0", " w1"])
        self.assertEqual(len(r.choices[0].logprobs.content[0].top_logprobs), 2)

    def test_several(self):
        r = self.client.chat.completions.create(model="fake-1", messages=user("@words=1"), n=3)
        self.assertEqual([c.index for c in r.choices], [0, 1, 2])

    def test_completions(self):
        r = self.client.completions.create(model="fake-1", prompt=["@words=1", "@words=2"], max_tokens=9, logprobs=1)
        self.assertEqual([c.text for c in r.choices], [" w0", " w0 w1"])
        self.assertEqual(r.choices[1].logprobs.tokens, [" w0", " w1"])
        said = "".join(c.choices[0].text for c in self.client.completions.create(model="fake-1", prompt="@words=3",
                                                                                 stream=True))
        self.assertEqual(said, " w0 w1 w2")

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as e:
            self.client.chat.completions.create(model="fake-1", messages=user("x" * 3000))
        self.assertEqual(e.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.BadRequestError) as e:
            self.client.chat.completions.create(model="fake-1", messages=user("x"), tools=TOOLS, tool_choice="required")
        self.assertEqual(e.exception.param, "tool_choice")
        with self.assertRaises(openai.AuthenticationError):
            client_of(self.server, "wrong").models.list()
        with self.assertRaises(openai.InternalServerError):
            self.client.chat.completions.create(model="fake-1", messages=user("@fail=1"))
        with self.assertRaises(openai.APIError) as e:
            for _ in self.client.chat.completions.create(model="fake-1", messages=user("@fail=1"), stream=True):
                pass
        self.assertIn("fake device", e.exception.message)


class RealModel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not PROGRAM.exists() or not SMOL.exists():
            raise unittest.SkipTest(f"needs {PROGRAM} and {SMOL}")
        cls.server = Server([str(PROGRAM), "serve", "-m", str(SMOL), "--port", "0", "-t", "2", "-c", "4096"], ready=120)
        cls.client = client_of(cls.server)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        assert cls.server.stop()[1] == 0, cls.server.said

    def test_list_chat_stream_tools(self):
        model = next(iter(self.client.models.list())).id
        ask = dict(model=model, messages=user("What is the capital of France? Answer in one sentence."),
                   temperature=0, max_tokens=32)
        whole = self.client.chat.completions.create(**ask).choices[0].message.content
        self.assertIn("Paris", whole)
        streamed = "".join(c.choices[0].delta.content or "" for c in
                           self.client.chat.completions.create(**ask, stream=True) if c.choices)
        self.assertEqual(streamed, whole)
        r = self.client.chat.completions.create(**ask, tools=TOOLS)  # a small model may or may not call
        self.assertIn(r.choices[0].finish_reason, ("stop", "length", "tool_calls"))


if __name__ == "__main__":
    unittest.main()
