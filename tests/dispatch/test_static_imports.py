"""What a workload imports, read from its file."""

from autotune.dispatch.static_imports import static_imports


def test_installed_packages_are_named_with_what_is_taken_from_them(tmp_path):
    """Neighbours are read, too; the standard library and what is not installed are left out."""
    (tmp_path / "model.py").write_text(
        "from __future__ import annotations\n"
        "import os, torch.nn.functional as F\n"
        "from numpy import fft\n"
        "import no_such_package\n"
        "import layers, yaml\n"
        "from . import never\n"
        "def build_model():\n    import pydantic\n"
    )
    (tmp_path / "layers.py").write_text("from rich import console\nimport model, numpy\n")
    (tmp_path / "yaml").mkdir()
    found = static_imports(tmp_path / "model.py")
    assert found == ("torch.nn.functional", "numpy:fft", "rich:console", "numpy")


def test_a_file_that_cannot_be_read_imports_nothing(tmp_path):
    """The process that loads it says what is wrong."""
    (tmp_path / "model.py").write_text("def broken(:")
    assert static_imports(tmp_path / "model.py") == ()
    assert static_imports(tmp_path / "missing.py") == ()
