"""test_demo.py: tools/demo against the real server and the small real model; skipped where that is not fetched."""
import os
import re
import signal
import subprocess
import sys
import time
import unittest

import cli

DEMO = str(cli.SOURCE / "tools" / "demo")
FOLDER = os.environ.get("EDGEAGENT_MODELS") or os.path.expanduser("~/.cache/edgeagent/models")
MODEL = os.path.join(FOLDER, "SmolLM2-135M-Instruct.Q4_1.gguf")


@unittest.skipUnless(os.path.exists(MODEL), f"{MODEL} is not there")
class Demo(cli.Case):
    def start(self, *args):
        return subprocess.Popen([sys.executable, DEMO, "--bin", cli.BIN, "--model", MODEL, *args],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=cli.environment())

    def servers(self):
        """Command lines of the demo's servers that still run."""
        found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
        return [line for line in found.splitlines() if line.startswith(f"{cli.BIN} serve") and "--alias demo" in line]

    def test_plays_to_its_end(self):
        process = self.start("--seconds", "2")
        out, err = process.communicate(timeout=280)
        self.assertEqual((process.returncode, err), (0, ""), out)
        for name in ("planner", "coder", "reader", "all"):
            self.assertRegex(out, rf"(?m)^{name} .* \d+% +\d+ +\d+\.\d$")
        cached, prompt = map(int, re.search(r"(\d+) of (\d+) prompt tokens were not computed again", out).groups())
        self.assertTrue(0 < cached < prompt, out)
        self.assertEqual(self.servers(), [])

    def test_an_interrupt_stops_the_server(self):
        process = self.start("--seconds", "60")
        self.assertIn("planner", process.stdout.readline())
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertIn("stopping the server", err)
        until = time.monotonic() + 10
        while self.servers() and time.monotonic() < until:
            time.sleep(0.1)
        self.assertEqual(self.servers(), [])


if __name__ == "__main__":
    cli.main()
