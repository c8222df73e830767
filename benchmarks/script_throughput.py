"""Holds what `autotune measure -- COMMAND` reports against a timer in the same process.

    python benchmarks/script_throughput.py --rounds 5 --plan plan.yaml -- examples/scripts/plain.py

A script runs in turn under `measure`, `measure --plan`, `exec --plan` and by itself. In each
process a second timer, which knows nothing of autotune, notes the moment of every optimizer step
in a file. For `measure` the last of these moments are compared with the windows it reports,
of as many steps; the others give the throughput that a user gets.
"""

import argparse
import contextlib
import itertools
import json
import os
import runpy
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STAMPS = "STEP_STAMPS"  # the variable that names the file of moments
_AUTOTUNE = [sys.executable, "-m", "autotune"]
_RUNS_S = 15.0  # from its first step on for which a script trains under `exec` and by itself
_SETTLED = 0.5  # share of its steps, the last ones, that are looked at


def main() -> None:
    """Print the figures of each round, and their medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    words = args.command[args.command[0] == "--" :]
    script = [sys.executable, str(Path(__file__).absolute()), "--timed", *words]
    plan = ["--plan", str(args.plan)]
    rows = []
    for _ in range(args.rounds):
        row = _measured([], script, "baseline")
        row |= _measured(plan, script, "plan")
        print(json.dumps(row), flush=True)
        row |= _trained([*_AUTOTUNE, "exec", *plan, "--", *script], "exec")
        row |= _trained(script, "plain")
        rows.append(row)
        print(json.dumps(row), flush=True)
    for name in rows[0]:
        print(f"{name}: {statistics.median(row[name] for row in rows):.4f} in the median")


def _measured(options: list[str], script: list[str], name: str) -> dict[str, float]:
    """Return the reported steps per second, and the timer's over the same steps, as a ratio."""
    with tempfile.TemporaryDirectory() as folder:
        stamps = Path(folder, "stamps")
        command = [*_AUTOTUNE, "measure", "--json", *options, "--", *script]
        done = subprocess.run(
            command, env={**os.environ, STAMPS: str(stamps)}, capture_output=True, check=True
        )
        windows = json.loads(done.stdout)["measurement"]["windows"]
        moments = _read(stamps)
    steps = sum(window["steps"] for window in windows)
    reported = steps / sum(window["seconds"] for window in windows)
    timed = steps / (moments[-1] - moments[-1 - steps])
    return {f"{name}_steps_per_s": reported, f"{name}_reported_over_timer": reported / timed}


def _trained(command: list[str], name: str) -> dict[str, float]:
    """Return the steps per second in the later part of some seconds of training."""
    with tempfile.TemporaryDirectory() as folder:
        stamps = Path(folder, "stamps")
        process = subprocess.Popen(
            command, env={**os.environ, STAMPS: str(stamps)}, stdout=subprocess.DEVNULL
        )
        while process.poll() is None and not (stamps.exists() and stamps.stat().st_size):
            time.sleep(0.1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_RUNS_S)
        process.kill()
        process.wait()
        moments = _read(stamps)
    moments = moments[int(len(moments) * (1 - _SETTLED)) :]
    times = [b - a for a, b in itertools.pairwise(moments)]
    return {f"{name}_steps_per_s": 1 / statistics.fmean(times)}


def _read(stamps: Path) -> list[float]:
    return [moment for (moment,) in struct.iter_unpack("d", stamps.read_bytes())]


def timed(words: list[str]) -> None:
    """Run a script of this process, and note the moment of each optimizer step."""
    from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: PLC0415  only scripts need torch

    file = os.open(os.environ[STAMPS], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(*_: Any) -> None:
        os.write(file, struct.pack("d", time.perf_counter()))

    register_optimizer_step_post_hook(note)
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).parent))
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--timed"]:
        timed(sys.argv[2:])
    else:
        main()
