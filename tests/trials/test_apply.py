"""Each knob does what it says, and exact ones change no number."""

import gc
import math
import types

import pytest
import torch
from torch import nn
from torch._inductor import config as inductor

import autotune
from autotune.errors import PlanError
from autotune.search_space.knobs import Numerics
from autotune.search_space.plan import Plan
from autotune.trials.apply import build_step
from autotune.trials.failure import InvalidPlanError
from autotune.trials.numerics import widest_class
from autotune.trials.optimizers import with_implementation
from autotune.trials.result import Outcome
from autotune.trials.workload import load_workload

CPU = torch.device("cpu")
CONV = """
def build_model():
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 4, 3))

def compute_loss(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x.view(-1, 1, 4, 4)), y)
"""


def step_of(path, values=None):
    plan = Plan.of({"batch_size": 4, **(values or {})})
    return build_step(load_workload(path), plan, CPU, seed=0)


def parameters_after(path, values, steps=4):
    with step_of(path, values) as step:
        batches = iter(step.loader)
        for _ in range(steps):
            step(next(batches))
        return [p.detach().clone() for p in step.model.parameters()]


EXACT = {
    "workers": {"workers": 2, "prefetch": 4},
    "full": {"activation_checkpointing": "full"},
    "every-2": {"activation_checkpointing": "every-2"},
    "selective": {"activation_checkpointing": "selective"},
}


@pytest.mark.parametrize("case", EXACT)
def test_exact_knobs_train_to_the_same_parameters(case, write_workload):
    """Bit for bit on a CPU: they only move work and memory."""
    path = write_workload()
    expected, got = parameters_after(path, {}), parameters_after(path, EXACT[case])
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


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


def test_an_optimizer_may_clear_gradients_in_its_own_way(write_workload):
    """Without the argument that torch's own take."""
    path = write_workload(
        """
        class Own(torch.optim.SGD):
            def zero_grad(self):
                super().zero_grad()

        def build_optimizer(params):
            return Own(params, lr=0.1)
        """
    )
    with step_of(path, {}) as step:
        step(next(iter(step.loader)))
        assert all(parameter.grad is None for parameter in step.model.parameters())


def test_a_model_that_keeps_its_norms_in_evaluation_is_asked_to(write_workload):
    """By the `train` of its own, which a loop of the user's would call."""
    path = write_workload(
        """
        class Frozen(nn.Sequential):
            def train(self, mode=True):
                super().train(mode)
                self[1].eval()
                return self

        def build_model():
            return Frozen(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 3))
        """
    )
    with step_of(path, {}) as step:
        assert [part.training for part in step.model] == [True, False, True]


def test_a_short_plan_takes_the_batch_of_a_small_dataset(write_workload):
    """As `measure` does, where the workload names none."""
    path = write_workload(
        """
        del BATCH_SIZE

        def build_dataset():
            return Rows(20)
        """
    )
    with autotune.apply(Plan.of({"precision": "bf16"}), workload=path) as step:
        assert step.plan["batch_size"] == 20


def test_gradients_are_clipped_as_they_are_and_not_as_fp16_scales_them(write_workload):
    """By `step.clip`, which returns the norm before."""
    path = write_workload()
    norms = []
    for precision in ("fp32", "fp16"):
        with step_of(path, {"precision": precision}) as step:
            batch, norm = step.move(next(iter(step.loader))), math.inf
            while not math.isfinite(
                norm
            ):  # the first scales are too large, and such steps skipped
                step.backward(step.loss(batch))
                norm = float(step.clip(1e-3))
                left = [p.grad.clone() for p in step.model.parameters()]
                step.update()
            assert float(nn.utils.get_total_norm(left)) == pytest.approx(1e-3, rel=0.01)
            norms.append(norm)
    assert norms[1] == pytest.approx(norms[0], rel=0.02)


def test_accumulation_equals_the_large_batch(write_workload):
    """Two micro-steps of two samples train like one step of four, within rounding."""
    path = write_workload()
    whole = parameters_after(path, {"batch_size": 4}, steps=4)
    parts = parameters_after(path, {"batch_size": 2, "accumulation": 2}, steps=8)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(whole, parts, strict=True))


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
    monkeypatch.setattr("autotune.trials.losses.MANY_LOGITS", 4 * 3)
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
    monkeypatch.setattr("autotune.trials.losses.MANY_LOGITS", 4 * 3)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    result = run_plan(path, {"compile_mode": "default"})
    assert result.outcome is Outcome.INVALID
    assert "does not call the model itself" in (result.error or "")


