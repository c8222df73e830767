"""The folders, links and packages of the repository."""

import os
import shutil
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
LINKED = ("search_space", "trials", "storage")


def run(*command, cwd, **environment):
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def python(code, cwd):
    """Run code as a user would beside a checkout: no warnings allowed, autotune importable."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code)]
    return run(*command, cwd=cwd, PYTHONPATH=str(REPOSITORY))


@pytest.mark.parametrize("name", LINKED)
def test_git_tracks_the_links(name):
    """A clone has the links: git holds them as links, not as copies."""
    shown = run("git", "ls-files", "--stage", f"autotune/{name}", cwd=REPOSITORY)
    assert shown.startswith("120000 "), shown


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel, built from a copy of what is tracked or would be."""
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("wheel")
    listed = run("git", "ls-files", "-co", "--exclude-standard", cwd=REPOSITORY).splitlines()
    for name in listed:
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, target, follow_symlinks=False)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(out), cwd=copy)
    return next(out.iterdir())


def test_a_wheel_holds_real_files(wheel):
    """Everything imported as autotune.* is in the wheel, migrations included, nothing else is."""
    names = zipfile.ZipFile(wheel).namelist()
    for name in LINKED:
        modules = (REPOSITORY / name).rglob("*.py")
        assert {f"autotune/{path.relative_to(REPOSITORY)}" for path in modules} <= set(names)
    migrations = (REPOSITORY / "storage" / "migrations").rglob("*.py")
    assert {f"autotune/{path.relative_to(REPOSITORY)}" for path in migrations} <= set(names)
    assets = (REPOSITORY / "autotune" / "dashboard" / "assets").iterdir()
    assert {str(path.relative_to(REPOSITORY)) for path in assets} <= set(names)
    assert "autotune/py.typed" in names
    folders = {name.split("/")[0] for name in names}
    assert {f for f in folders if not f.endswith(".dist-info")} == {"autotune"}


def test_an_unpacked_wheel_works_alone(wheel, tmp_path):
    """The wheel's own files make and open a store, without the repository."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "from autotune.storage.sql import open_store; open_store('a.db').close()"
    run(sys.executable, "-W", "error", "-c", code, cwd=tmp_path, PYTHONPATH="site")
    assert (tmp_path / "a.db").exists()


def test_the_users_own_modules_do_not_clash(tmp_path):
    """A `trials` package, a `storage.py` and a `search_space.py` beside model.py stay the user's.

    The workload imports its own, autotune goes on with its own, whichever comes first.
    """
    (tmp_path / "trials").mkdir()
    (tmp_path / "trials" / "__init__.py").write_text("owner = 'user'\n")
    (tmp_path / "storage.py").write_text("owner = 'user'\n")
    (tmp_path / "search_space.py").write_text("owner = 'user'\n")
    (tmp_path / "model.py").write_text(
        textwrap.dedent("""
        import search_space, storage, trials
        OWNERS = {search_space.owner, storage.owner, trials.owner}
        def build_model(): ...
        def build_dataset(): ...
        def compute_loss(model, batch): ...
        """)
    )
    code = """
        from pathlib import Path
        from autotune.trials.workload import load_workload
        load_workload(Path("model.py").resolve())
        import model
        assert model.OWNERS == {"user"}, model.OWNERS
        import autotune.storage.records, autotune.search_space.space
        import autotune.trials.applying.apply
        assert autotune.storage.records.RunState
    """
    python(code, cwd=tmp_path)


def test_help_imports_neither_torch_nor_ray(tmp_path):
    """`autotune --help` answers without the second or two that importing torch or Ray takes."""
    code = """
        import sys
        from autotune.cli.main import main
        sys.argv = ["autotune", "--help"]
        try:
            main()
        except SystemExit as stop:
            assert not stop.code, stop.code
        heavy = {"torch", "ray", "optuna", "dash"} & set(sys.modules)
        assert not heavy, heavy
    """
    assert "doctor" in python(code, cwd=tmp_path)


def test_a_plan_is_loaded_without_torch(tmp_path):
    """`import autotune` and `load_plan` need no torch: tools may read plans cheaply."""
    (tmp_path / "plan.yaml").write_text("plan: {precision: bf16}\n")
    code = """
        import sys, autotune
        assert autotune.load_plan("plan.yaml")["precision"] == "bf16"
        assert not {"torch", "ray"} & set(sys.modules)
    """
    python(code, cwd=tmp_path)


def test_a_checkout_runs_without_being_installed(tmp_path):
    """`python -m autotune` works where only the repository's folder is on the path."""
    out = run(sys.executable, "-m", "autotune", "--help", cwd=tmp_path, PYTHONPATH=str(REPOSITORY))
    assert "doctor" in out
