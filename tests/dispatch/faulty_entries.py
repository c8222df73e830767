"""Trials that end in every way there is; each function stands for `run_trial`."""

import ctypes
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from autotune.trials.request import TrialRequest
from autotune.trials.result import Kept, Measurement, Outcome, Phase, TrialResult

Items = Iterator[Phase | Kept | TrialResult]

MEASUREMENT = Measurement(
    throughput=100.0,
    throughput_low=99.0,
    throughput_high=101.0,
    step_ms=10.0,
    step_ms_spread=0.01,
    data_wait_share=0.0,
    build_s=0.001,
    first_step_s=0.001,
    warm_up_s=0.001,
    measure_s=0.001,
    first_loss=1.0,
    last_loss=0.5,
    settled=True,
)


def run(request: TrialRequest) -> Items:
    """Do what the plan's `fault` says, in phase build, or while it is diagnosed."""
    yield Phase.BUILD
    print(f"trial {request.number} speaks", flush=True)  # noqa: T201
    result = TrialResult(outcome=Outcome.OK, measurement=MEASUREMENT, phase=Phase.MEASURE)
    if request.diagnosis is not None:
        yield Phase.MEASURE
        yield Kept(result=result)
        yield Phase.DIAGNOSE
    FAULTS[str(request.plan["fault"])](request)
    yield Phase.MEASURE
    yield result


def on_rank_one(request: TrialRequest) -> Items:
    """Do what the plan's `fault` says on rank 1; the other waits for it for ever."""
    yield Phase.RENDEZVOUS
    yield Phase.BUILD
    place = request.place
    print(f"rank {place.rank} of {place.world_size}", flush=True)  # noqa: T201
    if place.rank == 0 and request.plan["fault"] != "none":
        time.sleep(1000)
    fault = str(request.plan["fault"])
    if fault == "oom":
        yield TrialResult(outcome=Outcome.OOM, error="out of memory", phase=Phase.BUILD)
        time.sleep(1000)
    FAULTS[fault](request)
    yield TrialResult(outcome=Outcome.OK, measurement=MEASUREMENT, phase=Phase.BUILD)


def where(request: TrialRequest) -> Items:
    """Tell, as an error text, where this rank is."""
    yield TrialResult(outcome=Outcome.CRASH, error=json.dumps(asdict(request.place)))


def own_files(request: TrialRequest) -> Items:
    """Tell, as an error text, what this process sees of the workload's folder."""
    path = Path(request.workload_path)
    seen = {"model": path.read_text(), "lib": (path.parent / "lib.py").read_text()}
    seen["working_dir"] = request.working_dir
    yield TrialResult(outcome=Outcome.CRASH, error=json.dumps(seen))


def in_start(request: TrialRequest) -> Items:
    """Die before the first phase."""
    os.kill(os.getpid(), signal.SIGKILL)
    yield Phase.BUILD


def environment(request: TrialRequest) -> Items:
    """Print what the process was given."""
    yield Phase.BUILD
    print("OMP", os.environ.get("OMP_NUM_THREADS"))  # noqa: T201
    print("CORES", len(os.sched_getaffinity(0)))  # noqa: T201
    yield TrialResult(outcome=Outcome.OK, measurement=MEASUREMENT)


def broken(request: TrialRequest) -> Items:
    """Let an exception of our own escape."""
    yield Phase.BUILD
    raise LookupError("a bug of ours")


def without_room(request: TrialRequest) -> Items:
    """Write to a device that is always full, outside of what a trial turns into its result."""
    yield Phase.BUILD
    with Path("/dev/full").open("w") as full:
        full.write("one word")


def _nothing(request: TrialRequest) -> None:
    pass


def _segfault(request: TrialRequest) -> None:
    ctypes.string_at(0)


def _exit(request: TrialRequest) -> None:
    os._exit(3)


def _abort(request: TrialRequest) -> None:
    os.abort()


def _kill(request: TrialRequest) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _python_loop(request: TrialRequest) -> None:
    while True:
        pass


def _native_loop(request: TrialRequest) -> None:
    ctypes.PyDLL(None).pause()  # PyDLL keeps the GIL


def _orphan(request: TrialRequest) -> None:
    """Leave a child in its own session, and one that forked without exec."""
    pids = [subprocess.Popen(["sleep", "1000"], start_new_session=True).pid]
    if (forked := os.fork()) == 0:
        os.setsid()
        if (grandchild := os.fork()) == 0:
            time.sleep(1000)
        Path(request.working_dir, "grandchild").write_text(str(grandchild))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(forked, 0)
    pids.append(int(Path(request.working_dir, "grandchild").read_text()))
    Path(request.working_dir, "pids").write_text(" ".join(map(str, pids)))


def _orphan_and_kill(request: TrialRequest) -> None:
    _orphan(request)
    _kill(request)


def _noise(request: TrialRequest) -> None:
    line = b"noise \0 \xff" + b"." * 1015 + b"\n"
    for _ in range(200 * 1024):
        os.write(1, line)
    print("the last line", flush=True)  # noqa: T201


FAULTS = {
    "none": _nothing,
    "segfault": _segfault,
    "exit": _exit,
    "abort": _abort,
    "kill": _kill,
    "python_loop": _python_loop,
    "native_loop": _native_loop,
    "orphan": _orphan,
    "orphan_and_kill": _orphan_and_kill,
    "noise": _noise,
}


def surroundings(request: TrialRequest) -> Items:
    """Tell, as an error text, what this process was given."""
    yield Phase.BUILD
    seen = {"environ": dict(os.environ), "nice": os.nice(0)}
    yield TrialResult(outcome=Outcome.CRASH, error=json.dumps(seen))