def test_steps_may_be_closed_in_any_order(write_workload):
    """The loss is torch's own again when none is left that compiles."""
    eager = torch.nn.functional.cross_entropy
    path = write_workload()
    first, second = (step_of(path, {"compile_mode": "default"}) for _ in range(2))
    first.close()
    assert torch.nn.functional.cross_entropy is not eager
    second.close()
    assert torch.nn.functional.cross_entropy is eager


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


def test_bf16_computes_in_bf16(write_workload):
    """The forward pass autocasts; parameters stay in fp32."""
    step = step_of(write_workload(), {"precision": "bf16"})
    with step.autocast():
        assert step.model(torch.randn(2, 16)).dtype is torch.bfloat16
    assert all(p.dtype is torch.float32 for p in step.model.parameters())


def test_channels_last_reaches_parameters_and_batches(write_workload):
    """Both sides of a convolution have the layout."""
    step = step_of(write_workload(CONV), {"memory_format": "channels_last"})
    image = step.move({"image": torch.randn(2, 3, 8, 8)})["image"]
    assert image.is_contiguous(memory_format=torch.channels_last)
    weight = next(step.model.parameters())
    assert weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("impl", ["foreach", "fused"])
def test_the_optimizer_keeps_class_and_arguments(impl, write_workload):
    """Only the implementation changes: learning rates per group and betas stay."""
    path = write_workload(
        """
        def build_optimizer(params):
            first, *rest = params
            groups = [{"params": [first], "lr": 0.5}, {"params": rest}]
            return torch.optim.AdamW(groups, lr=0.25, betas=(0.8, 0.9), weight_decay=0.125)
        """
    )
    optimizer = step_of(path, {"optimizer_impl": impl}).optimizer
    assert type(optimizer) is torch.optim.AdamW
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.25]
    assert all(group["betas"] == (0.8, 0.9) for group in optimizer.param_groups)
    assert all(group["weight_decay"] == 0.125 for group in optimizer.param_groups)
    assert all(group[impl] for group in optimizer.param_groups)


def test_an_optimizer_without_the_flag_is_refused():
    """LBFGS has no fused implementation."""
    optimizer = torch.optim.LBFGS(nn.Linear(2, 2).parameters())
    with pytest.raises(InvalidPlanError, match="LBFGS does not take fused=True"):
        with_implementation(optimizer, "fused")


def test_user_knobs_reach_build_model(write_workload):
    """As keyword arguments; the first value is the baseline."""
    path = write_workload(
        """
        KNOBS = {"width": [16, 32]}

        def build_model(width):
            return nn.Sequential(nn.Linear(16, width), nn.Linear(width, 3))
        """
    )
    assert step_of(path, {"width": 32}).model[0].out_features == 32


def test_blocks_named_by_the_user_are_wrapped(write_workload, run_plan):
    """`blocks(model)` decides what checkpointing wraps."""
    path = write_workload("def blocks(model): return [model[0], model[2]]")
    model = step_of(path, {"activation_checkpointing": "full"}).model
    wrapped = [type(m).__name__ == "CheckpointWrapper" for m in model]
    assert wrapped == [True, False, True, False, False]


def test_products_are_padded_without_timing_while_the_plan_is_applied(write_workload):
    """The compiler asks when it compiles, at the first step or at a later one."""
    values = {"compile_mode": "default", "shape_padding": "always"}
    with step_of(write_workload(), values):
        assert inductor.force_shape_pad
    assert not inductor.force_shape_pad
    with step_of(write_workload(), {**values, "shape_padding": "measured"}):
        assert not inductor.force_shape_pad


def test_settings_of_the_process_go_back(write_workload):
    """A plan does not outlive its step."""
    threads, matmul = torch.get_num_threads(), torch.get_float32_matmul_precision()
    with step_of(write_workload(), {"threads": threads + 1, "precision": "tf32"}):
        assert torch.get_num_threads() == threads + 1
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_num_threads() == threads
    assert torch.get_float32_matmul_precision() == matmul


def test_the_numerics_check_can_fail(write_workload, run_plan):
    """A model that needs fp32 is caught in bf16."""
    path = write_workload(
        """
        class Fragile(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(16, 3)
            def forward(self, x):
                big = self.linear(x) + 1000.0  # bf16 keeps steps of 4 up there
                return (big - 1000.0).float() if big.dtype == torch.float32 else big.float() * 2

        def build_model():
            return Fragile()
        """
    )
    report = run_plan(path, {"precision": "bf16"}, compare_with={"batch_size": 4}).numerics
    assert report is not None
    # Linear gives bf16, and the branch above multiplies its error: the losses part.
    assert not report.passed
    assert report.worst is not None
    assert report.worst.seen > report.worst.allowed


