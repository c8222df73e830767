"""Compiling: the same training, of whatever the plan says, and of large losses."""

import functools

import pytest
import torch
from torch._inductor import config as inductor

from autotune.search_space.plan import Plan
from autotune.trials.applying.compiler import recompile_limit_hits
from autotune.trials.result import Outcome
from autotune.trials.workload import load_workload
from tests.trials.applying.steps import step_of


@pytest.mark.filterwarnings("default")  # inside the compiler, a warning as error is a crash
@pytest.mark.parametrize("scope", ["model", "block"])
def test_compiling_trains_the_same_within_rounding(scope, write_workload, run_plan):
    """And something is compiled, also for torch's own containers."""
    values = {"compile_mode": "default", "compile_scope": scope}
    result = run_plan(write_workload(), values, compare_with={"batch_size": 4})
    assert result.numerics is not None
    assert result.numerics.passed


def test_a_container_of_torchs_own_is_compiled(write_workload, run_plan):
    """`nn.Sequential(...).compile()` compiles nothing; a plan that says compiled is compiled."""
    path = write_workload("def build_model(): return nn.Sequential(nn.Linear(16, 3), nn.ReLU())")
    result = run_plan(path, {"compile_mode": "default"})
    assert result.outcome is Outcome.OK


NAMED = """
names = iter("abcdefghijklmnopqrstuvwxyz")

class Named(nn.Linear):
    def forward(self, x):
        return super().forward(x) * (2.0 if self.name == "never" else 1.0)

def build_model():
    return Named(16, 3)

def compute_loss(model, batch):
    model.name = next(names) if {changes} else "a"
    return nn.functional.cross_entropy(model(batch[0]), batch[1])
"""


@pytest.mark.filterwarnings("default")  # inside the compiler, a warning as error is a crash
@pytest.mark.parametrize("changes", [True, False])
def test_functions_that_the_compiler_gave_up_on_are_counted(changes, write_workload):
    """A speed of half eager code is told apart; a plan that does not compile knows of none."""
    torch._dynamo.utils.counters.clear()
    assert recompile_limit_hits(Plan.of({"batch_size": 4})) is None
    values = {"compile_mode": "default"}
    with (
        torch._dynamo.config.patch(recompile_limit=2),
        torch.compiler.set_stance(force_backend="eager"),
        step_of(write_workload(NAMED.format(changes=changes)), values) as step,
    ):
        for batch, _ in zip(step.loader, range(4), strict=False):
            step(batch)
        assert recompile_limit_hits(step.plan) == int(changes)


PYRAMID = """
class Level(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.conv = nn.Conv1d(inner, outer, 3, stride=2, padding=1)

    def forward(self, x):
        return self.conv(x).relu()

def build_model():
    levels = [Level(1, 8), Level(8, 16), Level(16, 32)]
    return nn.Sequential(nn.Unflatten(1, (1, 16)), *levels, nn.Flatten(), nn.Linear(64, 3))

def blocks(model):
    return list(model)[1:4]
"""


@pytest.mark.filterwarnings("default")  # inside the compiler, a warning as error is a crash
def test_blocks_of_other_sizes_are_compiled_for_their_own(write_workload, monkeypatch):
    """Not for any size, as if one function had been called with many: that code is slower."""
    torch._dynamo.reset()
    sizes = []

    def backend(graph, inputs):
        sizes.extend(size for one in inputs for size in getattr(one, "shape", [one]))
        return graph

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    values = {"compile_mode": "default", "compile_scope": "block"}
    with step_of(write_workload(PYRAMID), values) as step:
        for batch, _ in zip(step.loader, range(2), strict=False):
            step(batch)
    assert {16, 8, 4} <= set(sizes)
    assert not [size for size in sizes if isinstance(size, torch.SymInt)]


def test_a_plan_that_compiles_nothing_is_invalid(write_workload, run_plan):
    """A speed of eager code must not be stored as that of compiled code."""
    path = write_workload(
        """
        class Hidden(nn.Linear):
            @torch.compiler.disable(recursive=True)
            def forward(self, x):
                return super().forward(x)

        def build_model():
            return Hidden(16, 3)
        """
    )
    torch._dynamo.utils.counters.clear()
    result = run_plan(path, {"compile_mode": "default"})
    assert result.outcome is Outcome.INVALID
    assert "compiled nothing" in (result.error or "")


