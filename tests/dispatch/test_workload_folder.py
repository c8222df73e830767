"""What travels of a workload's folder."""

import pytest

from autotune.dispatch import workload_folder
from autotune.errors import ClusterError


@pytest.fixture
def folder(tmp_path):
    """A workload's folder as people have them."""
    files = {
        "model.py": "x = 1",
        "lib/layers.py": "y = 2",
        "data.bin": "0" * 100,
        ".git/config": "",
        "__pycache__/model.pyc": "",
        "env/pyvenv.cfg": "",
        "env/lib/torch.py": "",
        "autotune.db": "",
    }
    for name, text in files.items():
        path = tmp_path / "there" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "there"


def test_sources_and_data_travel(folder, tmp_path):
    """Without environments, caches, databases and hidden files."""
    workload_folder.pack_folder(folder).unpack(tmp_path / "here")
    found = {str(p.relative_to(tmp_path / "here")) for p in (tmp_path / "here").rglob("*.*")}
    assert found == {"model.py", "lib/layers.py", "data.bin"}
    assert workload_folder.source_hash(tmp_path / "here") == workload_folder.source_hash(folder)


def test_a_changed_source_is_noticed(folder):
    """A node with an older copy gets the new one."""
    before = workload_folder.source_hash(folder)
    (folder / "lib" / "layers.py").write_text("y = 3")
    assert workload_folder.source_hash(folder) != before
    assert workload_folder.source_hash(folder / "none") is None


def test_too_much_is_refused(folder, monkeypatch):
    """With what to do about it."""
    monkeypatch.setattr(workload_folder, "MAX_BYTES", 50)
    with pytest.raises(ClusterError, match="a folder of its own"):
        workload_folder.pack_folder(folder)
