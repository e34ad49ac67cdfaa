"""test_options.py: option table, help, environment, configuration file, man page, completion. Needs no model."""
import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import unittest
import xml.etree.ElementTree

import cli


class Help(cli.Case):
    def test_lists_every_command(self):
        result = cli.run("--help")
        self.assert_run(result, 0)
        for name in cli.commands_table().values():
            self.assertRegex(result.stdout, rf"(?m)^  {name} ")

    def test_lists_every_option_of_the_command_and_no_other(self):
        commands = cli.commands_table()
        for id_, name in commands.items():
            for args in ((*name.split(), "--help"), ("help", *name.split())):
                result = cli.run(*args)
                self.assert_run(result, 0)
                rows = [("  " + ", ".join(names) + (f" {meta}" if meta else ""), bool(used & {id_, "ALL"}))
                        for _, names, _, meta, _, used, _ in cli.options_table()]
                for line in {line for line, _ in rows}:
                    shown = any(x == line or x.startswith(line + " ") for x in result.stdout.splitlines())
                    self.assertEqual(shown, (line, True) in rows, f"{name}: {line}")

    def test_fits_the_page(self):
        for name in cli.commands_table().values():
            long = [x for x in cli.run(*name.split(), "--help").stdout.splitlines() if len(x) > 100]
            self.assertEqual(long, [])

    def test_version(self):
        for args in (["--version"], ["run", "--version"]):
            result = cli.run(*args)
            self.assert_run(result, 0)
            self.assertRegex(result.stdout, r"^edgeagent \d+\.\d+\.\d+\n$")

    def test_nothing_at_all_is_wrong_usage(self):
        self.assert_run(cli.run(), 2, "usage: edgeagent COMMAND")

    def test_help_works_with_a_broken_configuration(self):
        self.assert_run(cli.run("run", "--help", env={"EDGEAGENT_TEMP": "warm"}), 0)


class WrongUsage(cli.Case):
    def test_unknown_option_suggests_the_nearest(self):
        self.assert_run(cli.run("run", "--tmep", "1"), 2, "unknown option --tmep", "did you mean --temp?")
        self.assert_run(cli.run("serve", "--paralel=3"), 2, "--paralel", "did you mean --parallel?")
        self.assert_run(cli.run("run", "--qqqqqq"), 2, "unknown option --qqqqqq")
        self.assertNotIn("did you mean", cli.run("run", "--qqqqqq").stderr)

    def test_option_of_another_command(self):
        self.assert_run(cli.run("run", "--port", "80"), 2, "--port is an option of serve, not of run")

    def test_unknown_command(self):
        self.assert_run(cli.run("srve"), 2, "unknown command 'srve'", "did you mean serve?")

    def test_missing_value(self):
        self.assert_run(cli.run("run", "-n"), 2, "-n: a value is missing")

    def test_unexpected_word(self):
        self.assert_run(cli.run("run", "hello"), 2, "unexpected word 'hello'")
        self.assert_run(cli.run("bench", "steps"), 2, "edgeagent bench: unexpected word 'steps'")
        self.assert_run(cli.run("bench", "step", "kernels"), 2, "edgeagent bench step: unexpected word 'kernels'")
        self.assert_run(cli.run("help", "bench", "step", "by"), 2, "unexpected word 'by'")
        self.assert_run(cli.run("help", "bench", "stop"), 2, "there is no command 'bench stop'")

    def test_bad_values_name_option_value_and_range(self):
        for args, parts in ((("run", "--temp", "hot"), ("--temp", "'hot'", "a number from 0 to 100")),
                            (("run", "--temp", "nan"), ("--temp", "'nan'")),
                            (("run", "--top-p", "1.5"), ("--top-p", "'1.5'", "from 0 to 1")),
                            (("run", "-n", "12x"), ("-n", "'12x'", "an integer from -1")),
                            (("run", "-n", "99999999999999999999"), ("-n", "'99999999999999999999'")),
                            (("run", "-t", ""), ("-t", "''")),
                            (("serve", "--port", "70000"), ("--port", "'70000'", "from 0 to 65535")),
                            (("serve", "--tool-parse", "lax"), ("--tool-parse", "'lax'", "auto|strict")),
                            (("bench", "-p", "1,,2"), ("-p", "'1,,2'", "a list of integers")),
                            (("bench", "-p", "1-4+0"), ("-p", "'1-4+0'")),
                            (("bench", "-p", "1-4*1"), ("-p", "'1-4*1'")),
                            (("bench", "-p", "0-1000000"), ("-p", "'0-1000000'")),
                            (("bench", "-o", "xml"), ("-o", "'xml'", "md|json|jsonl|csv"))):
            with self.subTest(args=args):
                self.assert_run(cli.run(*args), 2, *parts)

    def test_no_model(self):
        self.assert_run(cli.run("run", "-p", "hi"), 2, "no model", "EDGEAGENT_MODEL")

    def test_prompt_twice(self):
        self.assert_run(cli.run("run", "-m", "x", "-p", "hi", "-f", "y"), 2, "-p or -f, not both")

    def test_empty_prompt(self):
        for args, text in ((("-p", ""), ""), (("-p", " \n"), ""), ((), "\n"), (("-f", "/dev/null"), "")):
            with self.subTest(args=args):
                self.assert_run(cli.run("run", "-m", "x", *args, text=text), 2, "the prompt is empty")

    def test_messages_cannot_drive_the_terminal(self):
        result = cli.run("run", "--x\x1b[31m")
        self.assertEqual(result.returncode, 2)
        self.assertNotIn("\x1b", result.stderr)


