"""Jobs for a fork server."""

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

WORLD = ["untouched"]


def count(number: int) -> Iterator[Any]:
    yield from range(number)


def change_the_world(nothing: None) -> Iterator[Any]:
    yield WORLD[0]
    WORLD[0] = "changed"


def die(how: str) -> Iterator[Any]:
    yield "dying"
    kind, number = how.split()
    if kind == "exit":
        os._exit(int(number))
    os.kill(os.getpid(), int(number))
    time.sleep(60)


def broken(nothing: None) -> Iterator[Any]:
    yield from ()
    raise LookupError("a bug of ours")


def leave_a_child(nothing: None) -> Iterator[Any]:
    if os.fork() == 0:
        time.sleep(60)
    yield "one word"
    os.kill(os.getpid(), signal.SIGKILL)


def start_a_child_and_wait(nothing: None) -> Iterator[Any]:
    yield subprocess.Popen(["sleep", "60"], start_new_session=True).pid
    time.sleep(60)


def loop_for_ever(nothing: None) -> Iterator[Any]:
    yield "looping"
    while True:
        pass


def is_imported(name: str) -> Iterator[Any]:
    imported = name in sys.modules
    importlib.import_module(name)
    yield imported


def look_only_variable(nothing: None) -> Iterator[Any]:
    yield os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK")
