"""What becomes of a run that an accident hits? Real runs of a small workload, one fault in each.

    python benchmarks/faults.py --repeats 20
    python benchmarks/faults.py --kinds "rank SIGKILL" "driver SIGTERM" --repeats 3 --at-once 2

The moments of the faults are spread over the run: over its trials, or for a fault in its start
over the seconds before. A trial is lost when the run said that it had ended and the store lacks
it. A run hangs when it has not ended 30 s after its budget. Processes are left over when they
carry the run's mark 10 s after its end. A row is good when nothing of that happened, no run took
5 s more than its budget or, when it was told to end, 10 s to do so, and all exit codes were those
of its kind.

The clock is not among the faults: budgets and deadlines count on the monotonic clock, which no
program can set; only the times shown to users come from the clock that can jump.
"""

import argparse
import concurrent.futures
import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from experts import stop_on_sigterm  # noqa: E402
from faults_run import WatchedRun  # noqa: E402

MODEL = """
import time
import torch
from torch import nn
from torch.utils.data import Dataset

BATCH_SIZE = 4
KNOBS = {"pause_s": [0.05, 0.04, 0.03, 0.02, 0.01, 0.06, 0.07, 0.08]}

class Rows(Dataset):
    def __len__(self):
        return 4096
    def __getitem__(self, index):
        return torch.full((16,), float(index)), index % 3

class Pause(nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds
    def forward(self, x):
        time.sleep(self.seconds)
        return x

def build_model(pause_s):
    return nn.Sequential(nn.Linear(16, 16), Pause(pause_s), nn.Linear(16, 3))

def build_dataset():
    return Rows()

def compute_loss(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)
"""
SCRIPT = """
import time
import torch
from torch import nn

model = nn.Linear(16, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = torch.utils.data.TensorDataset(torch.randn(64, 16), torch.randint(3, (64,)))
for epoch in range(10_000):
    for x, y in torch.utils.data.DataLoader(rows, batch_size=4):
        time.sleep(0.02)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
BUDGET_S = 60.0
DISK_BYTES = 16 * 2**20
CLUSTERS = {}  # the Ray clusters of the runs that have one, by the run's folder
# The part of the time after the first trial's begin over which the moments of faults are spread.
TRIALS_SHARE = 0.6
STARTING_S = 5.0  # about the seconds before the first trial begins
MAX_OVERRUN_S = 5.0
MAX_ENDING_S = 10.0
DONE, NOTHING_RAN, UNUSABLE, INTERRUPTED = 0, 4, 5, 130
MODEL_WORDS = ("model.py", "--knobs", "pause_s", "--fix", "workers=2")
COMMAND_WORDS = ("--knobs", "batch_size,optimizer_impl", "--", sys.executable, "train.py")


def sends(number, find):
    """Return a fault: send a signal to the first process that `find` finds in the run."""

    def inject(run):
        found = run.wait_for(lambda: find(run))
        if not found:
            return False
        os.kill(found[0], number)
        return True

    return inject


def ends_driver(number):
    """Return a fault: send a signal to the driver, as a scheduler or a closed terminal does."""
    return sends(number, lambda run: [run.pid])


def end_all(run):
    """Send SIGTERM to the driver and all its processes, as a scheduler does to a job."""
    for pid in run.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    return True


def remove_store(run):
    """Remove the store's files, as somebody who cleans up does."""
    for file in run.folder.glob("autotune.db*"):
        file.unlink()
    return True


def replace_store(run):
    """Put an older copy in the place of the store, as a restored backup is."""
    copy = run.folder / "copy.db"
    shutil.copy(run.folder / "autotune.db", copy)
    copy.replace(run.folder / "autotune.db")
    return True


def lock_store(run):
    """Hold the store's lock until the run has ended, as a stopped writer does."""
    lock = sqlite3.connect(run.folder / "autotune.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    run.wait()
    lock.close()
    return True


def lock_store_for_a_while(run):
    """Hold the store's lock for five seconds, as another run's long write does."""
    lock = sqlite3.connect(run.folder / "autotune.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    time.sleep(5.0)
    lock.close()
    return True


def fill_disk(run):
    """Fill the file system of the run's folder to its last byte."""
    filler = run.folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)) == 4096:  # a shorter write is a full disk, too
            pass
    return True


def make_read_only(run):
    """Let the file system of the run's folder turn read-only, as ext4 does after an error."""
    device = call("findmnt", "-n", "-o", "SOURCE", str(run.folder)).strip()
    Path("/sys/fs/ext4", Path(device).name, "trigger_fs_error").write_text("1")
    return True


def lose_node(run):
    """Kill all processes of the cluster's node that runs a trial."""
    from tests.dispatch.test_cluster import busy_node  # noqa: PLC0415  imports Ray

    cluster = CLUSTERS[run.folder]
    node = run.wait_for(lambda: busy_node(cluster))
    if node is not None:
        cluster.remove_node(node, allow_graceful=False)
    return node is not None


