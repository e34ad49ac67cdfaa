"""cli.py: what the tests of the program share: finding it, running it, shared data.

EA_BINARY_DIR is the build folder, EA_SOURCE_DIR the source, EA_SHARED_DATA the third-party data (default: beside the
source). A program that ran no test at all exits 77, which ctest reports as skipped.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("EA_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
BUILD = pathlib.Path(os.environ.get("EA_BINARY_DIR", SOURCE / "build" / "release"))
BIN = str(BUILD / "edgeagent")
SHARED = pathlib.Path(os.environ.get("EA_SHARED_DATA", SOURCE.parent / "shared" / "data"))
STORIES = SHARED / "tiny" / "stories260K-f32.gguf"
TIMEOUT = 60  # of one run; sanitizers are slow, hangs are longer


def environment(extra=None):
    """The environment without our own variables, and with no configuration file of the user's."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("EDGEAGENT_")}
    env["XDG_CONFIG_HOME"] = "/nonexistent"
    env.update(extra or {})
    return env


def run(*args, env=None, text="", **options):
    """Run to the end; stdin is `text`. Returns the CompletedProcess with output as text."""
    return subprocess.run([BIN, *args], input=text, capture_output=True, text=True, errors="replace", timeout=TIMEOUT,
                          env=environment(env), **options)


def start(*args, env=None, **options):
    return subprocess.Popen([BIN, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env=environment(env), **options)


def options_table():
    """Rows of options.def: (id, [names], kind, meta, fallback, {commands}, help)."""
    text = re.sub(r"/\*.*?\*/", "", (SOURCE / "src/cli/options.def").read_text(), flags=re.S)
    rows = []
    pattern = (r'EA_OPTION\((\w+),\s*"([^"]*)",\s*(\w+),\s*"([^"]*)",\s*[^,]+,\s*[^,]+,\s*"([^"]*)",\s*([A-Z_ |\n]+?),'
               r'((?:\s*"(?:[^"\\]|\\.)*")+)\)')
    for id_, names, kind, meta, fallback, commands, help_ in re.findall(pattern, text):
        words = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', help_))
        rows.append((id_, names.split(","), kind, meta, fallback, set(re.split(r"[\s|]+", commands.strip())), words))
    if len(rows) != text.count("EA_OPTION("):
        raise AssertionError(f"{len(rows)} of {text.count('EA_OPTION(')} rows of options.def were understood")
    return rows


def commands_table():
    """{id: name} of commands.def; a name is one word or two."""
    text = (SOURCE / "src/cli/commands.def").read_text()
    return dict(re.findall(r'EA_COMMAND\((\w+),\s*"(\w+(?: \w+)?)",\s*\d', text))


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, text):
        path = self.folder / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    def assert_run(self, result, status, *parts):
        """Exit status and pieces of standard error."""
        self.assertEqual(result.returncode, status, f"stderr: {result.stderr}")
        for part in parts:
            self.assertIn(part, result.stderr)


class ModelCase(Case):
    """Needs stories260K."""

    @classmethod
    def setUpClass(cls):
        if not STORIES.exists():
            raise unittest.SkipTest(f"{STORIES} is not there")

    model = ("-m", str(STORIES))


def main():
    program = unittest.main(exit=False, verbosity=2)
    result = program.result
    if not result.wasSuccessful():
        sys.exit(1)
    # A class that is skipped as a whole counts no test but one skip.
    sys.exit(77 if result.testsRun <= len(result.skipped) else 0)
