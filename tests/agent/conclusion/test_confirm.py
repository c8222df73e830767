"""What is measured again in the time that is left, and in which order settings are flipped."""

from autotune.agent.conclusion.confirm import Ending, reverted_knobs
from autotune.agent.settings import SearchSettings
from autotune.trials.result import Purpose
from tests.agent.histories import SPACE, history
from tests.agent.world import GPU, ok


def test_what_changes_the_numbers_proves_its_worth_first():
    """Before a loader's settings, and what other settings bring comes last."""
    found = {"workers": 1, "prefetch": 4, "precision": "bf16", "batch_size": 32}
    flips = [name for name, _ in reverted_knobs(SPACE.plan(found), history(({}, ok(50.0))))]
    assert flips == ["batch_size", "precision", "workers", "prefetch"]


def test_where_the_leader_takes_too_long_the_next_best_is_measured_again():
    """A slower answer that is confirmed is worth more than a faster one that is not."""
    cheap, dear = {"optimizer_impl": "fused"}, {"precision": "tf32"}
    seen = history(
        ({}, ok(50.0, total_s=8.0)),
        (cheap, ok(80.0, total_s=6.0)),
        (dear, ok(100.0, total_s=60.0)),
    )
    ending = Ending(settings=SearchSettings(budget_s=300.0), hardware=GPU)
    whole, short = ending.next(seen, 200.0), ending.next(seen, 10.0)
    assert short.purpose is Purpose.CONFIRM
    assert short.plan == SPACE.plan(cheap)
    assert whole.plan != short.plan
    assert ending.next(seen, 3.0) is None
