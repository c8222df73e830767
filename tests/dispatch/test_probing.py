"""What the look at a workload leaves behind: nothing."""

from pathlib import Path

import psutil

from autotune.dispatch.clusters import LocalCluster
from autotune.trials.request import ProbeRequest

STARTS_A_PROCESS = """
import subprocess, torch
from pathlib import Path

def build_model():
    return torch.nn.Linear(4, 1)

def build_dataset():
    helper = subprocess.Popen(["sleep", "1000"])
    with Path("helpers").open("a") as file:
        print(helper.pid, file=file)
    return [torch.ones(4)] * 64

def compute_loss(model, batch):
    return model(batch).mean()
"""


def test_what_the_workload_started_ends_with_the_look_at_it(cpu, tmp_path, monkeypatch):
    """It would take its share of the machine beside every trial."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(STARTS_A_PROCESS)
    with LocalCluster(cpu) as cluster:
        cluster.start_probe(
            ProbeRequest(
                workload_path=str(tmp_path / "model.py"),
                working_dir=str(Path.cwd()),
                hardware=cluster.hardware,
                seed=0,
            )
        )
        assert cluster.facts(120.0).dataset_len == 64
        helpers = (tmp_path / "helpers").read_text().split()
        assert helpers
        assert not [pid for pid in helpers if _is_alive(int(pid))]


def _is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
