"""test_install.py: what `cmake --install` leaves, and a program built against it."""
import os
import pathlib
import re
import shutil
import subprocess
import unittest

import cli

HEADER = cli.SOURCE / "include" / "edgeagent.h"


def call(*cmd, env=None):
    return subprocess.run(cmd, capture_output=True, text=True, timeout=300, check=True, env=env).stdout


class Install(cli.Case):
    def setUp(self):
        super().setUp()
        call("cmake", "--install", str(cli.BUILD), "--prefix", str(self.folder))

    def find(self, name):
        found = [p for p in self.folder.rglob(name) if p.is_file()]
        self.assertEqual(len(found), 1, f"{name}: {found}")
        return found[0]

    def test_files(self):
        version = subprocess.run([str(self.folder / "bin" / "edgeagent"), "--version"], capture_output=True, text=True,
                                 timeout=cli.TIMEOUT)
        self.assertRegex(version.stdout, r"^edgeagent \d")
        self.assertEqual((self.folder / "include" / "edgeagent.h").read_bytes(), HEADER.read_bytes())
        for part in ("share/bash-completion/completions/edgeagent", "share/zsh/site-functions/_edgeagent",
                     "share/fish/vendor_completions.d/edgeagent.fish", "share/man/man1/edgeagent.1"):
            self.assertGreater((self.folder / part).stat().st_size, 1000, part)

    def test_library_shows_the_header_and_nothing_else(self):
        library = next(p for p in self.folder.rglob("libedgeagent.so") if p.exists())
        listed = call("nm", "-D", "--defined-only", str(library)).splitlines()
        names = {line.split()[-1].split("@")[0] for line in listed}
        text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
        declared = {m.group(1) for part in text.split(";") if "EA_API" in part
                    for m in [re.search(r"\b(ea_[a-z0-9_]+)\s*\(", part[part.rindex("EA_API"):])] if m}
        self.assertGreater(len(declared), 30)
        if os.environ.get("EA_SANITIZE"):
            names = {n for n in names if n.startswith("ea_")}  # the sanitizer's own come along
        self.assertEqual(names, declared)

    def test_example_builds_and_runs(self):
        if os.environ.get("EA_SANITIZE"):
            self.skipTest("a sanitized library needs a sanitized program")
        for tool in ("pkg-config", "cc"):
            if not shutil.which(tool):
                self.skipTest(f"{tool} is not there")
        pc = self.find("edgeagent.pc")
        env = {**os.environ, "PKG_CONFIG_PATH": str(pc.parent)}
        flags = call("pkg-config", "--cflags", "--libs", "edgeagent", env=env).split()
        program = str(self.folder / "two_agents")
        call("cc", "-Wall", "-Werror", str(cli.SOURCE / "examples" / "two_agents.c"), "-o", program, *flags)
        env["LD_LIBRARY_PATH"] = str(pathlib.Path(pc).parents[1])
        usage = subprocess.run([program], capture_output=True, text=True, timeout=cli.TIMEOUT, env=env)
        self.assertEqual((usage.returncode, usage.stderr), (2, "usage: two_agents MODEL.gguf\n"))
        if not cli.STORIES.exists():
            self.skipTest(f"{cli.STORIES} is not there")
        result = subprocess.run([program, str(cli.STORIES)], capture_output=True, text=True, timeout=cli.TIMEOUT,
                                env=env)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertRegex(result.stdout, r"planner \(\d+ prompt tokens")
        self.assertRegex(result.stdout, r"critic \(\d+ prompt tokens, \d+ of them cached, \d+ generated\)")


if __name__ == "__main__":
    cli.main()
