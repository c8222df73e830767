"""What the hooks in a training script cost: microseconds of a step, in processes with and without.

    python benchmarks/hook_cost.py

A step of a tiny model, so that hooks are a large part of it, is timed in fresh processes in turn,
under an empty plan and without hooks. What counts is the time of the processor, of which the step
keeps one core busy: other work on the machine takes turns with it.
"""

import os
import statistics
import subprocess
import sys

from autotune.search_space.command import Command
from autotune.search_space.plan import Plan
from autotune.trials.command.launch import hooked
from autotune.trials.command.order import Order, Task

SCRIPT = """
import statistics, time
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(4096, 8)), batch_size=2)
times = []
for epoch in range(4):
    begin = time.process_time()
    for (x,) in loader:
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    times.append((time.process_time() - begin) / len(loader))
print(1e6 * min(times[1:]))
"""
ROUNDS = 8


def step_us(environment: dict[str, str]) -> float:
    """Return the microseconds of a step in a fresh process with these variables."""
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def main() -> None:
    """Print the cost."""
    order = Order(task=Task.TRAIN, plan=Plan.of({}), command=Command(argv=(sys.executable,)))
    pairs = [(step_us({}), step_us(dict(hooked(order)))) for _ in range(ROUNDS)]
    plain, with_hooks = (statistics.median(times) for times in zip(*pairs, strict=True))
    cost = statistics.median(hooked_us - plain_us for plain_us, hooked_us in pairs)
    print(f"a step: {plain:.1f} us, with hooks {with_hooks:.1f} us")
    print(f"hooks: {cost:.1f} us, {cost / 3000:.2%} of a step of 3 ms")


if __name__ == "__main__":
    main()
