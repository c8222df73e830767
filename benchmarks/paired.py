"""Compares autotune's training loop with a hand-written one in the same process.

    python benchmarks/paired.py gpt --plan plan.yaml --pairs 15

The loops take turns window by window, so that a drift of the machine affects both alike. In two
processes, memory layout, cores and other users could differ by more than the loops do. Before each
window the loop trains on as many batches as the loader's queue holds, as the queue filled up while
the other loop ran.
"""

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks" / "handwritten")]

import torch  # noqa: E402
import training  # noqa: E402  the hand-written loop

import autotune  # noqa: E402

BLOCKS = {"gpt": "blocks", "deep_mlp": "layers"}


def main():
    args = parse_args()
    loops = build_loops(args)
    for step, batches in loops.values():
        run(step, batches, args.warm_up_s)
    pairs = [
        {name: window(*loop, args) for name, loop in loops.items()} for _ in range(args.pairs)
    ]
    report(args, pairs)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("example", choices=["gpt", "digits_cnn", "deep_mlp"])
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--window-s", type=float, default=1.0)
    parser.add_argument("--warm-up-s", type=float, default=3.0)
    return parser.parse_args()


def build_loops(args):
    """Return for each loop a function that trains on a batch, and an iterator of its batches."""
    sys.path.insert(0, str(REPOSITORY / "examples"))
    example = __import__(args.example)
    plan = autotune.load_plan(args.plan)
    # This also sets what the plan says of the whole process, so it holds for both loops.
    ours = autotune.apply(plan, workload=example)
    sys.argv = ["paired", "--plan", str(args.plan)]
    settings = training.parse_args(example)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    by_hand = training.build_step(example, blocks_of(args.example), settings, device)
    args.batch_size = settings.batch_size
    args.queue = settings.workers * settings.prefetch + settings.workers
    hand_loader = training.build_loader(example, settings)
    return {
        "autotune": (ours, training.endless(ours.loader)),
        "by hand": (by_hand, training.endless(hand_loader)),
    }


def blocks_of(name):
    return lambda model: getattr(model, BLOCKS[name]) if name in BLOCKS else ()


def run(step, batches, seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        step(next(batches))
    synchronise()


def window(step, batches, args):
    """Return the samples per second of one window of at least `--window-s` seconds."""
    for _ in range(max(args.queue, 3)):
        step(next(batches))
    synchronise()
    start, samples = time.perf_counter(), 0
    while time.perf_counter() - start < args.window_s:
        step(next(batches))
        samples += args.batch_size
    synchronise()
    return samples / (time.perf_counter() - start)


def synchronise():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def report(args, pairs):
    ratios = [math.log(pair["autotune"] / pair["by hand"]) for pair in pairs]
    half = 2.0 * statistics.stdev(ratios) / math.sqrt(len(ratios))
    mean = statistics.fmean(ratios)
    rates = {name: statistics.median(p[name] for p in pairs) for name in pairs[0]}
    print(json.dumps({
        "example": args.example,
        "pairs": len(pairs),
        "samples_per_s": {name: round(rate, 1) for name, rate in rates.items()},
        "ratio": round(math.exp(mean), 4),
        "ratio_95": [round(math.exp(mean - half), 4), round(math.exp(mean + half), 4)],
    }))  # fmt: skip


if __name__ == "__main__":
    main()
