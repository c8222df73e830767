"""Each setting of a plan is in the configuration of a tool, or the user is told what to do."""

import pytest

from autotune.export.frameworks import FRAMEWORKS
from autotune.export.frameworks.framework import said_in
from autotune.export.frameworks.in_code import in_code
from autotune.search_space.knobs import CATALOGUE
from tests.export.frameworks.plans import GPU, IN_CODE, left_out, training, written

DEFAULTS = {("prefetch", 2), ("bucket_mb", 25), ("activation_memory_budget", 1.0)}
COUNTS = {"batch_size": (2, 64), "accumulation": (2,), "workers": (4,), "threads": (1,)}
SETTINGS = [
    (knob.name, value)
    for knob in CATALOGUE
    for value in (knob.known or COUNTS.get(knob.name, (50,)))
]
DIALECTS = [
    pytest.param(dialect, id=f"{tool.name}-{name}")
    for tool in FRAMEWORKS.values()
    for name, dialect in tool.dialects.items()
]
SHARDINGS = ("ddp", "zero1", "fsdp_zero2", "fsdp_zero3", "hsdp")
# What torch and each tool do by themselves.
BY_ITSELF = ("none", "off", "default", "model", "fp32", "ddp", "contiguous", "system", "measured")
OF_DDP = ("bucket_mb", "gradient_as_bucket_view", "static_graph", "comm_hook")


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_no_setting_is_lost(sharding, dialect):
    """With another value of any knob the file differs, or what the user is told."""
    usual = {"batch_size": 8, "sharding": sharding, "compile_mode": "max-autotune"}
    for name, value in SETTINGS:
        if name in OF_DDP and sharding != "ddp":
            continue
        values = {**usual, name: value}
        without = {knob: held for knob, held in values.items() if knob != name}
        said = [said_in(training(plan, ranks=4), dialect) for plan in (values, without)]
        is_default = value in BY_ITSELF or value is False or (name, value) in DEFAULTS
        if dialect in FRAMEWORKS["torchtitan"].dialects.values():
            is_default |= (name, value) == ("compile_scope", "block")
        assert said[0] != said[1] or is_default, (name, value)


@pytest.mark.parametrize(("name", "value"), SETTINGS)
def test_each_setting_has_a_sentence_or_needs_none(name, value):
    """Also for a tool that has no key for it."""
    sentence = in_code(name, value, training({**GPU, "sharding": "ddp"}, ranks=2))
    assert sentence is None or "{" not in sentence


def test_what_a_file_cannot_say_is_in_its_comment():
    """With what to do, in the order of the catalogue; the user's own knobs last."""
    configured = written("transformers", GPU | IN_CODE)
    told = left_out(configured)
    assert list(told) == [
        "shape_padding",
        "memory_format",
        "cudnn_benchmark",
        "threads",
        "attention",
    ]
    assert told["cudnn_benchmark"] == "torch.backends.cudnn.benchmark = True"
    for knob, instead in told.items():
        assert any(
            line.startswith(f"#     {knob}=") and line.endswith(instead)
            for line in configured.text.splitlines()
        )


def test_a_plan_that_a_file_says_in_full_has_no_such_comment():
    """There is nothing to do by hand."""
    configured = written("transformers", {"precision": "bf16", "batch_size": 8})
    assert not configured.left_out
    assert "in your own code" not in configured.text