@contextmanager
def small_disk(folder):
    """Give the folder a file system of its own in a file; only root may."""
    image = folder.with_name(f"{folder.name}.ext4")
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    call("mkfs.ext4", "-q", "-F", "-e", "remount-ro", str(image))
    call("mount", "-o", "loop", str(image), str(folder))
    try:
        yield ()
    finally:
        call("umount", "--lazy", str(folder))
        image.unlink()


def call(*command):
    """Run a program of the system, and return what it wrote."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


@contextmanager
def two_nodes(folder):
    """Start a Ray cluster of two nodes with a device each, for the run alone."""
    from ray.cluster_utils import Cluster  # noqa: PLC0415  seconds, for one kind alone

    from tests.dispatch.conftest import SOON_LOST, add_node  # noqa: PLC0415  the same

    cluster = Cluster()
    CLUSTERS[folder] = cluster
    try:
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": SOON_LOST}
        for options in (head, {"num_cpus": 1}, {"num_cpus": 1}):
            add_node(cluster, options)
        yield ("--ray-address", cluster.address)
    finally:
        cluster.shutdown()


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of fault.

    Attributes:
        inject: brings it about in a `WatchedRun`; returns whether there was anything to hit.
        codes: the exit codes that a run may end with.
        in_start: whether it comes before the first trial.
        is_told: whether the run is told to end.
        loses: whether the store goes with it, and so what was in it.
        resumed: whether the same command is typed again afterwards.
        words: what stands behind `run`, without the budget.
        times_budget: how much longer than others its runs are.
        around: a context manager around the run, given its folder; it gives further words.
    """

    inject: Callable[[Any], bool]
    codes: tuple[int, ...] = (DONE,)
    in_start: bool = False
    is_told: bool = False
    loses: bool = False
    resumed: bool = False
    words: tuple[str, ...] = MODEL_WORDS
    times_budget: float = 1.0
    around: Callable[[Path], Any] = field(default=lambda folder: nullcontext(()))


HEADINGS = (
    "kind",
    "runs",
    "hit",
    "exit codes",
    "plan files",
    "lost trials",
    "hangs",
    "left over",
    "worst overrun, s",
    "worst s after the fault",
    "good",
)


def told(number, **more):
    return Kind(inject=ends_driver(number), codes=(INTERRUPTED,), is_told=True, **more)


