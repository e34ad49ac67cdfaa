"""test_load.py: what a user sees of loading: the progress line of a terminal, and how it is stopped."""
import os
import pty
import re
import select
import signal
import subprocess
import unittest

import cli

# 90 MB of weights: enough for many steps of progress, made and loaded in a fraction of a second.
MODEL = ("--synthetic", "layers=16,embd=1024,ff=2816,heads=8,kv=4,vocab=2000:Q4_K")


class Terminal(cli.Case):
    def start(self, *args):
        """The process, and our end of the terminal that its standard error is."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen([cli.BIN, "bench", *MODEL, "-p", "1", "-n", "0", "-r", "1", "-t", "1", *args],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs,
                                   env=cli.environment())
        os.close(theirs)
        self.addCleanup(os.close, ours)
        return process, ours

    def read(self, ours):
        """What came, or b"" at the end."""
        ready, _, _ = select.select([ours], [], [], cli.TIMEOUT)
        try:
            return os.read(ours, 4096) if ready else b""
        except OSError:  # the other side is closed
            return b""

    def test_progress_line(self):
        process, ours = self.start()
        text = b"".join(iter(lambda: self.read(ours), b"")).decode()
        self.assertEqual(process.wait(cli.TIMEOUT), 0)
        shown = [int(p) for p in re.findall(r"\rloading +(\d+) %", text)]
        self.assertGreater(len(shown), 10, text)
        self.assertEqual(shown, sorted(set(shown)))
        self.assertEqual(shown[-1], 100)
        self.assertRegex(text, r"100 %\r +\r")  # the line is taken away again

    def test_interrupt_while_loading(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            process, ours = self.start("-r", "1000")
            text = b""
            while b"loading" not in text:
                part = self.read(ours)
                self.assertTrue(part, text)
                text += part
            process.send_signal(number)
            while self.read(ours):
                pass
            self.assertEqual(process.wait(cli.TIMEOUT), 128 + number)

    def test_no_progress_line_in_a_file(self):
        result = cli.run("bench", *MODEL, "-p", "1", "-n", "0", "-r", "1", "-t", "2")
        self.assert_run(result, 0)
        self.assertNotIn("loading", result.stderr)


if __name__ == "__main__":
    cli.main()
