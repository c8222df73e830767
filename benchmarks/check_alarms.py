"""How often `autotune check` raises a false alarm, and how often it finds a slower revision.

    python benchmarks/check_alarms.py --repeats 20 --budget 3m

Checks of a small model against the revision that it is, and of the same model with a tenth of its
step time added as sleep, in turn. Each is the command as a user types it, in a repository of its
own.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
MODEL = """
import time
import torch
from torch import nn
from torch.utils.data import TensorDataset
from slower import SLEEP_S

BATCH_SIZE = 256

def build_model():
    first, second = nn.Linear(256, 1024), nn.Linear(1024, 1024)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(1024, 10))

def build_dataset():
    return TensorDataset(torch.randn(8192, 256), torch.randint(0, 10, (8192,)))

def compute_loss(model, batch):
    time.sleep(SLEEP_S)
    return nn.functional.cross_entropy(model(batch[0]), batch[1])
"""
SLEPT = 0.1  # part of the step time that is added


def main():
    args = parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        prepare(place)
        step_s = (
            json.loads(typed(place, "measure", "model.py").stdout)["measurement"]["step_ms"] / 1e3
        )
        print(f"a step takes {1e3 * step_s:.1f} ms", flush=True)
        found = {"same": [], "slower": []}
        for number in range(args.repeats):
            for name, sleep_s in (("same", 0.0), ("slower", SLEPT * step_s)):
                (place / "slower.py").write_text(f"SLEEP_S = {sleep_s}\n")
                found[name].append(checked(place, args.budget))
                print(number + 1, name, *found[name][-1], flush=True)
    print("\n| revision | checks | within | worse | not known | seconds: median | largest |")
    print("|---|---|---|---|---|---|---|")
    for name, checks in found.items():
        print(row(name, checks))


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--budget", default="3m", help="of each check")
    return parser.parse_args()


def prepare(place):
    (place / "model.py").write_text(MODEL)
    (place / "slower.py").write_text("SLEEP_S = 0.0\n")
    who = ("-c", "user.name=me", "-c", "user.email=me@example.com")
    for words in (
        ("init", "--quiet", "--initial-branch=main"),
        ("add", "model.py", "slower.py"),
        (*who, "commit", "--quiet", "--message", "first"),
    ):
        subprocess.run(["git", "-C", place, *words], check=True)  # noqa: S607  the user's git


def checked(place, budget):
    """Return what a check answered, the change that it saw, and its seconds."""
    began = time.monotonic()
    done = typed(place, "check", "model.py", "--against", "main", "--budget", budget)
    (finding,) = json.loads(done.stdout)["findings"]
    return finding["answer"], round(finding["change"], 4), round(time.monotonic() - began, 1)


def typed(place, *words):
    command = [sys.executable, "-m", "autotune", *words, "--json"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 6):
        raise SystemExit(done.stderr)
    return done


def row(name, checks):
    answers, seconds = Counter(one[0] for one in checks), [one[2] for one in checks]
    counts = " | ".join(str(answers[answer]) for answer in ("within", "beyond", "unknown"))
    took = f"{statistics.median(seconds):.0f} s | {max(seconds):.0f} s"
    return f"| {name} | {len(checks)} | {counts} | {took} |"


if __name__ == "__main__":
    main()