class Sources(cli.Case):
    """Which of several values counts is seen by which of them is refused."""

    def refused(self, env=None, config=None, args=()):
        words = list(args)
        if config is not None:
            words += ["--config", self.write("config", config)]
        return cli.run("run", "-p", "hi", *words, env=env)

    def test_environment(self):
        self.assert_run(self.refused({"EDGEAGENT_TOP_K": "-4"}), 2, "EDGEAGENT_TOP_K: '-4'")

    def test_every_option_has_its_variable(self):
        commands = cli.commands_table()
        for id_, names, kind, *_, used, _ in cli.options_table():
            if id_ in ("HELP", "VERSION", "CONFIG", "JSON", "NO_MEASURE") or kind in ("TEXT", "FILE", "TEXTS"):
                continue
            name = next(n for n in names if n.startswith("--"))
            variable = "EDGEAGENT_" + name[2:].replace("-", "_").upper()
            command = "run" if "ALL" in used else commands[sorted(used)[0]]
            with self.subTest(variable=variable):
                self.assert_run(cli.run(*command.split(), env={variable: "?"}), 2, f"{variable}: '?'")

    def test_config_file(self):
        result = self.refused(config="# a comment\n\ntop-k = 5\ntemp = hot # why not\n")
        self.assert_run(result, 2, "config:4: temp: 'hot'")

    def test_config_file_in_its_default_place(self):
        folder = self.folder / "edgeagent"
        folder.mkdir()
        (folder / "config").write_text("temp = hot\n")
        env = {"XDG_CONFIG_HOME": str(self.folder)}
        self.assert_run(self.refused(env), 2, "config:1: temp: 'hot'")
        self.assert_run(self.refused({"HOME": str(self.folder), **env}), 2, "config:1: temp")

    def test_config_flags(self):
        self.assert_run(self.refused(config="ignore-eos = on\nverbose = false\n"), 2, "no model")
        self.assert_run(self.refused(config="ignore-eos = maybe\n"), 2, "ignore-eos: 'maybe' is not on or off")

    def test_unknown_key(self):
        self.assert_run(self.refused(config="tmep = 1\n"), 2, "config:1: unknown key 'tmep'", "did you mean temp?")

    def test_line_without_equals_sign(self):
        self.assert_run(self.refused(config="temp 1\n"), 2, "config:1", "key = value")

    def test_keys_of_other_commands_are_fine(self):
        self.assert_run(self.refused(config="port = 99\n"), 2, "no model")

    def test_missing_config_file(self):
        self.assert_run(cli.run("run", "-p", "hi", "--config", "/nonexistent/config"), 1, "/nonexistent/config")

    def test_config_named_by_the_environment(self):
        path = self.write("other", "temp = hot\n")
        self.assert_run(self.refused({"EDGEAGENT_CONFIG": path}), 2, "other:1: temp: 'hot'")

    def test_precedence(self):
        bad = {"EDGEAGENT_TEMP": "from-environment"}
        self.assert_run(self.refused(bad, "temp = from-file\n", ("--temp", "1")), 2, "no model")
        self.assert_run(self.refused(bad, "temp = from-file\n"), 2, "from-environment")
        self.assert_run(self.refused({"EDGEAGENT_TEMP": "1"}, "temp = from-file\n"), 2, "no model")
        self.assert_run(self.refused(None, "temp = from-file\n"), 2, "from-file")


