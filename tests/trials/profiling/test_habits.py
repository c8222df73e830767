"""What performance guides warn of is found in a forward pass, and nothing is where it is not."""

import importlib
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autotune.trials.diagnosis import FindingKind
from autotune.trials.profiling.habits import Habits

FOLDER = Path(__file__).parent
TOKENS, FEW = 64, 31


def found_in(model, *inputs):
    """Call the model as the diagnosis does."""
    habits = Habits(model, FOLDER)
    with habits:
        model(*inputs).sum().backward()
    return list(habits.findings())


class Attention(nn.Module):
    """By hand; `product` multiplies the scores with the values."""

    def __init__(self, product=torch.matmul):
        super().__init__()
        self.product = product
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        scores = F.dropout(torch.softmax(q @ k.mT / 2, dim=-1), 0.1).to(v.dtype)
        return self.product(scores, v)  # values


def line_of(text):
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


PRODUCTS = {
    "matmul": torch.matmul,
    "@": lambda scores, v: scores @ v,
    "bmm": lambda scores, v: torch.bmm(scores.flatten(0, 1), v.flatten(0, 1)),
    "einsum": lambda scores, v: torch.einsum("bhqk,bhkd->bhqd", scores, v),
}


@pytest.mark.parametrize("how", PRODUCTS)
def test_attention_by_hand_is_found_where_scores_meet_values(how):
    """With its shape, its size, how often, and what to call in its place."""
    layers = nn.ModuleList(Attention(PRODUCTS[how]) for _ in range(3))
    (finding,) = found_in(Layers(layers), torch.randn(5, TOKENS, 8))
    assert finding.kind is FindingKind.ATTENTION
    assert "5 x 2 x 64 x 64 (0.1562 MiB), 3 times in a step" in finding.what
    assert "scaled_dot_product_attention" in finding.advice
    assert Path(finding.file) == Path(__file__)
    here = "self.product(scores, v)  # values" if how == "matmul" else f'"{how}": lambda'
    assert finding.line == line_of(here)


def test_scores_that_are_only_summed_are_no_product():
    """As a plot of attention does, by an einsum of one operand."""

    def product(scores, v):
        assert torch.einsum("bhij->bi", scores).isfinite().all()
        return scores @ v

    (finding,) = found_in(Attention(product), torch.randn(5, TOKENS, 8))
    assert finding.kind is FindingKind.ATTENTION


def test_attention_in_a_library_is_told_with_the_librarys_line(tmp_path, monkeypatch):
    """The user's own line alone is where they call a model of hundreds of layers."""
    library = tmp_path / "site-packages" / "hub" / "layers.py"
    library.parent.mkdir(parents=True)
    library.write_text("def mix(scores, v):\n    return scores @ v\n")
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    mix = importlib.import_module("hub.layers").mix
    (finding,) = found_in(Attention(mix), torch.randn(5, TOKENS, 8))
    assert "(0.1562 MiB) in hub/layers.py:2, once in a step" in finding.what
    assert finding.line == line_of("self.product(scores, v)  # values")


