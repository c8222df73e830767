"""The order in which settings are flipped back."""

from autotune.agent.conclusion.confirm import reverted_knobs
from tests.agent.histories import SPACE, history
from tests.agent.world import ok


def test_what_changes_the_numbers_proves_its_worth_first():
    """Before a loader's settings, and what other settings bring comes last."""
    found = {"workers": 1, "prefetch": 4, "precision": "bf16", "batch_size": 32}
    flips = [name for name, _ in reverted_knobs(SPACE.plan(found), history(({}, ok(50.0))))]
    assert flips == ["batch_size", "precision", "workers", "prefetch"]
