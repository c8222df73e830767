"""What helps where batches are texts of uneven length: the masked LM of the zoo.

    python benchmarks/uneven.py padding --rounds 3
    python benchmarks/uneven.py compiler --shapes automatic --scope block

`padding` trains the same model with batches by length or not, padded to multiples or not, in turn
in one process. `compiler` trains one compiled model and says how often it was compiled. Both count
processor seconds of one thread, which other programs disturb less than the wall clock.
"""

import argparse
import os
import resource
import statistics
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
sys.path[:0] = [str(REPOSITORY)]
os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"  # each process compiles all it needs

import torch  # noqa: E402

from autotune.search_space.plan import Plan  # noqa: E402
from autotune.trials.applying.apply import build_step  # noqa: E402
from autotune.trials.feed import Feed  # noqa: E402
from autotune.trials.workload import load_workload  # noqa: E402

MODEL = REPOSITORY / "benchmarks" / "zoo" / "masked_lm.py"
BATCH_SIZE, STEPS = 8, 60
MULTIPLES = (1, 8, 64)
SHAPES = ("automatic", "always", "marked")
_FILL = {"labels": -100}  # what pads a tensor; 0 for the others


def main():
    args = parse_args()
    torch.set_num_threads(1)
    workload = load_workload(MODEL)
    if args.what == "padding":
        padding(workload, args.rounds)
    else:
        compiler(workload, args.shapes, args.scope)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["padding", "compiler"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shapes", choices=SHAPES, default="automatic")
    parser.add_argument("--scope", choices=["model", "block"], default="block")
    return parser.parse_args()


def padding(workload, rounds):
    cases = {(grouped, of): step_of(workload, {"length_bucketing": grouped})
             for grouped in (False, True) for of in MULTIPLES}  # fmt: skip
    speeds = {case: [] for case in cases}
    for number in range(rounds + 1):
        for (grouped, multiple), loop in cases.items():
            speed = samples_per_s(*loop, lambda batch, of=multiple: padded(batch, of))
            if number:  # the first round warms up
                speeds[grouped, multiple].append(speed)
    own = statistics.mean(speeds[False, 1])
    for (grouped, multiple), found in speeds.items():
        shown = " ".join(f"{speed:.1f}" for speed in found)
        times = statistics.mean(found) / own
        print(f"grouped {grouped!s:5}  multiple of {multiple:2}: {shown}  {times:.2f} times")


def padded(batch, multiple):
    """Pad the batch as a `collate_fn` would that knows the values."""
    short = -batch["input_ids"].shape[1] % multiple
    return {
        name: torch.nn.functional.pad(tensor, (0, short), value=_FILL.get(name, 0))
        for name, tensor in batch.items()
    }


def compiler(workload, shapes, scope):
    from torch._dynamo.utils import counters  # noqa: PLC0415  eager cases need not wait for it

    compile_one = torch.compile
    if shapes == "always":
        torch.compile = lambda frame, **kwargs: compile_one(frame, dynamic=True, **kwargs)
    loop = step_of(workload, {"compile_mode": "default", "compile_scope": scope})
    change = marked if shapes == "marked" else lambda batch: batch
    samples_per_s(*loop, change, steps=20)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    start_s = sum(one.ru_utime + one.ru_stime for one in used)
    speed = samples_per_s(*loop, change, steps=130)
    graphs, given_up = counters["stats"]["unique_graphs"], dict(counters["unimplemented"])
    print(f"{shapes} {scope}: {graphs} graphs, {start_s:.1f} s until step 20, then {speed:.1f}/s")
    print("gave up:", given_up or "nothing")


def marked(batch):
    for tensor in batch.values():
        torch._dynamo.maybe_mark_dynamic(tensor, 1)  # noqa: SLF001  torch documents it
    return batch


def step_of(workload, values):
    plan = Plan.of({"batch_size": BATCH_SIZE, **values})
    step = build_step(workload, plan, torch.device("cpu"), seed=0)
    return step, Feed(step.loader)


def samples_per_s(step, feed, change, steps=STEPS):
    begin = time.process_time()
    for _ in range(steps):
        step(change(feed.next()))
    return BATCH_SIZE * steps / (time.process_time() - begin)


if __name__ == "__main__":
    main()
