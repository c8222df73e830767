"""Scripts in processes that are forked with their imports: what they see is what scripts see."""

import os
import shutil
import subprocess
import sys

import pytest

from autotune.search_space.command import Command
from autotune.search_space.plan import Plan
from autotune.trials.command.forked import is_plain_script
from autotune.trials.command.launch import hooked
from autotune.trials.command.order import Order, Task

# Starts each script as a trial does, from a process that has imported torch and done nothing else.
START = """
import json, os, sys
import torch
from pathlib import Path
from autotune.trials.command.forked import ForkedScript
for name in sys.argv[2:]:
    for stream in (1, 2):
        os.dup2(os.open(f"{name}.{stream}", os.O_CREAT | os.O_WRONLY), stream)
    argv = [sys.executable, f"{name}.py", "--epochs", "3"]
    script = ForkedScript(argv, cwd=Path(sys.argv[1]), env=dict(os.environ))
    Path(f"{name}.code").write_text(f"{script.wait()} {script.poll()}")
"""
SEES = """
import os, pickle, subprocess, sys, torch, beside
from torch.utils.data import DataLoader, TensorDataset

class Own:
    pass

if __name__ == "__main__":
    assert sys.modules["__main__"].Own is Own
    print(sys.argv, __file__, sys.path[0], __spec__ is None, beside.value)
    print(type(pickle.loads(pickle.dumps(Own()))).__module__)
    told = "import os; print(os.environ['AUTOTUNE_ORDER'][:9])"
    sys.stdout.flush()
    subprocess.run([sys.executable, "-c", told], check=True)
    data = TensorDataset(torch.arange(4))
    loader = DataLoader(data, num_workers=1, multiprocessing_context="spawn")
    print([batch[0].item() for batch in loader])
"""
AT_ITS_END = """
import atexit, threading, time
atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
"""
SCRIPTS = {
    "sees": (SEES, 0),
    "at_its_end": (AT_ITS_END, 0),
    "status": ("import sys; sys.exit(3)", 3),
    "no_status": ("raise SystemExit", 0),
    "words": ("raise SystemExit('no data')", 1),
    "error": ("def f():\n    raise ValueError('no loss')\nf()", 1),
    "no_python": ("def broken(:", 1),
    "killed": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which each script ran in a forked process, with its output and status."""
    folder = tmp_path_factory.mktemp("scripts")
    for name, (text, _) in SCRIPTS.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "beside.py").write_text("value = 7\n")
    words = [sys.executable, "-P", "-c", START, str(folder), *SCRIPTS]
    subprocess.run(words, cwd=folder, env=environment(), check=True)
    return folder


def environment():
    """The environment of a process with hooks."""
    order = Order(task=Task.TRAIN, plan=Plan.of({}), command=Command(argv=("python", "a.py")))
    return {**os.environ, **hooked(order)}


@pytest.mark.parametrize(("name", "code"), [(name, code) for name, (_, code) in SCRIPTS.items()])
def test_forked_script_sees_prints_and_ends_as_by_itself(folder, name, code):
    argv = [sys.executable, f"{name}.py", "--epochs", "3"]
    alone = subprocess.run(
        argv, cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    assert alone.returncode == code, alone.stderr
    assert (folder / f"{name}.code").read_text() == f"{code} {code}"
    assert (folder / f"{name}.1").read_text() == alone.stdout
    assert (folder / f"{name}.2").read_text() == alone.stderr


def test_only_a_script_of_this_python_is_forked(tmp_path):
    another = tmp_path / "python"
    another.symlink_to(os.path.realpath(sys.executable))
    assert is_plain_script([sys.executable, "train.py", "-x"])
    assert not is_plain_script([str(another), "train.py"])
    assert not is_plain_script([sys.executable, "-u", "train.py"])
    assert not is_plain_script([sys.executable, "-m", "trainer"])
    assert not is_plain_script([sys.executable])
    assert not is_plain_script([shutil.which("env"), "train.py"])
    assert not is_plain_script(["no-such-program", "train.py"])
