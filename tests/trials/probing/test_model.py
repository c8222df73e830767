"""What the probe finds out about a model, built with values or without."""

from dataclasses import replace

from autotune.trials.probing.probe import probe
from tests.search_space.machines import CPU_MACHINE

BUILT = """
def build_model():
    model = nn.Sequential(*[Block() for _ in range(4)], nn.Linear(16, 32), nn.Linear(32, 3))
    model[1].linear.weight = model[0].linear.weight
    {look}
    return model

def build_optimizer(params):
    matrices = [p for p in params if p.ndim == 2]
    return torch.optim.AdamW([{{"params": matrices, "weight_decay": 0.1}}], lr=1e-3)
"""


def test_no_fact_depends_on_values(write_workload):
    """So a model is built on the meta device, unless its code looks at values."""
    plain, looks = (
        probe(write_workload(BUILT.format(look=look)), CPU_MACHINE, 0)
        for look in ("assert model[0].linear.weight.is_meta", "model[0].linear.weight.tolist()")
    )
    unlike = {"source_hash": "", "imports": (), "loader_samples_per_s": None}
    assert replace(plain, **unlike, loader_busy_share=1.0) == replace(
        looks, **unlike, loader_busy_share=1.0
    )
    assert plain.optimizer_impls == ("foreach", "fused")
    assert plain.num_block_kinds == 1
    assert "are one parameter" in plain.shared_across
