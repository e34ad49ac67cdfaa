"""test_model.py: the commands on a real, tiny model (stories260K) and on files that are none."""
import json
import os
import pty
import re
import select
import signal
import socket
import statistics
import subprocess
import time
import unittest
import urllib.request

import cli

GREEDY = ("--temp", "0", "-t", "2", "-c", "512")


def golden():
    lines = (cli.SHARED / "tiny" / "stories260K-golden.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if "greedy_ids" in line]


class Run(cli.ModelCase):
    def test_greedy_text_is_the_golden_one(self):
        for case in golden():
            if not case["prompt"]:
                continue
            with self.subTest(prompt=case["prompt"]):
                # One newline at the end is dropped, as with any text file; a second one stays.
                text = case["prompt"] + ("\n" if case["prompt"].endswith("\n") else "")
                result = cli.run("run", *self.model, *GREEDY, "-n", str(len(case["greedy_ids"])), text=text)
                self.assert_run(result, 0, "tokens/s", "load", "no chat template")
                self.assertEqual(result.stdout, case["greedy_text"])

    def test_prompt_from_option_file_and_standard_input(self):
        path = self.write("prompt", "Once upon a time\n")
        args = ("run", *self.model, *GREEDY, "-n", "8")
        texts = {cli.run(*args, "-p", "Once upon a time").stdout, cli.run(*args, "-f", path).stdout,
                 cli.run(*args, text="Once upon a time").stdout,
                 cli.run(*args, "-f", "-", text="Once upon a time\n").stdout}
        self.assertEqual(texts, {", there was a little girl"})

    def tokens(self, *args, env=None, config=None):
        words = ["--config", self.write("config", config)] if config else []
        result = cli.run("run", *self.model, *GREEDY, "-p", "Once", *words, *args, env=env)
        self.assert_run(result, 0)
        return int(re.search(r"generated +(\d+) tokens", result.stderr).group(1))

    def test_number_of_tokens_and_its_sources(self):
        env = {"EDGEAGENT_N_PREDICT": "3"}
        self.assertEqual(self.tokens("-n", "2", env=env, config="n-predict = 4\n"), 2)
        self.assertEqual(self.tokens(env=env, config="n-predict = 4\n"), 3)
        self.assertEqual(self.tokens(config="n-predict = 4\n"), 4)

    def test_stop(self):
        result = cli.run("run", *self.model, *GREEDY, "-n", "60", "-p", "Once upon a time", "--stop", "park",
                         "--stop", "named Lily")
        self.assert_run(result, 0, "(stop)")
        self.assertEqual(result.stdout, ", there was a little girl ")

    def test_seed_repeats(self):
        args = ("run", *self.model, "-c", "512", "-n", "30", "-p", "Once", "--temp", "1.2")
        first, again = cli.run(*args, "-s", "5"), cli.run(*args, "-s", "5", "-t", "1")
        self.assert_run(first, 0, "seed 5")
        self.assertEqual(first.stdout, again.stdout)

    def test_prompt_too_long(self):
        result = cli.run("run", *self.model, "-c", "512", text="word " * 2000)
        self.assert_run(result, 1, "512")

    def test_end_of_a_reader_is_a_clean_end(self):
        process = cli.start("run", *self.model, *GREEDY, "-p", "Once upon a time", "--ignore-eos")
        self.assertEqual(len(os.read(process.stdout.fileno(), 1)), 1)
        process.stdout.close()
        self.assertEqual(process.wait(cli.TIMEOUT), 0)
        self.assertNotIn(b"Broken pipe", process.stderr.read())
        process.stderr.close()

    def test_signals_end_it_with_figures(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(signal=number):
                # Nobody reads standard output: the answer fills the pipe at most, the signal must get through.
                process = cli.start("run", *self.model, "-c", "512", "-p", "Once upon a time", "--ignore-eos")
                os.read(process.stdout.fileno(), 1)
                process.send_signal(number)
                out, err = process.communicate(timeout=cli.TIMEOUT)
                # The tiny model may be done before the signal arrives.
                self.assertIn(process.returncode, (128 + number, 0))
                self.assertIn(b"tokens/s", err)

    def test_text_cannot_drive_a_terminal(self):
        text = self.terminal("-p", "Once upon a time", "-n", "20", *GREEDY)
        self.assertIn("there was", text)
        self.assertNotRegex(text, r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

    def terminal(self, *args):
        """Standard output as a terminal gets it."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen([cli.BIN, "run", *self.model, *args], stdin=subprocess.DEVNULL, stdout=theirs,
                                   stderr=subprocess.DEVNULL, env=cli.environment())
        os.close(theirs)
        data = b""
        while True:
            ready, _, _ = select.select([ours], [], [], cli.TIMEOUT)
            try:
                part = os.read(ours, 4096) if ready else b""
            except OSError:  # the other side is closed
                part = b""
            if not part:
                break
            data += part
        os.close(ours)
        self.assertEqual(process.wait(cli.TIMEOUT), 0)
        return data.decode("utf-8", "replace")


class BadFiles(cli.ModelCase):
    def test_missing_file(self):
        for command in ("run", "serve", "bench", "tokenize", "perplexity"):
            with self.subTest(command=command):
                result = cli.run(command, "-m", "/nonexistent/model.gguf", text="hi")
                self.assert_run(result, 1, "/nonexistent/model.gguf")

    def test_truncated_file(self):
        whole = cli.STORIES.read_bytes()
        for n in (0, 10, 4000, len(whole) // 2, len(whole) - 1):
            with self.subTest(bytes=n):
                path = self.write("cut.gguf", whole[:n])
                self.assert_run(cli.run("run", "-m", path, "-p", "hi"), 1, path)

    def test_not_a_model(self):
        path = self.write("text.gguf", "once upon a time\n" * 100)
        self.assert_run(cli.run("run", "-m", path, "-p", "hi"), 1, path)
        self.assert_run(cli.run("run", "-m", str(self.folder), "-p", "hi"), 1, str(self.folder))


class Bench(cli.ModelCase):
    def test_json(self):
        result = cli.run("bench", *self.model, "-p", "32,64", "-n", "8", "-pg", "16,4", "-d", "0,100", "-t", "2", "-r",
                         "2", "-o", "json")
        self.assert_run(result, 0)
        rows = json.loads(result.stdout)
        self.assertEqual([(r["n_prompt"], r["n_gen"], r["n_depth"]) for r in rows],
                         [(p, n, d) for d in (0, 100) for p, n in ((32, 0), (64, 0), (0, 8), (16, 4))])
        for row in rows:
            self.assertEqual(len(row["samples_ts"]), 2)
            self.assertEqual(row["n_threads"], 2)
            self.assertGreater(row["avg_ts"], 0)
            self.assertGreaterEqual(row["stddev_ts"], 0)
            count = row["n_prompt"] + row["n_gen"]
            for ns, rate in zip(row["samples_ns"], row["samples_ts"]):
                # Random tokens may be cached by chance, where there are only 512 to choose from.
                self.assertTrue(count - 8.5 < rate * ns / 1e9 < count + 0.5, (count, ns, rate))
            for key in ("model_type", "model_filename", "model_size", "model_n_params", "n_batch", "test_time",
                        "stddev_ns", "samples_ns"):
                self.assertIn(key, row)

    def test_other_formats(self):
        args = ("bench", *self.model, "-p", "16", "-n", "4", "-r", "1", "-o")
        table = cli.run(*args, "md").stdout.splitlines()
        self.assertEqual(len(table), 4)
        self.assertRegex(table[0], r"^\| model +\| +size \| +params \| backend +\| threads \| +test \| +t/s \|$")
        self.assertRegex(table[2], r" pp16 \| +[\d.]+ ± 0.00 \|$")
        self.assertEqual([json.loads(x)["n_gen"] for x in cli.run(*args, "jsonl").stdout.splitlines()], [0, 4])
        head, first, _ = cli.run(*args, "csv").stdout.splitlines()
        self.assertEqual(len(head.split(",")), len(re.findall(r'"[^"]*"', first)))

    def test_batched(self):
        result = cli.run("bench", *self.model, "-t", "2", "--npp", "20", "--ntg", "6", "--npl", "1,2,5", "-o", "json")
        self.assert_run(result, 0)
        rows = json.loads(result.stdout)
        self.assertEqual([(r["pp"], r["tg"], r["pl"], r["n_kv"]) for r in rows],
                         [(20, 6, 1, 26), (20, 6, 2, 52), (20, 6, 5, 130)])
        for row in rows:
            for key in ("t_pp", "speed_pp", "t_tg", "speed_tg", "t", "speed"):
                self.assertGreater(row[key], 0)
            self.assertAlmostEqual(row["speed_tg"] * row["t_tg"], row["pl"] * row["tg"], delta=0.1)

    def test_batched_repeated(self):
        args = ("bench", *self.model, "-t", "2", "--npp", "20", "--ntg", "6", "--npl", "1,3", "-r", "4")
        result = cli.run(*args, "-o", "json")
        self.assert_run(result, 0)
        rows = json.loads(result.stdout)
        self.assertEqual([r["pl"] for r in rows], [1, 3])
        for row in rows:
            self.assertEqual(row["n_samples"], 4)
            for name in ("speed_pp", "speed_tg"):
                samples = row[f"samples_{name}"]
                self.assertEqual(len(samples), 4)
                self.assertAlmostEqual(row[name], statistics.mean(samples), delta=0.01)
                self.assertAlmostEqual(row[f"stddev_{name}"], statistics.stdev(samples), delta=0.01)
        table = cli.run(*args).stdout.splitlines()
        self.assertEqual(len(table), 4)
        self.assertEqual(table[2].count(" ± "), 3)

    def test_batched_runs_once_by_itself(self):
        result = cli.run("bench", *self.model, "--npp", "20", "--ntg", "6", "--npl", "1", "-o", "json")
        self.assert_run(result, 0)
        self.assertEqual([(r["n_samples"], r["stddev_speed_tg"]) for r in json.loads(result.stdout)], [(1, 0)])

    def test_batched_needs_all_three(self):
        self.assert_run(cli.run("bench", *self.model, "--npp", "20"), 2, "--npp, --ntg and --npl")

    def test_bad_pair(self):
        self.assert_run(cli.run("bench", *self.model, "-pg", "5"), 2, "-pg: '5'")

    def test_synthetic(self):
        spec = "layers=2,embd=64,ff=128,heads=4,kv=2,vocab=300:Q8_0"
        result = cli.run("bench", "--synthetic", spec, "-p", "16", "-n", "4", "-r", "1", "-o", "json")
        self.assert_run(result, 0)
        self.assertEqual(len(json.loads(result.stdout)), 2)
        self.assert_run(cli.run("bench", "--synthetic", "nosuch:Q4_K"), 2, "nosuch")


class Tokenize(cli.ModelCase):
    def test_ids_are_the_golden_ones(self):
        for case in golden():
            text = case["prompt"]
            with self.subTest(prompt=text):
                result = cli.run("tokenize", *self.model, "--ids", "-p", text)
                self.assert_run(result, 0)
                self.assertEqual(json.loads(result.stdout), case["prompt_ids"])

    def test_options(self):
        args = ("tokenize", *self.model, "-p", "Once upon a time")
        result = cli.run(*args, "--no-bos", "--show-count")
        self.assertEqual(result.stdout.splitlines()[-1], "Total number of tokens: 4")
        self.assertEqual(len(result.stdout.splitlines()), 5)
        self.assertRegex(result.stdout, r"^ *403 -> ' Once'\n")
        special = cli.run("tokenize", *self.model, "--ids", "-p", "<s>", "--no-bos").stdout
        plain = cli.run("tokenize", *self.model, "--ids", "-p", "<s>", "--no-bos", "--no-parse-special").stdout
        self.assertNotEqual(special, plain)


class Perplexity(cli.ModelCase):
    def test_value(self):
        text = " ".join(case["prompt"] + case["greedy_text"] for case in golden()) * 2
        path = self.write("text", text)
        result = cli.run("perplexity", *self.model, "-f", path, "-c", "64")
        self.assert_run(result, 0, "n_ctx=64")
        found = re.search(r"^Final estimate: PPL = ([\d.]+) \+/- ([\d.]+)$", result.stdout, re.M)
        running = re.findall(r"\[(\d+)\]([\d.]+),", result.stdout)
        self.assertEqual(running[-1][1], found.group(1))
        # The model's own stories: hardly a surprise in them, and never fewer than one choice.
        self.assertTrue(1 <= float(found.group(1)) < 5, found.group(0))
        two = cli.run("perplexity", *self.model, "-f", path, "-c", "64", "--chunks", "2", "-t", "1")
        self.assertEqual(re.findall(r"\[(\d+)\]([\d.]+),", two.stdout), running[:2])

    def test_text_too_short(self):
        self.assert_run(cli.run("perplexity", *self.model, text="Once"), 1, "1024 are needed")


class Serve(cli.ModelCase):
    def server(self, *args):
        process = cli.start("serve", *self.model, "-c", "1024", *args)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        line = process.stdout.readline().decode()
        found = re.match(r"listening on (http://127\.0\.0\.1:(\d+))\n$", line)
        self.assertTrue(found, line)
        return process, found.group(1), int(found.group(2))

    def test_serves_until_a_signal(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(signal=number):
                process, url, _ = self.server("--port", "0", "-a", "tiny")
                with urllib.request.urlopen(url + "/v1/models", timeout=cli.TIMEOUT) as answer:
                    self.assertEqual(json.load(answer)["data"][0]["id"], "tiny")
                process.send_signal(number)
                self.assertEqual(process.wait(cli.TIMEOUT), 0)

    def test_a_signal_ends_open_streams(self):
        process, url, port = self.server("--port", "0")
        body = json.dumps({"prompt": "Once", "stream": True, "max_tokens": 400, "ignore_eos": True}).encode()
        with socket.create_connection(("127.0.0.1", port), timeout=cli.TIMEOUT) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                               b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            self.assertTrue(connection.recv(100))
            start = time.monotonic()
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(cli.TIMEOUT), 0)
            # A second is promised; sanitizers and busy machines get more before it counts as a hang.
            self.assertLess(time.monotonic() - start, 10)

    def test_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            result = cli.run("serve", *self.model, "-c", "1024", "--port", port)
            self.assert_run(result, 1, port)
            self.assertEqual(result.stdout, "")


if __name__ == "__main__":
    cli.main()
