"""test_options.py: option table, help, environment, configuration file, man page, completion. Needs no model."""
import shutil
import subprocess
import unittest

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
            for args in ((name, "--help"), ("help", name)):
                result = cli.run(*args)
                self.assert_run(result, 0)
                rows = [("  " + ", ".join(names) + (f" {meta}" if meta else ""), bool(used & {id_, "ALL"}))
                        for _, names, _, meta, _, used, _ in cli.options_table()]
                for line in {line for line, _ in rows}:
                    shown = any(x == line or x.startswith(line + " ") for x in result.stdout.splitlines())
                    self.assertEqual(shown, (line, True) in rows, f"{name}: {line}")

    def test_fits_the_page(self):
        for name in cli.commands_table().values():
            long = [x for x in cli.run(name, "--help").stdout.splitlines() if len(x) > 100]
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
            if id_ in ("HELP", "VERSION", "CONFIG") or kind in ("TEXT", "FILE", "TEXTS"):
                continue
            name = next(n for n in names if n.startswith("--"))
            variable = "EDGEAGENT_" + name[2:].replace("-", "_").upper()
            command = "run" if "ALL" in used else commands[sorted(used)[0]]
            with self.subTest(variable=variable):
                self.assert_run(cli.run(command, env={variable: "?"}), 2, f"{variable}: '?'")

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
            if id_ not in ("HELP", "VERSION"):
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
        path = self.write("model.gguf", "")
        self.assertEqual(self.complete("run", "-m", path[:-3]), [path])

    def test_completion_wants_a_shell(self):
        self.assert_run(cli.run("completion"), 2, "name a shell")
        self.assert_run(cli.run("completion", "csh"), 2, "'csh'")


class Doctor(cli.Case):
    def test_report(self):
        result = cli.run("doctor", env={"EA_CPU": "ref"})
        self.assert_run(result, 0)
        for part in ("processor", "memory", "limits", "kernels"):
            self.assertIn(part, result.stdout)
        self.assertRegex(result.stdout, r"(?m)^  levels usable +ref$")


if __name__ == "__main__":
    cli.main()
