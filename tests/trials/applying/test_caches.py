"""Checkpointed language models whose blocks write to a cache train as without checkpointing."""

import textwrap

import pytest

from autotune.trials.failure import InvalidPlanError
from tests.trials.applying.steps import step_of

MODES = ("selective", "every-2", "full")
# Behaves as transformers' GPT-2 does: a cache by default, to which each block appends.
CACHING = """
import types

class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.out = nn.Linear(16, 16), nn.Linear(16, 16)
    def forward(self, x, cache=None):
        keys = self.linear(x)
        if cache is not None:
            cache[id(self)] = torch.cat([*cache.get(id(self), []), keys[None]])
            keys = cache[id(self)]
            if len(keys) > 1:
                keys = keys[1:]
            keys = keys[0]
        return x + torch.relu(self.out(keys))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = types.SimpleNamespace(use_cache=True)
        self.blocks = nn.ModuleList(Cached() for _ in range(4))
        self.head = nn.Linear(16, 3)
    def forward(self, x, past_key_values=None, use_cache=None):
        use_cache = self.config.use_cache if use_cache is None else use_cache
        past_key_values = {} if use_cache and past_key_values is None else past_key_values
        for block in self.blocks:
            x = block(x, past_key_values)
        self.given = past_key_values
        return self.head(x)

def build_model():
    return Model()
"""
GPT2 = """
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel

class Tokens(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(index))

def build_model():
    sizes = dict(vocab_size=64, n_positions=16, n_embd=16, n_layer=4, n_head=2)
    tokens = dict(bos_token_id=0, eos_token_id=0)
    off = dict(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    return GPT2LMHeadModel(GPT2Config(**sizes, **tokens, **off))

def build_dataset():
    return Tokens()

def compute_loss(model, batch):
    return model(input_ids=batch, labels=batch, attention_mask=torch.ones_like(batch)).loss
"""


def losses(path, values):
    with step_of(path, values) as step:
        return [float(step(batch)) for _, batch in zip(range(4), step.loader, strict=False)]


@pytest.mark.parametrize("mode", MODES)
def test_a_cache_that_nobody_reads_is_left_out(mode, write_workload):
    """The training stays the same, and the model's settings, too."""
    path = write_workload(CACHING)
    assert losses(path, {"activation_checkpointing": mode}) == losses(path, {})
    with step_of(path, {"activation_checkpointing": mode}) as step:
        step(next(iter(step.loader)))
        assert step.model.given is None
        assert step.model.config.use_cache is True


def test_evaluation_and_other_plans_keep_the_cache(write_workload):
    """Generating text needs it."""
    path = write_workload(CACHING)
    with step_of(path, {"activation_checkpointing": "full"}) as step:
        inputs, _ = next(iter(step.loader))
        step.model.eval()
        step.model(inputs)
        assert step.model.given
    with step_of(path) as step:
        step(next(iter(step.loader)))
        assert step.model.given


ARGUMENTS = ("use_cache=True", "past_key_values=None", "past_key_values={}")


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_a_cache_of_the_workloads_own_is_refused(argument, write_workload):
    """It may train on what an earlier call left in it."""
    calls = f"""
    def compute_loss(model, batch):
        x, y = batch
        return nn.functional.cross_entropy(model(x, {argument}), y)
    """
    path = write_workload(CACHING + textwrap.dedent(calls))
    step = step_of(path, {"activation_checkpointing": "full"})
    with pytest.raises(InvalidPlanError, match="Model is called with"):
        step(next(iter(step.loader)))


def test_a_cache_that_the_workload_switches_off_needs_nothing(write_workload):
    """Whatever else it hands over."""
    calls = """
    def compute_loss(model, batch):
        x, y = batch
        return nn.functional.cross_entropy(model(x, None, use_cache=False), y)
    """
    path = write_workload(CACHING + textwrap.dedent(calls))
    assert losses(path, {"activation_checkpointing": "full"}) == losses(path, {})


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("mode", MODES)
def test_a_gpt2_of_transformers_trains_the_same(mode, write_workload):
    """With its own settings, in which the cache is on; `selective` used to crash."""
    pytest.importorskip("transformers")
    path = write_workload(base=GPT2)
    assert losses(path, {"activation_checkpointing": mode}) == losses(path, {})
