"""The families of knobs, as the search space and the code that applies them name them."""

from autotune.search_space import knobs
from autotune.trials.applying import families


def test_each_family_of_knobs_is_applied_by_the_module_of_its_name():
    """So a knob's entry tells where it is applied."""
    named, applied = (
        {module.__name__.rpartition(".")[2] for module in package.FAMILIES}
        for package in (knobs, families)
    )
    assert named == applied
