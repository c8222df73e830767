"""Measures the plans of an example's grid, one by one on every device, into a table for replays.

    python benchmarks/record_table.py gpt --limit 9m
    python benchmarks/record_table.py gpt --limit 9m      # goes on where the first one stopped

The order of plans is random, but mixes compile modes and precisions evenly, so that an interrupted
recording has some plans of each. When all plans are measured, those near the best are measured
again in fresh processes, as the best of many single measurements is best by luck, too. Each trial
compiles with an empty cache. A recording goes on only on the machine where it began.
"""

import argparse
import collections
import dataclasses
import os
import random
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]

from drift import steady  # noqa: E402
from grids import plans_of  # noqa: E402

from autotune.agent.request import parse_budget  # noqa: E402
from autotune.agent.spaces import this_machine  # noqa: E402
from autotune.cli.parsing import parse_fixed  # noqa: E402
from autotune.dispatch.clusters import LocalCluster  # noqa: E402
from autotune.dispatch.ray_runner import RayRunner  # noqa: E402
from autotune.dispatch.table import Table, append_result, read_table, start_table  # noqa: E402
from autotune.search_space.space import NAMED_IN_FULL, build_space  # noqa: E402
from autotune.trials.diagnosis import DiagnosisRequest  # noqa: E402
from autotune.trials.request import ProbeRequest, Protocol, TrialRequest  # noqa: E402
from autotune.trials.result import Purpose  # noqa: E402

TABLES = Path(__file__).parent / "tables"
LONGEST_TRIAL_S = 400.0  # after which a trial is given up


def main():
    args = parse_args()
    # Trials import `cold_trial` from here, whether autotune is installed or not.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    hardware = this_machine(1)
    workload = REPOSITORY / "examples" / f"{args.example}.py"
    logs = Path(tempfile.mkdtemp(prefix="record-"))
    with (
        LocalCluster(hardware) as cluster,
        RayRunner(cluster, log_dir=logs, entry="benchmarks.cold_trial:run") as runner,
    ):
        cluster.start_probe(
            ProbeRequest(
                workload_path=str(workload),
                working_dir=str(Path.cwd()),
                hardware=cluster.hardware,
                seed=args.seed,
            )
        )
        runner.start()
        path = open_table(args, one_device(hardware), cluster.facts(300.0))
        # An earlier recording goes on in its own space, as later versions may have more knobs.
        begun = read_table(path)
        narrowing = dataclasses.replace(NAMED_IN_FULL, fix=args.fix)
        space = build_space(begun.facts, one_device(hardware), narrowing)
        args.protocol = begun.protocol
        plans = in_order(plans_of(args.example, space), args.seed)
        args.baseline = space.baseline
        todo = missing(path, plans)
        print(f"{path}: {len(plans) - len(todo)} of {len(plans)} plans are there", flush=True)
        record(runner, todo, path, workload, args)
        while not todo and (todo := contenders(path, args)):
            print(f"{len(todo)} plans near the best are measured again", flush=True)
            record(runner, todo, path, workload, args)
    print(f"{len(todo)} trials are left; logs in {logs}")


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("example", choices=["gpt", "digits_cnn", "deep_mlp"])
    parser.add_argument("--limit", type=parse_budget, default="25m", help="wall clock")
    parser.add_argument(
        "--measure-s",
        type=float,
        default=Protocol().max_measure_s,
        help="windows of a trial, at most, in a new table (default: as in a run)",
    )
    parser.add_argument("--fix", action="append", help="hold a knob: knob=value")
    parser.add_argument("--processes", type=int, default=3, help="of each plan near the best")
    parser.add_argument("--near", type=float, default=0.85, help="of the best: those plans")
    parser.add_argument("--seed", type=int, default=0, help="of the order and of every trial")
    parser.add_argument("--out", type=Path, default=TABLES, help="folder of the table")
    parser.add_argument("--note", default="", help="what a reader of the table must know")
    args = parser.parse_args()
    args.fix = parse_fixed(args.fix)
    args.end = time.monotonic() + args.limit
    return args


