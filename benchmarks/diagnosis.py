"""Checks `autotune diagnose` on workloads whose limit is known.

    python benchmarks/diagnosis.py
    python benchmarks/diagnosis.py launches host_sync --fix precision=bf16

The workloads in `bound/` are each made to be limited by one cause, and are larger where there is a
GPU. The exit code is 1 if any diagnosis is wrong.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
BOUND = REPOSITORY / "benchmarks" / "bound"
BOUNDS = ("data", "launches", "arithmetic", "memory_bandwidth")
HELP = "of a file in bound/; default: all"
FINDINGS = {
    "host_sync": "host_sync",
    "graph_break": "graph_break",
    "vocabulary": "shape",
    "attention": "attention",
}


def main():
    args = parse_args()
    rows = [row(name, diagnose(name, args)) for name in args.names]
    print("| made to be | told | right | evidence | shares of a step | MFU |")
    print("|---|---|---|---|---|---|")
    for cells in rows:
        print("| " + " | ".join(cells) + " |")
    sys.exit(any("no" in cells for cells in rows))


def parse_args():
    parser = argparse.ArgumentParser()
    everything = [*BOUNDS, *FINDINGS]
    parser.add_argument("names", nargs="*", default=everything, metavar="NAME", help=HELP)
    parser.add_argument("--fix", action="append", default=[], help="knob=value, for all of them")
    return parser.parse_args()


def diagnose(name, args):
    fixed = [word for setting in args.fix for word in ("--fix", setting)]
    command = ["-m", "autotune", "diagnose", str(BOUND / f"{name}.py"), *fixed, "--json"]
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    checkout = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, *command], env=checkout, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout)["diagnosis"]


def row(name, diagnosis):
    told, is_right = verdict(name, diagnosis)
    shares = ", ".join(
        f"{part} {share:.1%}"
        for part, share in diagnosis["shares"].items()
        if share is not None and share >= 0.001
    )
    mfu = "-" if diagnosis["mfu"] is None else f"{diagnosis['mfu']:.1%}"
    evidence = "; ".join(diagnosis["evidence"]) or str(diagnosis["unknown"])
    return [name, told, "yes" if is_right else "no", evidence, shares, mfu]


def verdict(name, diagnosis):
    """Return what the diagnosis says about the cause it should find, and whether it is right."""
    if name in BOUNDS:
        return str(diagnosis["bound"]), diagnosis["bound"] == name
    found = [f for f in diagnosis["findings"] if f["kind"] == FINDINGS[name]]
    told = "; ".join(f"{f['kind']}{place(f)}: {f['what']}" for f in found) or "nothing"
    return told, any(is_there(name, finding) for finding in found)


def place(finding):
    return f" {Path(finding['file']).name}:{finding['line']}" if finding["file"] else ""


def is_there(name, finding):
    """Return whether a finding names the line marked `# here`, or for a shape its parameter."""
    if name == "vocabulary":
        return "50257" in finding["what"]
    lines = (BOUND / f"{name}.py").read_text().splitlines()
    return lines[finding["line"] - 1].endswith("# here")


if __name__ == "__main__":
    main()
