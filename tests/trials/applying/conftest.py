"""The workload that tests of several ranks train."""

import pytest

from tests.trials.applying.sharded_training import SGD
from tests.trials.conftest import TINY


@pytest.fixture(scope="module")
def workload(tmp_path_factory):
    """The path of a small workload that is trained by plain SGD."""
    path = tmp_path_factory.mktemp("sharding") / "sharded_model.py"
    path.write_text(TINY + SGD)
    return path