def in_order(plans, seed):
    """Return the baseline, then the other plans in a random order that mixes their kinds."""
    kinds = collections.defaultdict(list)
    rng = random.Random(seed)  # noqa: S311  an order is no secret
    for plan in plans[1:]:
        kinds[plan.get("compile_mode", "off"), plan["precision"]].append(plan)
    placed = []
    for members in kinds.values():
        rng.shuffle(members)
        placed += [((k + rng.random()) / len(members), plan) for k, plan in enumerate(members)]
    return [plans[0], *(plan for _, plan in sorted(placed, key=lambda pair: pair[0]))]


def one_device(hardware):
    """Return the hardware that each trial has, while others run on the other devices."""
    count = hardware.num_devices
    return dataclasses.replace(
        hardware,
        num_devices=1,
        num_cores=hardware.cores_per_device,
        host_memory_bytes=hardware.host_memory_bytes // count,
    )


def open_table(args, hardware, facts):
    """Return the file of the table: a new one, or that of an earlier recording to go on with."""
    device = "cpu" if hardware.device_kind == "cpu" else hardware.device_name
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"{args.example}-{'-'.join(device.lower().split())}.jsonl"
    table = Table(
        name=args.example,
        hardware=hardware,
        facts=facts,
        protocol=Protocol(max_measure_s=args.measure_s),
        how=f"each trial compiled everything itself. {args.note}".strip(),
        fix=args.fix,
    )
    if not path.exists():
        start_table(path, table)
    found = read_table(path)
    if origin(table) != origin(found):
        sys.exit(f"{path} was recorded on another machine or of another workload; move it away")
    return path


def origin(table):
    """Return what must be equal for a recording to go on with a table."""
    machine = table.hardware
    return (
        machine.device_name,
        machine.num_cores,
        machine.versions,
        table.facts.source_hash,
        table.fix,
    )


def missing(path, plans):
    known = read_table(path).results
    return collections.deque(plan for plan in plans if plan not in known)


def contenders(path, args):
    """Return the plans near the best that need more processes, the shortest trials first."""
    table = read_table(path)
    results, truth = table.results, steady(table.rows, speed)
    least = args.near * max(truth.values())
    near = [plan for plan in results if truth[plan] >= least]
    near.sort(key=lambda plan: results[plan][0].total_s)
    return collections.deque(plan for plan in near if len(results[plan]) < args.processes)


def speed(result):
    return result.measurement.throughput if result.measurement else 0.0


def record(runner, todo, path, workload, args):
    number, running = 0, 0
    while running or todo:
        while todo and running < runner.capacity and time.monotonic() < args.end:
            number, running = number + 1, running + 1
            runner.submit(request_of(todo.popleft(), number, workload, args, runner))
        if not running:
            return
        for finished in runner.wait(5.0):
            running -= 1
            note(finished, path)


def request_of(plan, number, workload, args, runner):
    return TrialRequest(
        number=number,
        plan=plan,
        purpose=Purpose.MEASURE,
        workload_path=str(workload),
        working_dir=str(REPOSITORY),
        device_kind=runner.hardware.device_kind,
        seed=args.seed,
        protocol=args.protocol,
        give_up_after_s=min(LONGEST_TRIAL_S, args.end + 30.0 - time.monotonic()),
        diagnosis=DiagnosisRequest() if plan == args.baseline else None,  # as in a run
    )


def note(finished, path):
    """Print a result and append it to the table, unless the trial ended for reasons of its own."""
    plan, result = finished.request.plan, finished.result
    print(
        f"{finished.request.number:>4}  {result.total_s:7.1f} s  {result.outcome.value:<9} "
        f"{speed(result):>11.1f}  {dict(plan.items)}",
        flush=True,
    )
    if result.outcome.is_about_plan:
        append_result(path, plan, result)


if __name__ == "__main__":
    main()
