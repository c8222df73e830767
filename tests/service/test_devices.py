"""The devices of a server, and what keeps a job to its own."""

import os
from dataclasses import replace

import pytest

from autotune.dispatch.machine import detect_hardware
from autotune.errors import UsageError
from autotune.service import devices
from autotune.service.devices import find_devices


@pytest.fixture
def four_gpus(monkeypatch):
    """A machine with four GPUs, as far as this module looks."""
    found = replace(detect_hardware(), device_kind="cuda", device_name="a GPU", num_devices=4)
    monkeypatch.setattr(devices, "detect_hardware", lambda: found)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(10)))


def test_a_cpu_is_one_device_or_equal_shares_of_it(monkeypatch):
    """Each core belongs to one share; a job of several ranks has its ranks in one."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 5, 6})
    whole = find_devices(None, on_cluster=False)
    assert (whole.kind, whole.ids, whole.cores_of(["cpu0"])) == ("cpu", ("cpu0",), [0, 1, 2, 5, 6])
    shares = find_devices(2, on_cluster=False)
    assert [shares.cores_of([one]) for one in shares.ids] == [[0, 1], [2, 5, 6]]
    assert shares.environment(["cpu0"]) == {}
    assert shares.needed(gpus_per_trial=2) == 1
    with pytest.raises(UsageError, match="5 cores"):
        find_devices(6, on_cluster=False)


def test_a_job_sees_its_gpus_alone(four_gpus, monkeypatch):
    """By CUDA_VISIBLE_DEVICES, with its share of the cores."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = find_devices(None, on_cluster=False)
    assert found.ids == ("0", "1", "2", "3")
    assert found.environment(["1", "3"]) == {"CUDA_VISIBLE_DEVICES": "1,3"}
    assert found.cores_of(["0", "1"]) == [0, 1, 2, 3, 4]
    assert found.needed(gpus_per_trial=2) == 2


def test_gpus_are_called_as_the_servers_environment_does(four_gpus, monkeypatch):
    """It may leave some out, or name them by UUID; a server may leave some to others."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a, GPU-b,6,7")
    assert find_devices(3, on_cluster=False).ids == ("GPU-a", "GPU-b", "6")
    with pytest.raises(UsageError, match="this machine has 4 x a GPU"):
        find_devices(5, on_cluster=False)


def test_a_clusters_devices_are_only_counted():
    """Ray gives them."""
    found = find_devices(8, on_cluster=True)
    assert (found.kind, len(found.ids), found.environment(["0"])) == ("cluster", 8, {})
    assert found.cores_of(["0"]) == []
    with pytest.raises(UsageError, match="say with --devices"):
        find_devices(None, on_cluster=True)
