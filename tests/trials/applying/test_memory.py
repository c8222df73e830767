"""Activation checkpointing trains the same, or refuses the model."""

import pytest
import torch

from autotune.trials.applying.memory import configure_allocator
from autotune.trials.failure import InvalidPlanError
from tests.trials.applying.steps import step_of

NORMS = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)
        self.middle = nn.InstanceNorm1d(4, track_running_stats=True)

    def forward(self, x):
        return torch.relu(self.norm(self.linear(self.middle(x.view(-1, 4, 4)).flatten(1))))

def build_model():
    return nn.Sequential(Block(), Block(), nn.Linear(16, 3))
"""


CHECKPOINTED = ({"activation_checkpointing": mode} for mode in ("full", "selective"))


COMPILED = {"compile_mode": "default", "activation_checkpointing": "full"}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "values", [*CHECKPOINTED, {**COMPILED, "compile_scope": "block"}, COMPILED]
)
def test_checkpointing_updates_running_statistics_once(values, write_workload):
    """A block that is run again for its gradients must not count its batch again."""
    path = write_workload(NORMS)
    plain, again = state_after(path, {}), state_after(path, values)
    assert plain["0.norm.num_batches_tracked"] == 4
    assert plain.keys() == again.keys()
    for name in (n for n in plain if "running" in n or "tracked" in n):
        torch.testing.assert_close(again[name], plain[name], rtol=0, atol=1e-3, msg=name)


def state_after(path, values, steps=4):
    with step_of(path, values) as step:
        batches = iter(step.loader)
        for _ in range(steps):
            step(next(batches))
        state = step.model.state_dict()
    return {
        name.replace("_checkpoint_wrapped_module.", ""): t.clone() for name, t in state.items()
    }


COUNTING = """
class Counting(nn.Linear):
    def __init__(self):
        super().__init__(16, 16)
        self.{begin}

    def forward(self, x):
        self.{count}
        return super().forward(x)

def build_model():
    return nn.Sequential(Counting(), Counting(), nn.Linear(16, 3))
"""


BUFFER = 'register_buffer("calls", torch.zeros(()))'


@pytest.mark.parametrize(
    ("begin", "count", "named"),
    [
        (BUFFER, "calls += 1", "buffer calls"),
        (BUFFER, "calls = self.calls + 1", "buffer calls"),
        ("calls = 0", "calls += 1", "attribute calls"),
    ],
)
@pytest.mark.parametrize("mode", ["full", "selective"])
def test_checkpointing_refuses_blocks_that_remember(mode, begin, count, named, write_workload):
    """Nobody can tell what a second pass does to it: this one would count each batch twice."""
    path = write_workload(COUNTING.format(begin=begin, count=count))
    step = step_of(path, {"activation_checkpointing": mode})
    with step, pytest.raises(InvalidPlanError, match=f"writes to its {named}"):
        step(next(iter(step.loader)))


OWN_NORM = """
class Own(nn.Linear):
    def __init__(self):
        super().__init__(16, 16)
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("spread", torch.ones(16))

    def forward(self, x):
        x = nn.functional.batch_norm(x, self.mean, self.spread, training=True)
        return super().forward(x)

def build_model():
    return nn.Sequential(Own(), Own(), nn.Linear(16, 3))
"""


def test_checkpointing_refuses_statistics_that_it_does_not_know(write_workload):
    """Torch does not count what the kernel of batch norm writes."""
    step = step_of(write_workload(OWN_NORM), {"activation_checkpointing": "full"})
    with step, pytest.raises(InvalidPlanError, match="writes to its buffer mean"):
        step(next(iter(step.loader)))


BROKEN = """
class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)

    def forward(self, x):
        self.seen = self.norm(x).mean().item()
        return self.linear(self.norm(x))

def build_model():
    return nn.Sequential(Normed(), Normed(), nn.Linear(16, 3))
"""


@pytest.mark.filterwarnings("ignore")
def test_checkpointing_refuses_compiled_blocks_whose_graph_breaks_over_a_norm(write_workload):
    """What comes before the break is run again, statistics of the norm included."""
    plan = {"activation_checkpointing": "full", "compile_mode": "default"}
    step = step_of(write_workload(BROKEN), plan)
    with step, pytest.raises(InvalidPlanError, match="buffer num_batches_tracked"):
        step(next(iter(step.loader)))


def allocator_settings():
    return torch._C._accelerator_getAllocatorSettings()


@pytest.mark.skipif(
    not hasattr(torch._C, "_accelerator_getAllocatorSettings"), reason="torch before 2.12"
)
@pytest.mark.parametrize(
    ("own", "within"),
    [
        (None, "expandable_segments:True"),
        ("max_split_size_mb:64", "max_split_size_mb:64,expandable_segments:True"),
        (
            "expandable_segments:False,roundup_power2_divisions:[256:1,512:2]",
            "roundup_power2_divisions:[256:1,512:2],expandable_segments:True",
        ),
    ],
)
def test_segments_grow_beside_the_users_own_settings(own, within, monkeypatch, write_workload):
    """And only as long as the plan is applied."""
    if own is not None:
        monkeypatch.setenv("PYTORCH_ALLOC_CONF", own)
    with step_of(write_workload(), {"allocator": "expandable"}):
        assert allocator_settings() == within
    assert allocator_settings() == (own or "expandable_segments:False")
    configure_allocator("")
