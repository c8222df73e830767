"""What a workload imports, read from its file."""

import pytest

from autotune.dispatch.static_imports import sets_environment, static_imports


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


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("os.environ['OMP_NUM_THREADS'] = '1'", True),
        ("environ.setdefault('HF_HOME', 'x')", True),
        ("os.environ.update(HF_HOME='x')", True),
        ("os.putenv('HF_HOME', 'x')", True),
        ("load_dotenv()", True),
        ("del os.environ['HF_HOME']", True),
        ("rank = int(os.environ.get('RANK', os.environ['LOCAL_RANK']))", False),
        ("values.update(a=1)", False),
    ],
)
def test_script_that_sets_variables_is_found(tmp_path, line, expected):
    """Also where it does so in a function, or in a file that it imports."""
    (tmp_path / "train.py").write_text(f"import os\ndef main():\n    {line}\n")
    (tmp_path / "begin.py").write_text("import train\n")
    assert sets_environment(tmp_path / "train.py") is expected
    assert sets_environment(tmp_path / "begin.py") is expected
