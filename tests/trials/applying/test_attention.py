"""Attention: which kernel is tried first, and that it trains the same."""

import os

import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn.attention import SDPBackend

from autotune.search_space.knobs import BY_NAME
from autotune.search_space.plan import Plan
from autotune.trials.applying.families import process_settings

KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
ATTENTION = """
class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(4, 24)
        self.head = nn.Linear(8, 3)
    def forward(self, x):
        q, k, v = self.qkv(x.view(-1, 1, 4, 4)).chunk(3, dim=-1)
        mask = torch.ones(4, 4, dtype=torch.bool).tril()
        return self.head(
            nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).mean((1, 2))
        )

def build_model():
    return Attending()
"""


def order():
    return [SDPBackend(number) for number in torch._C._get_sdp_priority_order()]


def enabled():
    cuda = torch.backends.cuda
    flags = (cuda.flash_sdp_enabled, cuda.mem_efficient_sdp_enabled, cuda.cudnn_sdp_enabled)
    return [flag() for flag in (*flags, cuda.math_sdp_enabled)]


def test_each_offered_kernel_is_tested_here():
    """Of a value that is added, this file has to know the kernel."""
    assert BY_NAME["sdpa_kernel"].known == ("default", *KERNELS)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_kernel_is_tried_first_and_the_others_after_it(kernel):
    """It is a preference: what it does not take goes to another kernel, up to plain products."""
    own = order()
    with process_settings(Plan.of({"sdpa_kernel": kernel})):
        assert order()[0] == KERNELS[kernel]
        assert sorted(map(int, order())) == sorted(map(int, own))
        assert enabled() == [True] * 4
    assert order() == own


def test_the_first_call_of_attention_leaves_the_preference_as_it_is():
    """By itself torch puts cuDNN's kernel first then on some GPUs; this variable forbids it."""
    assert "TORCH_CUDNN_SDPA_DEPRIORITIZED" not in os.environ
    with process_settings(Plan.of({"sdpa_kernel": "flash"})):
        assert os.environ["TORCH_CUDNN_SDPA_DEPRIORITIZED"] == "1"
    assert "TORCH_CUDNN_SDPA_DEPRIORITIZED" not in os.environ


def test_what_the_users_code_switched_off_stays_off():
    """But for the kernel that the plan names."""
    torch.backends.cuda.enable_mem_efficient_sdp(enabled=False)
    try:
        own = enabled()
        with process_settings(Plan.of({"sdpa_kernel": "flash"})):
            assert enabled() == own
        assert enabled() == own
    finally:
        torch.backends.cuda.enable_mem_efficient_sdp(enabled=True)


def test_the_default_leaves_the_process_as_it_is():
    """Its kernel is what torch takes by itself."""
    own = order()
    with process_settings(Plan.of({"sdpa_kernel": "default"})):
        assert order() == own
        assert "TORCH_CUDNN_SDPA_DEPRIORITIZED" not in os.environ


def compiled_loss(kernel):
    """Return the sum of an attention whose graph comes from torch's cache or goes there."""
    torch._dynamo.reset()

    def attend(x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x).sum()

    torch.manual_seed(0)
    x = torch.randn(2, 2, 8, 8, requires_grad=True)
    with process_settings(Plan.of({"sdpa_kernel": kernel, "compile_mode": "default"})):
        loss = torch.compile(attend)(x)
        loss.backward()  # torch keeps a graph once it has its backward pass
        return loss.item()


@pytest.mark.filterwarnings("default")  # inside the compiler, a warning as error is a crash
def test_a_graph_compiled_for_one_kernel_is_not_used_for_another(tmp_path, monkeypatch):
    """A graph names its kernel; torch's cache would give the one that was compiled first."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    counters.clear()
    losses = [compiled_loss(kernel) for kernel in ("flash", "efficient")]
    assert not counters["aot_autograd"]["autograd_cache_hit"]
    assert losses == pytest.approx([losses[0]] * 2)
    compiled_loss("flash")
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1


@pytest.mark.parametrize("kernel", KERNELS)
def test_it_trains_as_without_it(kernel, write_workload, run_plan):
    """Also with a mask that not every kernel takes."""
    values = {"sdpa_kernel": kernel, "precision": "bf16"}
    result = run_plan(write_workload(ATTENTION), values, compare_with={"batch_size": 4})
    assert result.numerics is not None
    assert result.numerics.passed