def test_the_tolerance_follows_the_widest_class():
    """Precision is allowed more than rounding, rounding more than exact knobs."""
    base = Plan.of({"batch_size": 4, "precision": "fp32", "workers": 0, "compile_mode": "off"})
    changes = [{"workers": 2}, {"compile_mode": "default"}, {"precision": "bf16", "workers": 2}]
    classes = [widest_class(Plan.of({**base.values, **change}), base) for change in changes]
    assert classes == [Numerics.EXACT, Numerics.ROUNDING, Numerics.PRECISION]


def test_the_public_api_trains(write_workload):
    """`apply` needs the file and the plan; the loop is the user's."""
    path = write_workload()
    with autotune.apply(Plan.of({"precision": "bf16"}), workload=path) as step:
        losses = [step(batch).item() for _ in range(20) for batch in step.loader]
    assert losses[-1] < losses[0]
    assert len(next(iter(step.loader))[0]) == 4  # BATCH_SIZE of the workload


def test_the_parts_make_the_same_step(write_workload):
    """A loop of one's own by parts trains to the parameters of the whole step."""
    path = write_workload()
    plan = Plan.of({"precision": "bf16", "batch_size": 4})
    with autotune.apply(plan, workload=path) as whole:
        for batch in whole.loader:
            whole(batch)
    with autotune.apply(plan, workload=path) as parts:
        for batch in parts.loader:
            x, y = parts.move(batch)
            with parts.autocast():
                loss = nn.functional.cross_entropy(parts.model(x), y)
            parts.backward(loss)
            parts.update()
    pairs = zip(whole.model.parameters(), parts.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    ("values", "expected"),
    [({"precision": "bf16"}, 16), ({"batch_size": 32}, 2), ({"accumulation": 16}, 16)],
)
def test_a_plan_keeps_the_global_batch(values, expected, write_workload):
    """Whatever it leaves out: each step of the optimizer is on GLOBAL_BATCH_SIZE samples."""
    path = write_workload("GLOBAL_BATCH_SIZE = 64")
    with autotune.apply(Plan.of(values), workload=path) as step:
        assert step.accumulation == expected


def test_a_batch_that_nobody_names_divides_the_global_one(write_workload):
    """32 would not divide 100."""
    path = write_workload(
        "GLOBAL_BATCH_SIZE = 100\ndel BATCH_SIZE\ndef build_dataset(): return Rows(200)"
    )
    with autotune.apply(Plan.of({}), workload=path) as step:
        assert (step.plan["batch_size"], step.accumulation) == (25, 4)


def test_a_module_of_no_file_is_a_workload(write_workload):
    """Such as what is typed into a notebook."""
    typed = types.ModuleType("typed")
    exec(write_workload("").read_text(), vars(typed))  # what a notebook does
    with autotune.apply(Plan.of({}), workload=typed) as step:
        step(next(iter(step.loader)))


def test_the_workload_sees_the_arguments_of_the_users_script(write_workload, monkeypatch):
    """Where the user trains with `apply`, they are meant for both."""
    monkeypatch.setattr("sys.argv", ["train.py", "--width", "512"])
    path = write_workload("import sys\nassert sys.argv[1:] == ['--width', '512'], sys.argv")
    with autotune.apply(Plan.of({}), workload=path):
        pass


@pytest.mark.parametrize(
    ("values", "words"),
    [({"batch_size": 5}, "does not divide"), ({"accumulation": 2}, "it becomes 16")],
)
def test_a_plan_that_does_not_keep_the_global_batch_is_refused(values, words, write_workload):
    """It would train on other samples than the workload says."""
    with pytest.raises(PlanError, match=words):
        autotune.apply(Plan.of(values), workload=write_workload("GLOBAL_BATCH_SIZE = 64"))


def test_what_is_in_evaluation_stays_there(write_workload):
    """A frozen part; what is to be trained comes in evaluation from libraries, and is trained."""
    path = write_workload(
        """
        def build_model():
            model = nn.Sequential(nn.Linear(16, 3), nn.BatchNorm1d(3))
            model[1].eval().requires_grad_(False)
            return model
        """
    )
    assert [m.training for m in step_of(path).model.modules()] == [True, True, False]
    part = write_workload(
        "def build_model():\n"
        "    pretrained = nn.Sequential(nn.Linear(16, 16), nn.Dropout()).eval()\n"
        "    return nn.Sequential(pretrained, nn.Linear(16, 3))"
    )
    assert all(m.training for m in step_of(part).model.modules())
    whole = write_workload("def build_model(): return nn.Linear(16, 3).eval()")
    assert step_of(whole).model.training