class Generated(cli.Case):
    def test_man_page_names_everything(self):
        page = cli.run("man")
        self.assert_run(page, 0)
        plain = page.stdout.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "").replace("\\fI", "")
        for id_, names, kind, *_ in cli.options_table():
            self.assertIn(".TP\n" + ", ".join(names), plain)
            if id_ not in ("HELP", "VERSION", "JSON", "NO_MEASURE"):
                name = next(n for n in names if n.startswith("--"))
                self.assertIn(f"EDGEAGENT_{name[2:].replace('-', '_').upper()}.", plain)
        for name in cli.commands_table().values():
            self.assertIn(f".SS {name}\n", plain)

    def test_man_page_is_clean_roff(self):
        page = self.write("edgeagent.1", cli.run("man").stdout)
        if shutil.which("groff"):
            cmd = ["groff", "-man", "-ww", "-Tutf8", "-K", "utf8", page]
        elif shutil.which("man"):
            cmd = ["man", "--warnings", "-l", page]
        else:
            self.skipTest("neither groff nor man is there")
        result = subprocess.run(cmd, capture_output=True, text=True, timeout=cli.TIMEOUT)
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_completion_scripts_parse(self):
        for shell in ("bash", "zsh", "fish"):
            with self.subTest(shell=shell):
                result = cli.run("completion", shell)
                self.assert_run(result, 0)
                if not shutil.which(shell):
                    self.skipTest(f"{shell} is not there")
                script = self.write(shell, result.stdout)
                check = subprocess.run([shell, "-n", script], capture_output=True, text=True, timeout=cli.TIMEOUT)
                self.assertEqual((check.returncode, check.stderr), (0, ""))

    def complete(self, *words):
        script = self.write("completion", cli.run("completion", "bash").stdout)
        code = ('. "$1"; shift; compopt() { :; }; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _edgeagent; '
                'printf "%s\\n" "${COMPREPLY[@]}"')
        result = subprocess.run(["bash", "-c", code, "bash", script, "edgeagent", *words], capture_output=True,
                                text=True, timeout=cli.TIMEOUT)
        self.assertEqual(result.stderr, "")
        return result.stdout.split()

    def test_bash_completes(self):
        self.assertEqual(self.complete("ru"), ["run"])
        self.assertEqual(self.complete("run", "--te"), ["--temp", "--temperature"])
        self.assertEqual(self.complete("bench", "-o", "j"), ["json", "jsonl"])
        self.assertEqual(self.complete("completion", "z"), ["zsh"])
        self.assertEqual(self.complete("serve", "--port", ""), [])
        self.assertEqual(self.complete("be"), ["bench"])
        self.assertEqual(self.complete("bench", "ker"), ["kernels"])
        self.assertEqual(self.complete("bench", "step", "--sv"), ["--svg"])
        self.assertEqual(self.complete("bench", "kernels", "--sha"), ["--shape"])
        self.assertEqual(self.complete("bench", "--sv"), [])
        path = self.write("model.gguf", "")
        self.assertEqual(self.complete("run", "-m", path[:-3]), [path])

    def test_completion_wants_a_shell(self):
        self.assert_run(cli.run("completion"), 2, "name a shell")
        self.assert_run(cli.run("completion", "csh"), 2, "'csh'")


