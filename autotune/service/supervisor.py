"""Watches over one job: starts it, waits for its end, ends all that it left, keeps how it ended.

`python -m autotune.service.supervisor FOLDER` lives as long as the job and longer than a server
that dies. The folder tells it what to do (`order.json`) and gets what others ask for later: which
process it is, the job's output, and the exit code. A lock in the folder makes sure that a job
never runs twice at once, whoever starts it.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from autotune.dispatch.reaper import find_processes, kill_all
from autotune.storage.driver import this_driver

JOB_VARIABLE = "AUTOTUNE_JOB"
"""The environment variable by which a job's processes are found; its value is the folder."""
LOCK, ORDER, PROCESS, OUTPUT, EXIT = (
    "lock",
    "order.json",
    "process.json",
    "output.log",
    "exit.json",
)
"""The files in a job's folder."""
COULD_NOT_START = 127
"""The exit code of a job whose program cannot be started, as shells have it."""
LEAVE_S = 5.0
"""Seconds that a job's other processes have to end by themselves when it has ended."""
LOCK_S = 1.0
"""Seconds to try for the lock: a server that looks whether it is taken holds it for a moment."""
POLL_S = 0.05
_PR_SET_CHILD_SUBREAPER = 36  # of <linux/prctl.h>


def main(folder: Path) -> None:
    """Run the job of a folder, unless another process does so or has done so."""
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    if not _take(lock) or (folder / EXIT).exists():
        return
    write_json(folder / PROCESS, {"process": this_driver()})
    # Orphans of the job become children of this process, so that none of them gets lost.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    code = _run(folder, json.loads((folder / ORDER).read_text()))
    _end_others(folder)
    write_json(folder / EXIT, {"exit_code": code})


def _take(lock: int) -> bool:
    """Take the lock until this process ends; False where another process has it."""
    until = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(POLL_S)
        else:
            return True


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a file of mode 600 that is there as a whole or not at all, whatever happens."""
    part = path.with_suffix(".part")
    with open(part, "w", opener=_private) as file:
        file.write(json.dumps(document))
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _run(folder: Path, order: dict[str, Any]) -> int:
    """Run the job's command, and return its exit code."""
    stopping = _Stopping()
    if order["cores"]:
        os.sched_setaffinity(0, order["cores"])
    with (folder / OUTPUT).open("ab") as output:
        try:
            child = subprocess.Popen(  # noqa: S603  what the server was asked to run
                order["command"],
                cwd=order["working_dir"],
                env=order["environment"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            output.write(f"autotune: cannot start {order['command'][0]}: {error}\n".encode())
            return COULD_NOT_START
    stopping.begin(child)
    return child.wait()


class _Stopping:
    """Passes the wish to stop on to the job, also where it comes before the job has started.

    SIGTERM to this process is one Ctrl-C to the job, SIGINT the second. More are not sent: they
    would disturb a job that ends already.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._num_wanted = self._num_sent = 0
        signal.signal(signal.SIGTERM, lambda number, frame: self._want(1))
        signal.signal(signal.SIGINT, lambda number, frame: self._want(2))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def begin(self, child: subprocess.Popen[bytes]) -> None:
        """Tell the job, from now on, and of what was wanted before it started."""
        self._child = child
        self._send()

    def _want(self, num: int) -> None:
        self._num_wanted = max(self._num_wanted, num)
        self._send()

    def _send(self) -> None:
        while self._child is not None and self._num_sent < self._num_wanted:
            if self._num_sent:
                time.sleep(POLL_S)  # two at one moment would count as one
            self._num_sent += 1
            self._child.send_signal(signal.SIGINT)


def _end_others(folder: Path) -> None:
    """Wait a little for what the job has left behind, then kill it."""
    until = time.monotonic() + LEAVE_S
    session = os.getsid(0)
    while find_processes(JOB_VARIABLE, str(folder), session) and time.monotonic() < until:
        _bury()
        time.sleep(POLL_S)
    kill_all(JOB_VARIABLE, str(folder), session)
    _bury()


def _bury() -> None:
    """Take the exit codes of adopted processes that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


if __name__ == "__main__":
    main(Path(sys.argv[1]))