def test_a_pretrained_model_with_an_adapter_is_in_training_as_a_whole(write_workload):
    """What is frozen in it, dropout included, belongs to what is trained; a teacher does not."""
    path = write_workload(
        """
        def build_model():
            frozen = nn.Sequential(nn.Linear(16, 16), nn.Dropout())
            teacher = nn.Sequential(nn.Linear(16, 16), nn.Dropout())
            for parameter in (*frozen.parameters(), *teacher.parameters()):
                parameter.requires_grad_(False)
            return nn.Sequential(nn.Sequential(frozen, nn.Linear(16, 3)).eval(), teacher.eval())

        def compute_loss(model, batch):
            x, y = batch
            return nn.functional.cross_entropy(model[0](x), y)
        """
    )
    pretrained, teacher = step_of(path).model
    assert all(module.training for module in pretrained.modules())
    assert not any(module.training for module in teacher.modules())


def test_settings_stay_while_a_part_of_the_step_is_used(write_workload, monkeypatch):
    """A setup function that returns the model and the loader lets go of the step."""
    kept = set()
    monkeypatch.setattr("autotune.trials.apply._open_settings", kept)
    before = torch.get_num_threads()
    step_of(write_workload(), {"threads": before + 1})
    gc.collect()
    assert torch.get_num_threads() == before + 1
    kept.pop().close()
    assert torch.get_num_threads() == before


def test_settings_of_torch_2_9_are_left_alone(write_workload, run_plan):
    """They do not mix with the older ones; only a plan that says tf32 changes them."""
    matmul = torch.backends.cuda.matmul
    path = write_workload("torch.backends.cuda.matmul.fp32_precision = 'ieee'")
    try:
        assert run_plan(path).outcome is Outcome.OK
        with step_of(path, {"precision": "tf32"}):
            assert matmul.fp32_precision == "tf32"
        assert matmul.fp32_precision == "ieee"
    finally:
        matmul.fp32_precision = "none"


NOT_TORCHS = {
    "numpy batches": """
        import numpy
        def compute_loss(model, batch):
            x, y = batch
            return nn.functional.cross_entropy(model(x * float(numpy.random.beta(0.4, 0.4))), y)
        """,
    "python's weights": """
        import random
        def build_model():
            model = nn.Linear(16, 3)
            nn.init.constant_(model.weight, random.random())
            return model
        """,
    "changed batches": """
        def compute_loss(model, batch):
            x, y = batch
            return nn.functional.cross_entropy(model(x.mul_(2.0)), y)
        """,
}


@pytest.mark.parametrize("case", NOT_TORCHS)
def test_a_plan_trains_as_itself(case, write_workload, run_plan):
    """Random numbers of others than torch are the same too, and each gets the loader's batches."""
    path = write_workload(NOT_TORCHS[case])
    report = run_plan(path, {}, compare_with={"batch_size": 4}).numerics
    assert report is not None
    assert [found.seen for found in report.deviations] == [0.0] * len(report.deviations)
    assert len(report.deviations) >= 5


def test_a_plan_with_an_unknown_knob_is_refused(write_workload):
    """With the nearest one."""
    with pytest.raises(PlanError, match=r"'widht'.*did you mean 'width'"):
        autotune.apply(Plan.of({"widht": 3}), workload=write_workload("KNOBS = {'width': [1, 2]}"))


def test_compiled_dropout_is_no_difference(write_workload, run_plan):
    """The compiler draws other random numbers than eager code; the check makes both the same."""
    path = write_workload(
        """
        def build_model():
            return nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5), nn.Linear(64, 3))
        """
    )
    report = run_plan(path, {"compile_mode": "default"}, compare_with={"batch_size": 4}).numerics
    assert report is not None
    assert report.passed


KEEPING = """
KEPT = []

def build_model():
    from kept import part
    if not KEPT:
        KEPT.append(nn.Linear(16, 3))
    return nn.Sequential(part, KEPT[0])

class Rows(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(16, generator=generator), index % 3

def build_dataset():
    return Rows()

def collate_fn(samples):
    batch = torch.utils.data.default_collate(samples)
    return [*batch, (number for number in range(3))]

def compute_loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])

def build_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.5)
"""


def test_a_model_that_the_workload_keeps_is_compared_from_the_same_start(write_workload, run_plan):
    """It was trained for the reference when it is built once more. Its batch cannot be copied."""
    path = write_workload(KEEPING)
    (path.parent / "kept.py").write_text("from torch import nn\npart = nn.Linear(16, 16)\n")
    report = run_plan(path, {"precision": "bf16"}, compare_with={"batch_size": 4}).numerics
    assert report is not None
    assert report.passed
