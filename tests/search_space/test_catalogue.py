"""The catalogue: each entry answers every question that the search and the user ask of a knob."""

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.search_space import knobs
from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.knobs import BY_NAME, CATALOGUE, FAMILIES
from autotune.search_space.knobs.knob import Out
from autotune.search_space.site import Site
from tests.search_space.machines import CPU_MACHINE, GPU_MACHINE

FACTS = WorkloadFacts(
    batch_size=16,
    global_batch_size=64,
    num_blocks=12,
    has_conv2d=True,
    uneven_share=0.3,
    optimizer_impls=("foreach", "fused"),
    recordable=True,
)
MACHINES = (CPU_MACHINE, GPU_MACHINE)
UNEVEN = replace(FACTS, uneven_batches=True, length_gain=1.5)
SITES = [Site(facts=FACTS, hardware=machine, num_ranks=n) for machine in MACHINES for n in (1, 4)]
SITES += [Site(facts=UNEVEN, hardware=machine) for machine in MACHINES]
BACK = [
    (knob.name, knob.known[0], other)
    for knob in CATALOGUE
    for other in knob.known[1:]
    if not knob.any_count
]


def offered(knob):
    """Return each site that offers values of the knob, with those."""
    found = ((site, knob.values(site)) for site in SITES)
    return [(site, values) for site, values in found if not isinstance(values, Out)]


def test_each_family_has_a_module_that_applies_it():
    """Whoever looks for what a knob does finds it under the name where it is described."""
    described = {Path(family.__file__).stem for family in FAMILIES}
    folder = Path(knobs.__file__).parents[2] / "trials" / "applying"
    assert described <= {path.stem for path in folder.glob("*.py")}


@pytest.mark.parametrize("knob", CATALOGUE, ids=lambda knob: knob.name)
def test_each_value_has_an_expected_speed_and_a_reason(knob):
    """No value is proposed without a word, or with a speed that is none."""
    assert offered(knob)
    for site, values in offered(knob):
        for value in values:
            effect = knob.speed(value, site)
            assert effect.host > 0
            assert effect.device > 0
            assert knob.reasons.why(value, values[0] if value != values[0] else values[-1])


@pytest.mark.parametrize("knob", CATALOGUE, ids=lambda knob: knob.name)
def test_the_first_value_is_what_others_are_compared_with(knob):
    """What the user's own code does is worth nothing beside itself."""
    for site, values in offered(knob):
        effect = knob.speed(values[0], site)
        assert (effect.host, effect.device) == (1.0, 1.0)
        assert knob.memory.activations.get(values[0], 1.0) == 1.0


@pytest.mark.parametrize("knob", CATALOGUE, ids=lambda knob: knob.name)
def test_what_an_entry_says_of_values_is_about_values_it_has(knob):
    """A misspelt value would be looked up in vain, and expected to do nothing."""
    if knob.any_count:
        return
    known = {*knob.known, None}
    assert set(knob.memory.saving or {}) <= known
    assert set(knob.memory.activations) <= known
    assert set(knob.reasons.back) <= known
    assert set(knob.reasons.by_value) <= known
    assert set(knob.guarded) <= known


@pytest.mark.parametrize("knob", CATALOGUE, ids=lambda knob: knob.name)
def test_whoever_says_that_memory_is_saved_says_why(knob):
    """The reason of a trial that is run for its memory names what saves it."""
    if knob.memory.activations or knob.memory.makes_room:
        assert knob.memory.why_less


def test_conflicts_stand_with_the_knob_that_gives_up_first():
    """They are found beside the values that they exclude, and name knobs that there are."""
    for knob in CATALOGUE:
        for conflict in knob.conflicts:
            assert conflict.knobs[0] == knob.name
            assert set(conflict.knobs) <= set(BY_NAME)


@pytest.mark.parametrize(("name", "own", "other"), BACK)
def test_going_back_has_a_reason_of_its_own(name, own, other):
    """What a value does is no reason to take it away again."""
    why = BY_NAME[name].reasons.why
    assert why(own, other) != why(other, own)


@pytest.mark.parametrize("name", ["batch_size", "workers", "prefetch", "threads", "bucket_mb"])
def test_a_smaller_count_has_a_reason_of_its_own(name):
    """Fewer samples do not fill a device."""
    why = BY_NAME[name].reasons.why
    assert why(2, 4) != why(4, 2)


def test_one_alternative_instead_of_another_claims_nothing():
    """16 bits are not fewer than 16, and what compiles now compiled before."""
    why = BY_NAME["precision"].reasons.why
    assert why("fp16", "bf16") == "it may suit the step better than bf16"
    assert "fewer bits" in why("fp16", "fp32")
