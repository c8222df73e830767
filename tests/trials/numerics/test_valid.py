"""Plans that train what eager fp32 trains pass, however chaotic the training is."""

import pytest

from tests.trials.numerics import workloads as w

pytestmark = pytest.mark.filterwarnings("default")  # inside the compiler, a warning is a crash

HALF = {"precision": "bf16"}
COMPILED = {"compile_mode": "default"}
FUSED = {"optimizer_impl": "fused"}
VALID = {
    "a deep net with large steps in bf16": (w.DEEP, HALF, {}),
    "a deep net with large steps, compiled": (w.DEEP, COMPILED, {}),
    "batch norm with tiny batches in bf16": (w.NORMED, HALF, {"batch_size": 4}),
    "batch norm in another memory format": (w.NORMED, {"memory_format": "channels_last"}, {}),
    "a transformer in bf16": (w.ATTENTION, HALF, {}),
    "a transformer in fp16": (w.ATTENTION, {"precision": "fp16"}, {}),
    "a transformer compiled in bf16": (w.ATTENTION, {**HALF, **COMPILED}, {}),
    "an LSTM in bf16": (w.RECURRENT, HALF, {}),
    "dropout, compiled": (w.DROPPING, COMPILED, {}),
    "dropout in bf16": (w.DROPPING, HALF, {}),
    "noise drawn in the loss, in bf16": (w.DIFFUSION, HALF, {}),
    "sparse gradients in bf16": (w.LOOKUPS, HALF, {}),
    "experts whose tokens flip in bf16": (w.EXPERTS, HALF, {"batch_size": 32}),
    "a loss near zero in bf16": (w.LEARNT, HALF, {}),
    "a large vocabulary with labels left out, in bf16": (w.MASKED, HALF, {}),
    "gradients that are noise, in bf16": (w.NOISE, HALF, {}),
    "gradients that are zero, in bf16": (w.NOTHING, HALF, {}),
    "a bias that batch norm takes away, in bf16": (w.UNUSED_BIAS, HALF, {}),
    "branches that begin at zero, in bf16": (w.BEGINS_AT_ZERO, HALF, {}),
    "a fused optimizer": (w.ATTENTION, FUSED, {}),
    "micro-batches in bf16": (w.PARTS, HALF, {"batch_size": 4, "accumulation": 4}),
}


@pytest.mark.parametrize("case", VALID)
def test_a_right_plan_passes(case, write_workload):
    """Its steps from the same weights are those of eager fp32, as far as its format allows."""
    source, values, common = VALID[case]
    report = w.checked(write_workload(source, base=w.HEAD), values, **common)
    assert report.passed, report.summary
    assert report.deviations
