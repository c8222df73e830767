"""Compares trials on all devices at once with trials on one device: their rate and results.

    python benchmarks/side_by_side.py gpt --seconds 60

It runs the same plans again and again, first on one device with its share of the cores, then on
every device at once, and compares trials per minute, the seconds of each phase, and measured
throughputs. No device ever waits for a trial, and the rate leaves out the start and the end.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
sys.path[:0] = [str(REPOSITORY)]

from autotune.agent.request import parse_budget  # noqa: E402
from autotune.agent.spaces import this_machine  # noqa: E402
from autotune.dispatch.clusters import LocalCluster  # noqa: E402
from autotune.dispatch.ray_runner import RayRunner  # noqa: E402
from autotune.search_space.space import Narrowing, build_space  # noqa: E402
from autotune.trials.request import ProbeRequest, Protocol, TrialRequest  # noqa: E402
from autotune.trials.result import Purpose  # noqa: E402

CHANGES = [
    {},
    {"precision": "bf16"},
    {"precision": "bf16", "optimizer_impl": "fused"},
    {"optimizer_impl": "fused"},
]


def main():
    args = parse_args()
    if args.part:
        print(json.dumps(measure(args)))
        return
    hardware = this_machine(1)
    cores = sorted(os.sched_getaffinity(0))[: hardware.cores_per_device]
    alone = measure_in_process(args, 1, {**os.environ, "CUDA_VISIBLE_DEVICES": "0"}, cores)
    together = measure_in_process(
        args, hardware.num_devices, os.environ, sorted(os.sched_getaffinity(0))
    )
    report(alone, together, hardware.num_devices)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("example", choices=["gpt", "digits_cnn", "deep_mlp"])
    parser.add_argument("--seconds", type=parse_budget, default="60s", help="of each part")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def measure_in_process(args, devices, environment, cores):
    """Return what `measure` gives in a process that sees `devices` devices and uses `cores`."""
    command = [sys.executable, __file__, args.example, "--seconds", f"{args.seconds:.0f}s"]
    done = subprocess.run(
        [*command, "--part", str(devices)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    return json.loads(done.stdout.splitlines()[-1])


def measure(args):
    """Return trials per minute, mean seconds by phase, and the throughputs of each plan."""
    workload = REPOSITORY / "examples" / f"{args.example}.py"
    logs = Path(tempfile.mkdtemp(prefix="side-by-side-"))
    with LocalCluster(this_machine(1)) as cluster, RayRunner(cluster, log_dir=logs) as runner:
        cluster.start_probe(
            ProbeRequest(
                workload_path=str(workload),
                working_dir=str(Path.cwd()),
                hardware=cluster.hardware,
                seed=0,
            )
        )
        runner.start()
        space = build_space(cluster.facts(300.0), runner.hardware, Narrowing())
        plans = [space.plan(changes) for changes in CHANGES]
        ended = run(runner, plans, workload, args.seconds)
    # The first trials are not counted: they wait for imports and read files for the first time.
    (start, _), *counted = ended[len(plans) * args.part - 1 :]
    results = [finished for _, finished in counted]
    found = [
        [f.result.measurement.throughput for f in results if f.request.plan == plan]
        for plan in plans
    ]
    return {
        "per_minute": 60 * len(results) / (counted[-1][0] - start),
        "phases_s": {name: statistics.fmean(map(of, results)) for name, of in PHASES.items()},
        "throughputs": found,
    }


PHASES = {
    "building": lambda finished: finished.result.measurement.build_s,
    "first step": lambda finished: finished.result.measurement.first_step_s,
    "warm-up": lambda finished: finished.result.measurement.warm_up_s,
    "windows": lambda finished: finished.result.measurement.measure_s,
    "the tool": lambda finished: finished.result.overhead_s,
}


def run(runner, plans, workload, seconds):
    """Keep every device busy, and return the trials that ended, with their times."""
    todo = itertools.cycle(plans)
    started, running, ended = 0, 0, []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        while running < runner.capacity:
            started, running = started + 1, running + 1
            runner.submit(request(started, next(todo), workload, runner))
        for finished in runner.wait(1.0):
            running -= 1
            ended.append((time.monotonic(), finished))
    return ended


def request(number, plan, workload, runner):
    return TrialRequest(
        number=number,
        plan=plan,
        purpose=Purpose.MEASURE,
        workload_path=str(workload),
        working_dir=str(REPOSITORY),
        device_kind=runner.hardware.device_kind,
        protocol=Protocol(max_measure_s=2.0, max_warm_up_s=2.0),
    )


def report(alone, together, devices):
    rates = [part["per_minute"] for part in (alone, together)]
    print(f"trials per minute: {rates[0]:.1f} on 1 device, {rates[1]:.1f} on {devices}: ", end="")
    print(f"{rates[1] / rates[0]:.2f} times as many")
    print("| seconds of a trial | alone | beside others |")
    print("|---|---|---|")
    for name in PHASES:
        print(f"| {name} | {alone['phases_s'][name]:.2f} | {together['phases_s'][name]:.2f} |")
    print("\n| plan | alone (samples/s) | beside others | ratio | spread alone, beside |")
    print("|---|---|---|---|---|")
    pairs = zip(CHANGES, alone["throughputs"], together["throughputs"], strict=True)
    for changes, one, many in pairs:
        means = statistics.fmean(one), statistics.fmean(many)
        spreads = [f"{statistics.pstdev(x) / statistics.fmean(x):.1%}" for x in (one, many)]
        row = [changes or "baseline", f"{means[0]:.1f}", f"{means[1]:.1f}"]
        print("|", " | ".join(map(str, [*row, f"{means[1] / means[0]:.3f}", *spreads])), "|")


if __name__ == "__main__":
    main()