@pytest.mark.filterwarnings("default")  # inside the compiler, a warning as error is a crash
@pytest.mark.parametrize("loss", ["F.cross_entropy", "nn.CrossEntropyLoss()"])
@pytest.mark.parametrize("scope", ["model", "block"])
def test_a_loss_of_many_logits_is_compiled_beside_the_model(
    scope, loss, write_workload, monkeypatch
):
    """Eagerly it would hold them several times; a small one is not worth the compiler's time."""
    path = write_workload(
        f"""
        import torch.nn.functional as F

        def compute_loss(model, batch):
            x, y = batch
            return {loss}(model(x), y)
        """
    )
    values = {"compile_mode": "default", "compile_scope": scope}
    small, num_graphs = first_loss(path, values)
    monkeypatch.setattr("autotune.trials.applying.losses.MANY_LOGITS", 4 * 3)
    large, with_loss = first_loss(path, values)
    assert with_loss == num_graphs + 1
    assert torch.allclose(small, large)


@pytest.mark.filterwarnings("default")  # inside the compiler, a warning as error is a crash
def test_a_compiled_loss_alone_is_no_compiled_plan(write_workload, run_plan, monkeypatch):
    """The model that was to be compiled is never called as one."""
    path = write_workload(
        """
        def compute_loss(model, batch):
            x, y = batch
            return nn.functional.cross_entropy(model[-1](x), y)
        """
    )
    monkeypatch.setattr("autotune.trials.applying.losses.MANY_LOGITS", 4 * 3)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    result = run_plan(path, {"compile_mode": "default"})
    assert result.outcome is Outcome.INVALID
    assert "does not call the model itself" in (result.error or "")


def first_loss(path, values):
    """Return the loss of one step, and how many graphs its plan compiled."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    eager = torch.nn.functional.cross_entropy
    with step_of(path, values) as step:
        loss = step(next(iter(step.loader)))
    assert torch.nn.functional.cross_entropy is eager
    return loss, torch._dynamo.utils.counters["stats"]["unique_graphs"]


def test_names_in_the_state_dict_stay(write_workload):
    """Checkpoints written under any plan load into the plain model."""
    path = write_workload()
    plain = load_workload(path).build_model().state_dict().keys()
    values = {"compile_mode": "default", "activation_checkpointing": "full"}
    assert step_of(path, values).model.state_dict().keys() == plain


def test_products_are_padded_without_timing_while_the_plan_is_applied(write_workload):
    """The compiler asks when it compiles, at the first step or at a later one."""
    values = {"compile_mode": "default", "shape_padding": "always"}
    with step_of(write_workload(), values):
        assert inductor.force_shape_pad
    assert not inductor.force_shape_pad
    with step_of(write_workload(), {**values, "shape_padding": "measured"}):
        assert not inductor.force_shape_pad


WIDE = """
def build_model():
    layers = [(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16), nn.Dropout(0.2)) for _ in range(3)]
    return nn.Sequential(*[nn.Sequential(*layer) for layer in layers], nn.Linear(16, 3))
"""


def trained_with_budget(path, scope, budget):
    """Return the losses, the parameters, and the activations kept for the last backward pass."""
    torch._dynamo.reset()
    values = {"compile_mode": "default", "compile_scope": scope}
    with step_of(path, {**values, "activation_memory_budget": budget}) as step:
        batches = iter(step.loader)
        losses = [step(next(batches)).item() for _ in range(3)]
        own = {parameter.data_ptr() for parameter in step.model.parameters()}
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            loss = step.loss(next(batches))
        kept = sum(t.numel() for t in saved_by(loss) if t.data_ptr() not in own)
        return losses, [p.detach().clone() for p in step.model.parameters()], kept


def saved_by(loss):
    """Yield the tensors that compiled functions below the loss saved for the backward pass."""
    to_visit, seen = [loss.grad_fn], set()
    while to_visit:
        node = to_visit.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield from (t for t in getattr(node, "saved_tensors", ()) if t is not None)
        to_visit.extend(each for each, _ in node.next_functions)


@pytest.mark.filterwarnings("default")  # inside the compiler, a warning as error is a crash
@pytest.mark.parametrize("scope", ["model", "block"])
def test_a_memory_budget_keeps_less_and_trains_the_same(scope, write_workload):
    """What is not kept is computed again, with the same units dropped."""
    path = write_workload(WIDE)
    losses, parameters, kept = trained_with_budget(path, scope, 1.0)
    again, same, less = trained_with_budget(path, scope, 0.3)
    assert less < 0.7 * kept
    assert again == pytest.approx(losses, rel=1e-5)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(parameters, same, strict=True))


def test_the_budget_ends_with_the_plan(write_workload):
    """Another model of the process is compiled as ever."""
    from torch._functorch import config

    values = {"compile_mode": "default", "activation_memory_budget": 0.5}
    with step_of(write_workload(), values):
        assert config.activation_memory_budget == 0.5
    assert config.activation_memory_budget == 1.0
