"""How near `autotune run` comes to the best that is known, as a user runs it, and on what time.

    python benchmarks/live.py causal_lm resnet50_jpeg --budgets 2m,5m --experts FILE
    python benchmarks/live.py causal_lm --budgets 6m --gpus-per-trial 2

Each run starts in a folder of its own, with an empty store and an empty compiler cache. The best
known is the fastest on this kind of device among the experts' results, earlier runs' confirmed
winners and this run's; a winner that was not confirmed counts as the baseline. With several
devices it is what the best known gives on each of them. Results are appended to the file --out.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]

from experts import origin, run_for, seconds, stop_on_sigterm, workload_path  # noqa: E402
from live_accounts import (  # noqa: E402
    Watched,
    best_known,
    confirmed_throughput,
    gains,
    kept,
    per_device,
    seconds_by_phase,
)

from autotune.storage.figures import speedup_to_dict  # noqa: E402
from autotune.storage.sql import open_store  # noqa: E402

RESULTS = Path(__file__).parent / "live"
PATIENCE_S = 60.0  # beyond the budget, before a run is killed
NOTHING = {"device": None, "num_devices": None, "throughput": None, "score": None}


def main():
    args = parse_args()
    stop_on_sigterm()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    scores = {}
    for budget_s in args.budgets:
        for path in args.workloads:
            record = tune(path, budget_s, args)
            scores.setdefault(budget_s, {})[path.stem] = record["score"]
            with args.out.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print("\n".join(lines_of(record)), flush=True)
    for budget_s, of_budget in scores.items():
        print(summary(budget_s, of_budget), flush=True)


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="+", type=workload_path, metavar="WORKLOAD")
    parser.add_argument("--budgets", type=durations, default="2m,5m,15m", help="by commas")
    parser.add_argument("--gpus-per-trial", type=int, default=1, metavar="K")
    parser.add_argument("--experts", type=Path, default=RESULTS / "experts.jsonl")
    parser.add_argument("--out", type=Path, default=RESULTS / "runs.jsonl")
    parser.add_argument("--keep", type=Path, help="folder for each run's store and output")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def durations(text):
    return [seconds(part) for part in text.split(",")]


def tune(path, budget_s, args):
    """Run the command once; return the record of it."""
    with tempfile.TemporaryDirectory(prefix="live-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        started_at = datetime.now(UTC)
        code = run_command(path, budget_s, args, folder)
        ended_at = datetime.now(UTC)
        output = (folder / "output.txt").read_text()
        watched = watch(folder / "autotune.db", started_at, ended_at)
        if args.keep:
            keep_files(folder, args.keep / f"{path.stem}-{budget_s:.0f}s-{started_at:%H%M%S}")
    return {
        "workload": path.stem,
        "budget_s": budget_s,
        "seed": args.seed,
        "exit_code": code,
        "output": None if code == 0 else output[-2000:],
        **origin(),
        **(NOTHING if watched is None else score(watched, path.stem, known_records(args))),
        "wall_s": (ended_at - started_at).total_seconds(),
    }


def run_command(path, budget_s, args, folder):
    """Run the command in the folder; return its exit code, None when it had to be killed."""
    with (folder / "output.txt").open("w") as output:
        return run_for(
            budget_s + PATIENCE_S,
            command(path, budget_s, args),
            cwd=folder,
            env=environment(folder),
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def command(path, budget_s, args):
    return [
        *(sys.executable, "-m", "autotune", "run", str(path)),
        *("--budget", f"{budget_s:.0f}s", "--fresh", "--seed", str(args.seed)),
        *("--gpus-per-trial", str(args.gpus_per_trial)),
        *("--storage", "autotune.db", "--out", "plan.yaml"),
    ]


def environment(folder):
    """Return the user's environment, with this checkout and a compiler cache without kernels."""
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "kernels"),
        "TRITON_CACHE_DIR": str(folder / "kernels" / "triton"),
    }


def keep_files(folder, place):
    place.mkdir(parents=True, exist_ok=True)
    for name in ("autotune.db", "autotune.db-wal", "output.txt", "plan.yaml"):
        if (folder / name).exists():
            shutil.copy(folder / name, place / name)


def watch(file, started_at, ended_at):
    """Return the run as stored, None where it did not come so far."""
    if not file.exists():
        return None
    with closing(open_store(str(file), read_only=True)) as store:
        runs = store.runs()
        if not runs:
            return None
        trials = tuple(store.trials(runs[0].id))
        return Watched(run=runs[0], trials=trials, started_at=started_at, ended_at=ended_at)