class Doctor(cli.Case):
    def report(self, *args, env=None):
        result = cli.run("doctor", "--json", *args, env=env)
        self.assert_run(result, 0)
        return json.loads(result.stdout)

    def test_text(self):
        result = cli.run("doctor", "--no-measure", env={"EA_CPU": "ref"})
        self.assert_run(result, 0)
        for part in ("processor", "memory", "limits of the process", "kernels", "measured\n  nothing", "what to fix"):
            self.assertIn("\n\n" + part + "\n", result.stdout)
        self.assertRegex(result.stdout, r"(?m)^  levels usable +ref$")
        self.assertRegex(result.stdout, r"(?m)^  matmul Q4_K +ref$")
        self.assertRegex(result.stdout, r"(?m)^  - EA_CPU=ref masks every instruction-set level above that one")

    def test_measured(self):
        report = self.report()
        measured = report["measured"]
        self.assertEqual(measured["threads"], [1, report["processor"]["default_threads"]])
        for key in ("read_bytes_s", "int8_macs_s", "f32_macs_s"):
            self.assertEqual(len(measured[key]), 2)
            self.assertGreater(min(measured[key]), 0)
        text = cli.run("doctor")
        self.assert_run(text, 0)
        self.assertRegex(text.stdout, r"(?m)^  memory read +[\d.]+ +[\d.]+ +GB/s$")

    def test_mask(self):
        report = self.report("--no-measure", env={"EA_CPU": "ref"})
        self.assertIsNone(report["measured"])
        self.assertEqual([k for k, v in report["processor"]["levels"].items() if v], ["ref"])
        self.assertEqual({k["level"] for k in report["kernels"]}, {"ref"})
        self.assertTrue([x for x in report["fix"] if "EA_CPU=ref" in x])

    def test_unknown_mask(self):
        report = self.report("--no-measure", env={"EA_CPU": "sse9"})
        self.assertTrue([x for x in report["fix"] if "EA_CPU=sse9 names no level" in x])
        self.assertEqual(report["processor"]["mask"], "sse9")

    def test_agrees_with_the_system(self):
        report = self.report("--no-measure")
        processor = report["processor"]
        self.assertEqual(processor["logical_allowed"], len(os.sched_getaffinity(0)))
        self.assertEqual(report["limits"]["open_files"], resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        info = pathlib.Path("/proc/cpuinfo").read_text()
        flags = re.search(r"(?m)^flags\s*: (.*)$", info)
        if flags:
            flags = flags[1].split()
            for name, present in processor["features"].items():
                if present != (name in flags):  # Linux hides what it does not let programs use
                    self.assertTrue(present, name)

    def test_limits_show(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

        result = cli.run("doctor", "--json", "--no-measure", preexec_fn=limit)
        self.assert_run(result, 0)
        report = json.loads(result.stdout)
        self.assertEqual(report["limits"]["open_files"], 200)
        self.assertTrue([x for x in report["fix"] if "only 200 files" in x])

    def test_works_with_a_broken_configuration(self):
        env = {"XDG_CONFIG_HOME": str(self.folder), "EDGEAGENT_TEMP": "warm"}
        (self.folder / "edgeagent").mkdir()
        (self.folder / "edgeagent" / "config").write_text("nonsense\n")
        self.assert_run(cli.run("doctor", "--no-measure", env=env), 0)


class BenchKernels(cli.Case):
    few = ("--memory", "8", "--seconds", "0.000001")

    def test_json(self):
        result = cli.run("bench", "kernels", *self.few, "-f", "q4_K,F32", "-f", "Q8_0", "--rows", "1,3", "--shape",
                         "48x512,16x256", "-t", "1,2", "-o", "json")
        self.assert_run(result, 0)
        rows = json.loads(result.stdout)
        self.assertEqual([(r["n_threads"], r["format"], r["n"], r["k"], r["rows"]) for r in rows],
                         [(t, f, n, k, r) for t in (1, 2) for f in ("F32", "Q8_0", "Q4_K")
                          for n, k in ((48, 512), (16, 256)) for r in (1, 3)])
        for row in rows:
            for key in ("ms", "gb_s", "gmac_s", "share", "machine_gb_s", "machine_gmac_s"):
                self.assertGreaterEqual(row[key], 0)
            self.assertIn(row["bound"], ("memory", "arithmetic"))

    def test_levels(self):
        result = cli.run("bench", "kernels", *self.few, "-f", "Q4_0", "--rows", "1", "--shape", "16x256", "-l", "all",
                         "-t", "1", "-o", "jsonl", env={"EA_CPU": "avx2"})
        self.assert_run(result, 0)
        levels = [json.loads(line)["level"] for line in result.stdout.splitlines()]
        self.assertEqual(levels[0], "ref")
        self.assertLessEqual(set(levels), {"ref", "avx2"})
        masked = cli.run("bench", "kernels", *self.few, "-f", "Q4_0", "-l", "avx2", env={"EA_CPU": "ref"})
        self.assert_run(masked, 1, "this machine has none of these kernels")

    def test_table_and_csv(self):
        args = ("bench", "kernels", *self.few, "-f", "Q4_1", "--rows", "1-2", "--shape", "16x256", "-t", "1", "-o")
        *table, blank, limits = cli.run(*args, "md").stdout.splitlines()
        self.assertEqual((len(table), blank), (4, ""))
        self.assertRegex(limits, r"^Measured with 1 thread: memory [\d.]+ GB/s, \w+ int8 [\d.]+ GMAC/s$")
        self.assertEqual({line.count("|") for line in table}, {11})
        self.assertEqual({len(line) for line in table}, {len(table[0])})
        head, first, _ = cli.run(*args, "csv").stdout.splitlines()
        self.assertEqual(len(head.split(",")), len(re.findall(r'"[^"]*"', first)))

    def test_wrong_values_are_named(self):
        for args, part in ((("-f", "Q9"), "-f: 'Q9'"), (("-f", "Q4_K,"), "-f: ''"), (("-l", "sse9"), "-l: 'sse9'"),
                           (("--shape", "16"), "--shape: '16'"), (("--shape", "16x256,0x256"), "--shape: '0x256'"),
                           (("--rows", "0"), "--rows: '0'"), (("--rows", "513"), "--rows: '513'"),
                           (("-f", "Q4_K", "--shape", "16x32"), "k: 32"), (("--memory", "1"), "n_bytes")):
            with self.subTest(args=args):
                self.assert_run(cli.run("bench", "kernels", *self.few, *args), 2, part)


class BenchStep(cli.Case):
    model = ("--synthetic", "layers=2,embd=64,ff=128,heads=4,kv=2,vocab=300:Q8_0")

    def test_json(self):
        result = cli.run("bench", "step", *self.model, "--rows", "5,1-3,2", "-d", "40", "-r", "3", "-t", "2", "-o",
                         "json")
        self.assert_run(result, 0)
        rows = json.loads(result.stdout)
        self.assertEqual([r["rows"] for r in rows], [1, 2, 3, 5])
        for row in rows:
            self.assertEqual((row["n_threads"], row["n_depth"], row["n_steps"]), (2, 40, 3))
            self.assertGreaterEqual(row["ms"], row["least_ms"])
            self.assertGreater(row["least_ms"], 0)
            self.assertAlmostEqual(row["ratio"], row["ms"] / rows[0]["ms"], delta=0.02 * row["ratio"])
            self.assertAlmostEqual(row["tokens_s"] * row["ms"], 1000 * row["rows"], delta=20 * row["rows"])

    def test_picture(self):
        path = self.folder / "step.svg"
        result = cli.run("bench", "step", *self.model, "--rows", "1,2,4", "-r", "2", "-t", "1", "--svg", str(path))
        self.assert_run(result, 0)
        self.assertEqual(len(result.stdout.splitlines()), 5)
        root = xml.etree.ElementTree.parse(path).getroot()
        svg = "{http://www.w3.org/2000/svg}"
        self.assertEqual(root.tag, svg + "svg")
        self.assertEqual(len(root.findall(svg + "circle")), 2 * 3)
        texts = [x.text for x in root.findall(svg + "text")]
        self.assertTrue([x for x in texts if "one step of n sequences" in x])
        self.assertTrue([x for x in texts if "1 thread;" in x])

    def test_picture_that_cannot_be_written(self):
        result = cli.run("bench", "step", *self.model, "--rows", "1", "-r", "1", "--svg", "/nonexistent/step.svg")
        self.assert_run(result, 1, "--svg", "/nonexistent/step.svg")

    def test_no_model(self):
        self.assert_run(cli.run("bench", "step"), 2, "edgeagent bench step: no model")

    def test_too_much(self):
        self.assert_run(cli.run("bench", "step", *self.model, "--rows", "256", "-d", "16000000"), 2, "256 sequences")


if __name__ == "__main__":
    cli.main()