TARGETS = {
    "rank": WatchedRun.ranks,
    "loader worker": WatchedRun.loader_workers,
    "fork server": WatchedRun.fork_servers,
    "slot actor": WatchedRun.slot_actors,
    "raylet": WatchedRun.raylets,
    "GCS": WatchedRun.control_stores,
}
RAYS_OWN = ("raylet", "GCS")
KINDS = {
    **{
        f"{name} {number.name}": Kind(
            inject=sends(number, find), codes=(DONE, UNUSABLE if name in RAYS_OWN else NOTHING_RAN)
        )
        for name, find in TARGETS.items()
        for number in (signal.SIGKILL, signal.SIGSTOP)
    },
    **{f"driver {n.name}": told(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)},
    "driver SIGKILL": Kind(
        inject=ends_driver(signal.SIGKILL), codes=(-signal.SIGKILL,), is_told=True, resumed=True
    ),
    **{
        f"driver {n.name} in its start": told(n, in_start=True)
        for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    },
    "all processes SIGTERM": Kind(inject=end_all, codes=(INTERRUPTED,), is_told=True),
    "driver SIGTERM, a command": told(signal.SIGTERM, words=COMMAND_WORDS),
    "driver SIGTERM in its start, a command": told(
        signal.SIGTERM, words=COMMAND_WORDS, in_start=True
    ),
    "store removed": Kind(inject=remove_store, codes=(UNUSABLE,), loses=True),
    "store replaced": Kind(inject=replace_store, codes=(UNUSABLE,), loses=True),
    "store locked": Kind(inject=lock_store, codes=(UNUSABLE,)),
    "store locked for 5 s": Kind(inject=lock_store_for_a_while),
    "store read-only": Kind(inject=make_read_only, codes=(UNUSABLE,), around=small_disk),
    "node lost": Kind(inject=lose_node, around=two_nodes, times_budget=2.0),
    "disk full": Kind(inject=fill_disk, codes=(UNUSABLE,), around=small_disk),
}


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How one run with a fault ended.

    Attributes:
        hit: whether there was anything to hit before the run was over.
        code: exit code.
        lost: trials that were said to have ended and are not in the store.
        hung: whether it had to be killed.
        left: processes left over.
        overrun_s: seconds beyond the budget, 0 when it ended before.
        ending_s: seconds from the fault to the end.
        has_plan: whether a plan file was written.
        said: the last line of stderr.
    """

    hit: bool
    code: int
    lost: int
    hung: bool
    left: int
    overrun_s: float
    ending_s: float
    has_plan: bool
    said: str


def play(name, share, args):
    """Return how a run ended that was hit by a fault of this kind.

    Args:
        name: of the kind.
        share: in which part of the time for faults this one comes, from 0 to 1.
        args: of the command line.
    """
    kind = KINDS[name]
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as text:
        folder = Path(text, "run")
        folder.mkdir()
        with kind.around(folder) as words:
            (folder / "model.py").write_text(MODEL)
            (folder / "train.py").write_text(SCRIPT)
            ended = watch(kind, folder, share, kind.times_budget * args.budget, words)
            if args.keep:
                shutil.copytree(text, args.keep / f"{name}-{share:.3f}", dirs_exist_ok=True)
    return ended


def watch(kind, folder, share, budget_s, more):
    """Run the command, bring the fault about, and return how that ended."""
    words = ("--budget", f"{budget_s:.0f}s", *more, *kind.words)
    with WatchedRun(folder, words, budget_s) as run:
        if kind.in_start:
            time.sleep(share * STARTING_S)
        else:
            run.wait_for_trials()
            moment_s = run.wall_s + share * TRIALS_SHARE * (budget_s - run.wall_s)
            run.wait_for(lambda: run.wall_s > moment_s)
        hit, hit_at = run.goes_on and kind.inject(run), time.monotonic()
        run.wait()
        lost = set() if kind.loses else run.told_trials() - run.stored_trials().keys()
        if kind.resumed:
            lost |= lost_when_resumed(run, folder, words, budget_s)
        return Ended(
            hit=hit,
            code=run.process.returncode,
            lost=len(lost),
            hung=run.hung,
            left=len(run.leftovers()),
            overrun_s=max(0.0, run.wall_s - budget_s),
            ending_s=run.ended_at - hit_at,
            has_plan=(folder / "plan.yaml").exists(),
            said=(run.said.strip().splitlines() or [""])[-1],
        )


def lost_when_resumed(run, folder, words, budget_s):
    """Type the same command again, and return the trials that the first run had and it lacks."""
    before = run.stored_trials()
    with WatchedRun(folder, words, budget_s) as again:
        again.wait()
        after = again.stored_trials()
    return {number for number, trial in before.items() if after.get(number) != trial}


def main():
    args = parse_args()
    jobs = [(name, (n + 0.5) / args.repeats) for name in args.kinds for n in range(args.repeats)]
    ended = {name: [] for name in args.kinds}
    # Processes, as Ray starts nodes in a main thread only.
    with concurrent.futures.ProcessPoolExecutor(args.at_once, initializer=stop_on_sigterm) as pool:
        playing = {pool.submit(play, *job, args): job for job in jobs}
        for done in concurrent.futures.as_completed(playing):
            name, share = playing[done]
            if error := done.exception():
                print(f"{name} at {share:.2f}: not played, {error!r}", file=sys.stderr, flush=True)
            else:
                ended[name].append(done.result())
                print(f"{name} at {share:.2f}: {done.result()}", file=sys.stderr, flush=True)
    print_table(ended)
    missed = len(jobs) - sum(map(len, ended.values()))
    sys.exit(
        bool(missed) or not all(is_good(KINDS[n], e) for n, many in ended.items() for e in many)
    )


def print_table(ended):
    """Print a row for each kind of fault that was played."""
    print("| " + " | ".join(HEADINGS) + " |")
    print("|" + "---|" * len(HEADINGS))
    for name, runs in ended.items():
        if runs:
            print("| " + " | ".join(row(name, runs)) + " |")


def row(name, runs):
    codes = Counter(one.code for one in runs)
    return [
        name,
        str(len(runs)),
        str(sum(one.hit for one in runs)),
        ", ".join(f"{code} ({count})" for code, count in codes.most_common()),
        str(sum(one.has_plan for one in runs)),
        str(sum(one.lost for one in runs)),
        str(sum(one.hung for one in runs)),
        str(sum(one.left for one in runs)),
        f"{max(one.overrun_s for one in runs):.1f}",
        f"{max((one.ending_s for one in runs if one.hit), default=0.0):.1f}",
        f"{sum(is_good(KINDS[name], one) for one in runs)} of {len(runs)}",
    ]


def is_good(kind, one):
    """Whether the run ended as its kind of fault allows."""
    in_time = one.overrun_s <= MAX_OVERRUN_S
    if kind.is_told and one.hit:
        in_time = in_time and one.ending_s <= MAX_ENDING_S
    codes = kind.codes if one.hit else (DONE,)
    return in_time and not (one.lost or one.hung or one.left) and one.code in codes


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--budget", type=float, default=BUDGET_S, metavar="SECONDS")
    parser.add_argument("--at-once", type=int, default=1, help="runs beside each other")
    parser.add_argument("--keep", type=Path, help="folder for what each run wrote")
    return parser.parse_args()


if __name__ == "__main__":
    main()