def known_records(args):
    files = [file for file in (args.experts, args.out) if file.exists()]
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def score(watched, workload, known):
    """Return the record of a run: its winner held against the best known, and its seconds."""
    run, hardware = watched.run, watched.run.new.hardware
    own = {
        "workload": workload,
        "device": hardware["device_name"],
        "num_devices": run.new.num_ranks,
        "throughput": confirmed_throughput(watched),
        **(winner_of(run.winner) if run.winner else {}),
    }
    best = best_known([*known, own], workload, hardware["device_name"])
    compared = own["throughput"] is not None and best is not None
    return {
        **own,
        "score": per_device(own) / per_device(best) if compared else None,
        "best_known": per_device(best) * run.new.num_ranks if best else None,
        "best_setting": best and best.get("setting", best.get("plan")),
        "where": f"{hardware['num_devices']}x {hardware['device_name']}, "
        f"torch {hardware['versions']['torch']}, {watched.started_at:%Y-%m-%d}",
        "stop_reason": run.stop_reason,
        "seconds": seconds_by_phase(watched),
        "gains": asdict(gains(watched.trials)),
        "kept": asdict(kept(watched.trials)),
    }


def winner_of(winner):
    return {
        "confirmed": winner.confirmed,
        "kept_baseline": winner.kept_baseline,
        "found_throughput": winner.own.throughput,
        "baseline": winner.baseline.throughput,
        "speedup": list(speedup_to_dict(winner.speedup).values()),
        "plan": winner.plan.values,
    }


def lines_of(record):
    """Return a run's record in words."""
    if record["throughput"] is None:
        yield f"{record['workload']}, {record['budget_s']:.0f} s: no winner"
        yield f"  exit code {record['exit_code']} after {record['wall_s']:.0f} s"
        yield str(record["output"])
        return
    yield f"{record['workload']}, {record['budget_s']:.0f} s: {record['where']}"
    yield f"  winner      {winner_words(record)}"
    yield (
        f"  best known  {record['best_known']:,.1f} samples/s, ratio {record['score']:.2f}  "
        f"{json.dumps(record['best_setting'])}"
    )
    yield f"  trials      {gains_words(record['gains'])}"
    yield f"  promises    {kept_words(record['kept'])}"
    spent = ", ".join(f"{phase} {s:.1f}" for phase, s in record["seconds"].items())
    yield f"  {record['wall_s']:.0f} s in all: {spent}"


def kept_words(kept):
    """Return how well trials kept what the search expected of them, in words."""
    if not kept["num_trials"]:
        return "nothing was expected of any trial"
    ratios = {"throughput": kept["of_throughput"], "length": kept["of_seconds"]}
    medians = [f"{name} {ratio:.2f}" for name, ratio in ratios.items() if ratio is not None]
    return (
        f"{kept['num_gained']} of {kept['num_trials']} gained, {kept['expected_gains']:.1f} "
        f"expected; measured over expected in the median: {', '.join(medians)}; "
        f"{kept['num_longer']} took more than a quarter longer"
    )


def winner_words(record):
    if not record["confirmed"]:
        return f"not confirmed ({record['found_throughput']:,.1f}), counted as the baseline"
    if record["kept_baseline"]:
        return f"the baseline, {record['throughput']:,.1f} samples/s"
    speedup, low, high = record["speedup"]
    return (
        f"{record['throughput']:,.1f} samples/s, {speedup:.2f} ({low:.2f} to {high:.2f}) "
        f"times the baseline's {record['baseline']:,.1f}"
    )


def gains_words(found):
    return (
        f"{found['num_trials']}, {found['num_ok']} measured; {found['num_gained']} gained 1 % or "
        f"more in {found['gained_s']:.0f} s, the others took {found['other_s']:.0f} s"
    )


def summary(budget_s, scores):
    """Return the line on all runs of one budget; one without a winner scores nothing."""
    numbers = {name: score or 0.0 for name, score in scores.items()}
    worst = min(numbers, key=numbers.get)
    mean = statistics.mean(numbers.values())
    return f"{budget_s:.0f} s: mean {mean:.2f}, worst {numbers[worst]:.2f} ({worst})"


if __name__ == "__main__":
    main()
