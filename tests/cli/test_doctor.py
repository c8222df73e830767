"""`autotune doctor` on this machine, and on one that lacks things."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from autotune.cli.checks import (
    check_devices,
    check_package,
    check_shared_memory,
    check_torch,
)

REPOSITORY = Path(__file__).parents[2]
DRIVER = {"driver": "570.86", "cuda": "12.8", "devices": ["NVIDIA H200"] * 2}


def doctor(folder, *args, **environment):
    """Run it in `folder`; it ends well whatever is missing."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "autotune", "doctor", *args],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_json_is_one_document_with_every_check(tmp_path):
    """--json gives one document; what is here is no gap, and has no cost; versions are right."""
    checks = {check["name"]: check for check in json.loads(doctor(tmp_path, "--json"))["checks"]}
    assert {"python", "torch", "devices", "compiler", "ray", "cores", "store"} <= set(checks)
    assert (checks["torch"]["gap"], checks["ray"]["gap"]) == (False, False)
    assert checks["store"]["found"].startswith(str(tmp_path))
    # Read without importing torch; builds for CUDA or the CPU only add to it.
    assert checks["torch"]["found"].startswith(metadata.version("torch").partition("+")[0])


def test_gaps_say_what_they_cost_and_how_to_mend_them(tmp_path):
    """Without a compiler and with a torch that cannot be imported, both are gaps; exit code 0."""
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12 is missing')\n")
    (tmp_path / "empty").mkdir()
    path = f"{tmp_path}{os.pathsep}{REPOSITORY}"
    text = doctor(tmp_path, PATH=str(tmp_path / "empty"), CXX="", PYTHONPATH=path)
    assert "gap torch          ImportError: libcudart.so.12 is missing" in text
    assert "costs: nothing can run" in text
    assert "gap compiler       no C++ compiler" in text
    assert "mend:  install g++" in text
    assert text.endswith("2 gaps to mend\n")


def test_gpus_that_torch_cannot_use_are_a_gap():
    """Idle GPUs are found, with the reason: torch is built for the CPU, or for a newer CUDA."""
    for_cpu = check_devices({"version": "2.13", "cuda": None, "devices": []}, DRIVER)
    newer = check_devices({"version": "2.13", "cuda": "13.0", "devices": []}, DRIVER)
    assert "2 x NVIDIA H200" in for_cpu.found
    assert "it is built for the CPU" in for_cpu.found
    assert "it is built for CUDA 13.0" in newer.found
    assert "CUDA 12.8 or older" in newer.cure
    assert for_cpu.cost == newer.cost == "trials run on the CPU, the GPUs stay idle"


@pytest.mark.parametrize(
    ("torch", "driver"),
    [
        ({"version": "2.13", "cuda": "12.8", "devices": ["NVIDIA H200"]}, DRIVER),
        ({"version": "2.13", "cuda": None, "devices": []}, {}),
    ],
)
def test_a_machine_that_works_has_no_gap(torch, driver):
    """GPUs that torch uses, and a machine without any, are both as they should be."""
    assert not check_devices(torch, driver).is_gap
    assert not check_torch(torch).is_gap


def test_missing_packages_and_shared_memory_are_gaps(tmp_path):
    """A package that is not installed and a /dev/shm that is not there cost what they say."""
    assert check_package("no_such_package", "no trial can run", "install it").is_gap
    assert not check_package("ray", "no trial can run", "install it").is_gap
    gap = check_shared_memory(tmp_path / "nowhere")
    assert gap.found.startswith("0 KiB")
    assert "--shm-size" in gap.cure
