"""Compares the throughput that autotune measures with that of a hand-written loop.

    python benchmarks/overstatement.py gpt --plan plan.yaml --repeats 5

Both use the same plan and run in fresh processes, in turn, so that a drift of the machine affects
both alike.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def main():
    args = parse_args()
    pairs = []
    for repeat in range(args.repeats):
        pairs.append((autotune(args), by_hand(args)))
        measured, hand = pairs[-1]
        print(f"{repeat + 1:>6}  {measured:>12.1f}  {hand:>12.1f}  {measured / hand:>6.3f}")
    measured, hand = (statistics.mean(column) for column in zip(*pairs, strict=True))
    print(f"{'mean':>6}  {measured:>12.1f}  {hand:>12.1f}  {measured / hand:>6.3f}")


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("example", choices=["gpt", "digits_cnn", "deep_mlp"])
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of the hand-written loop")
    args = parser.parse_args()
    print(f"{args.example} with {args.plan}, samples/s")
    print(f"{'repeat':>6}  {'autotune':>12}  {'by hand':>12}  {'ratio':>6}")
    return args


def autotune(args):
    workload = REPOSITORY / "examples" / f"{args.example}.py"
    command = ["-m", "autotune", "measure", str(workload), "--plan", str(args.plan), "--json"]
    return output_of(command)["measurement"]["throughput"]


def by_hand(args):
    script = REPOSITORY / "benchmarks" / "handwritten" / f"{args.example}.py"
    command = [str(script), "--plan", str(args.plan), "--seconds", str(args.seconds)]
    return output_of(command)["samples_per_s"]


def output_of(command):
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    checkout = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, *command], env=checkout, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout)


if __name__ == "__main__":
    main()