class Layers(nn.Module):
    """All of the same input."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        return sum(layer(x) for layer in self.layers)


class InOneKernel(Attention):
    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class OtherSoftmaxes(nn.Module):
    """None is attention: words by their probability, experts by a gate, a sum over tokens."""

    def __init__(self):
        super().__init__()
        self.words = nn.Parameter(torch.randn(100, 8))
        self.experts = nn.Linear(8, TOKENS)

    def forward(self, x):
        soft = (x @ self.words.T).softmax(dim=-1) @ self.words
        gate = self.experts(x).softmax(dim=-1)
        slots = gate.mT @ x + gate.softmax(1) @ x
        shared = x.repeat(1, 1, 8)
        linear = (shared @ (shared.softmax(1).mT @ shared)).mean(-1, keepdim=True)
        return soft + slots + linear


@pytest.mark.parametrize(
    ("model", "tokens"), [(InOneKernel, TOKENS), (Attention, FEW), (OtherSoftmaxes, TOKENS)]
)
def test_what_keeps_no_scores_or_few_is_left_alone(model, tokens):
    """One kernel, few tokens, or no attention at all."""
    assert found_in(model(), torch.randn(2, tokens, 8)) == []


class Encoder(nn.Module):
    def __init__(self, **kwargs):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)
        self.kwargs = kwargs

    def forward(self, x):
        return self.attention(x, x, x, **self.kwargs)[0]  # of torch


def test_torchs_attention_that_returns_its_weights_is_found():
    """It does by default."""
    (finding,) = found_in(Encoder(), torch.randn(TOKENS, 3, 8))
    assert finding.kind is FindingKind.ATTENTION
    assert "3 x 2 x 64 x 64 (0.09375 MiB), once in a step" in finding.what
    assert "need_weights=False" in finding.advice
    assert finding.line == line_of("# of torch")


def test_torchs_attention_without_weights_is_left_alone():
    """Nor are few tokens told of."""
    assert found_in(Encoder(need_weights=False), torch.randn(TOKENS, 3, 8)) == []
    assert found_in(Encoder(), torch.randn(FEW, 3, 8)) == []
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    assert found_in(layer, torch.randn(TOKENS, 3, 8)) == []


def test_a_bias_before_a_batch_norm_is_found():
    """Whatever the layer; one that something else sees first is not in vain."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.Conv2d(4, 4, 3),
        nn.ReLU(inplace=True),
        nn.BatchNorm2d(4),
        nn.Conv2d(4, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.Flatten(),
        nn.Linear(16, 5),
        nn.BatchNorm1d(5),
    )
    (finding,) = found_in(model, torch.randn(6, 3, 8, 8))
    assert finding.kind is FindingKind.ANTI_PATTERN
    assert finding.what.endswith(" 2 in all: 0.bias, 8.bias")
    assert "bias=False" in finding.advice


class Used(nn.Module):
    """What a layer with a bias gives, used in several ways."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.conv, self.norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.up = nn.ConvTranspose2d(4, 4, 2)
        self.linear, self.tokens = nn.Linear(3, 3), nn.BatchNorm1d(3)

    def forward(self, x):
        if self.kind == "also beside":
            return self.norm(y := self.conv(x)) + y
        if self.kind == "once without":
            return self.norm(self.conv(x)) + self.conv(x)
        if self.kind == "another side":
            return self.tokens(self.linear(x[:, 0]))
        return self.norm(self.up(x))


@pytest.mark.parametrize(
    ("kind", "in_vain"),
    [("also beside", 0), ("once without", 0), ("another side", 0), ("transposed", 1)],
)
def test_a_bias_counts_where_it_goes_elsewhere_too(kind, in_vain):
    """Past the norm, in another call of the layer, or along another side than the norm's."""
    assert len(found_in(Used(kind), torch.randn(6, 4, 3, 3))) == in_vain


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_let_be():
    """They have no shape to speak of."""

    class Nested(nn.Linear):
        def forward(self, x):
            scores = super().forward(x) @ x.mT
            rows = torch.nested.as_nested_tensor(list(scores.softmax(dim=-1)))
            return rows.to_padded_tensor(0.0)

    assert found_in(Nested(8, 8), torch.randn(2, TOKENS, 8)) == []


def test_a_batch_norm_in_evaluation_takes_nothing_away():
    """Its mean is that of the training data."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4).eval())
    assert found_in(model, torch.randn(6, 3, 8, 8)) == []


class Debugged(nn.Linear):
    def forward(self, x):
        with torch.autograd.detect_anomaly(check_nan=False):
            return super().forward(x)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_what_is_for_debugging_is_found_where_it_was_left_on():
    """Also for a part of the step alone."""
    (finding,) = found_in(Debugged(4, 4), torch.randn(2, 4))
    assert "anomaly detection" in finding.what
    with torch.autograd.profiler.profile():
        (finding,) = found_in(nn.Linear(4, 4), torch.randn(2, 4))
    assert "profiler" in finding.what


def test_data_parallel_is_found():
    """Several devices are for other means."""
    (finding,) = found_in(nn.DataParallel(nn.Linear(4, 4)), torch.randn(2, 4))
    assert "--gpus-per-trial" in finding.advice


def test_a_teacher_without_gradients_is_let_be():
    """Tensors of inference mode pass through as they are."""

    class Student(nn.Linear):
        def forward(self, x):
            with torch.inference_mode():
                teacher = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
                target = teacher(x)
            return super().forward(x) - target.clone()

    assert found_in(Student(4, 4), torch.randn(2, 4)) == []
