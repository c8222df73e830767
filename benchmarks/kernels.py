"""How long is the first step of a compiled plan in a fresh process, with and without its kernels?

    python benchmarks/kernels.py examples/gpt.py --fix precision=bf16 --rounds 3

Compiles the plan once, as `autotune export --with-kernels` does. Then processes with an empty
compiler cache train one step each, in turn with the kernels and without. A line of JSON for each
has the seconds from `autotune.apply` to the end of the first step, loading included, those of the
whole process, and the graphs that the compiler found in its cache or had to compile.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from autotune.agent.bench import Bench
from autotune.export.files import kernels_path
from autotune.export.plan_file import PlanFile, write_plan_file
from autotune.search_space.target import Target

STEP = """
import json, sys, time
import torch
import autotune

plan = autotune.load_plan(sys.argv[1])
begun = time.perf_counter()
with autotune.apply(plan, workload=sys.argv[2]) as step:
    loss = float(step(next(iter(step.loader))))
    took_s = time.perf_counter() - begun
from torch._dynamo.utils import counters
counted = counters["inductor"]
found, compiled = counted["fxgraph_cache_hit"], counted["fxgraph_cache_miss"]
print(json.dumps({"first_step_s": took_s, "loss": loss, "found": found, "compiled": compiled}))
"""


def main():
    arguments = parsed()
    workload = arguments.model.resolve()
    fixed = dict(text.split("=", 1) for text in arguments.fix)
    with tempfile.TemporaryDirectory(prefix="kernels-") as folder:
        plan_path = Path(folder, "plan.yaml")
        begun = time.perf_counter()
        compiled_s = compile_plan(workload, fixed, plan_path)
        made = {
            "made_in_s": time.perf_counter() - begun,
            "first_step_s": compiled_s,
            "file_bytes": kernels_path(plan_path).stat().st_size,
            "plan": fixed,
        }
        print(json.dumps(made), flush=True)
        times = {"without": [], "with": []}
        for _ in range(arguments.rounds):
            for kind, seconds in times.items():
                seconds.append(first_step(plan_path, workload, kind))
        for kind, seconds in times.items():
            listed = ", ".join(f"{s:.1f}" for s in seconds)
            print(f"{kind} kernels: {listed} s; median {statistics.median(seconds):.1f} s")


def parsed():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="a model.py")
    parser.add_argument("--fix", action="append", default=[], help="knob=value of the plan")
    parser.add_argument("--rounds", type=int, default=3)
    parsed = parser.parse_args()
    if not any(text.startswith("compile_mode=") for text in parsed.fix):
        parsed.fix.append("compile_mode=default")
    return parsed


def compile_plan(workload, fixed, plan_path):
    """Write a plan file and its kernels; return the seconds of the first step that made them."""
    target = Target(path=workload)
    with Bench(target) as bench:
        subject = bench.subject(target, fixed)
        write_plan_file(PlanFile(plan=subject.plan), plan_path)
        with tempfile.TemporaryDirectory(prefix="compiled-") as folder:
            made = Path(folder, "kernels")
            result = bench.compile(subject, made)
            kernels_path(plan_path).write_bytes(made.read_bytes())
    return result.measurement.first_step_s


def first_step(plan_path, workload, kind):
    """Return the seconds of a first step in a new process, after it has printed them."""
    with tempfile.TemporaryDirectory(prefix="cache-") as cache:
        plan = plan_path if kind == "with" else Path(cache, "plan.yaml")
        if kind == "without":
            plan.write_text(plan_path.read_text())
        begun = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", STEP, str(plan), str(workload)],
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(Path(cache, "compiled"))},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=1200,
        )
        seen = json.loads(done.stdout.splitlines()[-1])
        process_s = time.perf_counter() - begun
    print(json.dumps({"kernels": kind, **seen, "process_s": process_s}), flush=True)
    return seen["first_step_s"]


if __name__ == "__main__":
    main()
