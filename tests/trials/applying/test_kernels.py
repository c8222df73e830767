"""A file of kernels that does not fit is left alone, with a line that says why."""

import json
import zipfile
from dataclasses import replace

import pytest
import torch

import autotune
from autotune.search_space.plan import Plan
from autotune.trials.applying import kernels

CPU = torch.device("cpu")
COMPILED = Plan.of({"compile_mode": "default", "batch_size": 4})


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of the compiler's cache, empty."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def made(tmp_path):
    """Write a file of kernels, for this machine unless told otherwise; return the plan with it."""

    def write(*, named="libraries/ab/abc.so", cache=b"", **other):
        path = tmp_path / "plan.kernels"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("made_for.json", json.dumps({**kernels._versions(CPU), **other}))
            archive.writestr(named, b"a library")
            archive.writestr("cache", cache)
        return replace(COMPILED, kernels=str(path))

    return write


def test_kernels_of_another_torch_are_left_alone(made, cache, capsys):
    """The line names both versions, and what to do."""
    kernels.load_plans_kernels(made(torch="2.7.0"), CPU)
    assert capsys.readouterr().err == (
        "autotune: plan.kernels is not used: it was made for torch 2.7.0; here it is torch "
        f"{torch.__version__} (`autotune export RUN --with-kernels` writes one for this machine), "
        "so the first step compiles as without the file\n"
    )
    assert not cache.exists()


def test_kernels_of_another_device_are_left_alone(made, cache, capsys):
    """A processor of another name may lack the instructions that they use."""
    kernels.load_plans_kernels(made(device="cuda (NVIDIA H200)", triton="3.6.0"), CPU)
    err = capsys.readouterr().err
    assert "it was made for triton 3.6.0, device cuda (NVIDIA H200); here it is triton" in err
    assert err.count("\n") == 1
    assert not cache.exists()


@pytest.mark.parametrize("at", [0, 100, -300])
def test_a_damaged_file_is_left_alone(at, made, cache, capsys):
    """Bytes that changed are seen before the compiler reads any of them."""
    plan = made(cache=bytes(range(256)) * 4)
    path = cache.with_name("plan.kernels")
    content = bytearray(path.read_bytes())
    content[at : len(content) if at < 0 else at + 50] = b"\xff" * 50
    path.write_bytes(content)
    kernels.load_plans_kernels(plan, CPU)
    err = capsys.readouterr().err
    assert err.startswith("autotune: plan.kernels is not used: it cannot be read: ")
    assert err.count("\n") == 1
    assert not cache.exists()


def test_what_torch_cannot_read_is_left_alone(made, cache, capfd):
    """The file is whole, and its inside is not what torch wrote."""
    kernels.load_plans_kernels(made(cache=b"of another kind"), CPU)
    assert f"torch {torch.__version__} cannot read it" in capfd.readouterr().err


def test_no_library_is_written_outside_of_the_cache(made, cache, tmp_path, capsys):
    """A file from elsewhere may hold any name."""
    kernels.load_plans_kernels(made(named="libraries/../outside.so"), CPU)
    assert "leads out of the compiler's cache folder" in capsys.readouterr().err
    assert not (tmp_path / "outside.so").exists()


def test_a_file_that_is_gone_is_said_to_be(made, cache, capsys):
    """It was there when the plan was read."""
    plan = made()
    cache.with_name("plan.kernels").unlink()
    kernels.load_plans_kernels(plan, CPU)
    assert "there is no such file any more" in capsys.readouterr().err


def test_a_plan_that_compiles_nothing_needs_no_kernels(made, cache, capsys):
    """Nothing is read, and nothing is said."""
    kernels.load_plans_kernels(replace(made(torch="2.7.0"), items=()), CPU)
    assert capsys.readouterr().err == ""


def test_a_plan_is_read_with_the_kernels_beside_it(made, tmp_path):
    """They follow the plan file's name; plans with and without them are equal."""
    made()
    (tmp_path / "plan.yaml").write_text("plan: {compile_mode: default, batch_size: 4}\n")
    (tmp_path / "other.yaml").write_text("plan: {compile_mode: default, batch_size: 4}\n")
    plan, other = (autotune.load_plan(tmp_path / f"{name}.yaml") for name in ("plan", "other"))
    assert plan.kernels == str(tmp_path / "plan.kernels")
    assert other.kernels is None
    assert plan == other
