#!/usr/bin/env python3
"""perplexity.py EDGEAGENT NAME MODEL-FILE: perplexity over 20,000 bytes of text within 0.5 % of llama-perplexity's.

The text is the beginning of the gsm8k workload (questions and reference answers), put together the same way that it
was for the recorded figures:  llama-perplexity -m MODEL -f TEXT -c 512
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

RECORDED = {"smollm2": 4.4348, "coder-0.5b": 3.6902, "coder-1.5b": 2.9349}
SKIPPED = 77


def text(path):
    out = ""
    with open(path, encoding="utf-8") as f:
        for line in f:
            row = json.loads(line)
            out += row["messages"][-1]["content"] + "\n" + str(row.get("reference", "")) + "\n\n"
    return out.encode()[:20000].decode(errors="ignore")


def main():
    binary, name, file = sys.argv[1:4]
    models = pathlib.Path(os.environ.get("EDGEAGENT_MODELS") or pathlib.Path.home() / ".cache/edgeagent/models")
    source = pathlib.Path(os.environ.get("EA_SOURCE_DIR", "."))
    data = pathlib.Path(os.environ.get("EA_SHARED_DATA") or source / "../shared/data")
    workload = data / "workload/reasoning_gsm8k.jsonl"
    for path in (models / file, workload):
        if not path.exists():
            print(f"SKIPPED: {path} is not there")
            return SKIPPED
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as f:
        f.write(text(workload))
        f.flush()
        r = subprocess.run([binary, "perplexity", "-m", str(models / file), "-f", f.name, "-c", "512"],
                           capture_output=True, text=True)
    m = re.search(r"PPL = ([0-9.]+)", r.stdout + r.stderr)
    if r.returncode or not m:
        print(f"exit {r.returncode}: {r.stderr[-500:]}")
        return 1
    got, want = float(m.group(1)), RECORDED[name]
    off = got / want - 1
    print(f"{name}: perplexity {got:.4f}, llama-perplexity {want:.4f}: {100 * off:+.2f} %")
    return 0 if abs(off) <= 0.005 else 1


if __name__ == "__main__":
    sys.exit(main())
