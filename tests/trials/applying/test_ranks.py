"""Each way to spread a model trains it as one device would, on two real gloo ranks."""

import itertools
import math
import textwrap

import pytest
import torch

from autotune.search_space.plan import Plan
from autotune.trials.applying.apply import build_step
from autotune.trials.applying.blocks import find_blocks
from autotune.trials.applying.construction import materialise
from autotune.trials.applying.fully_sharded import parameter_of_two_parts
from autotune.trials.applying.loader import build_loader
from autotune.trials.applying.ranks import hybrid_mesh_shape, shard
from autotune.trials.failure import InvalidPlanError
from autotune.trials.probing.probe import probe
from autotune.trials.process_group import ALONE, Ranks
from autotune.trials.request import RankPlace
from autotune.trials.workload import load_workload
from tests.search_space.machines import CPU_MACHINE
from tests.trials.conftest import TINY
from tests.trials.two_ranks import met, on_two_ranks

STEPS = 3
# Plain SGD: after some steps the parameters are the start less the sum of the gradients, so a
# gradient that is off by any factor shows. With Adam it would not.
SGD = """
class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[Block() for _ in range(4)])
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 3)
    def forward(self, x):
        return self.head(self.norm(self.layers(x)))

def build_model():
    return Normed()

def build_optimizer(params):
    first, *rest = params
    groups = [{"params": [first], "lr": 0.05}, {"params": rest}]
    return torch.optim.SGD(groups, lr=0.2)
"""
SHARDINGS = ("ddp", "zero1", "fsdp_zero2", "fsdp_zero3", "hsdp")
COMPILED = {"compile_mode": "default", "compile_scope": "block"}


def _exact_cases():
    for sharding, accumulation in itertools.product(SHARDINGS, (1, 2)):
        for checkpointing in ("none", "every-2"):
            yield (
                f"{sharding}-{accumulation}-{checkpointing}",
                {
                    "sharding": sharding,
                    "accumulation": accumulation,
                    "activation_checkpointing": checkpointing,
                },
            )


EXACT = dict(_exact_cases()) | {
    "selective": {"sharding": "fsdp_zero3", "activation_checkpointing": "selective"},
    "buckets": {"bucket_mb": 1},
    "views": {"gradient_as_bucket_view": True, "accumulation": 2},
    "static": {"static_graph": True},
    "static-2": {"static_graph": True, "accumulation": 2},
    "zero1-views": {"sharding": "zero1", "gradient_as_bucket_view": True},
    "zero1-fused": {"sharding": "zero1", "optimizer_impl": "fused"},
    "zero1-foreach": {"sharding": "zero1", "optimizer_impl": "foreach"},
    "fsdp-foreach": {"sharding": "fsdp_zero3", "optimizer_impl": "foreach"},
    "ddp-model-compiled": {"compile_mode": "default"},
    "fsdp-block-compiled": {"sharding": "fsdp_zero3", "accumulation": 2, **COMPILED},
    "zero2-checkpointed-compiled": {
        "sharding": "fsdp_zero2",
        "activation_checkpointing": "full",
        **COMPILED,
    },
}
NEAR = {
    "ddp-hook-fp16": {"comm_hook": "fp16"},
    "ddp-bf16": {"precision": "bf16"},
    "zero1-bf16": {"sharding": "zero1", "precision": "bf16"},
    "fsdp-bf16": {"sharding": "fsdp_zero3", "precision": "bf16", "accumulation": 2},
    "hsdp-bf16": {"sharding": "hsdp", "precision": "bf16"},
}
METHODS = """
def build_model():
    model = Normed()
    model.scale = 2.0
    return model

def compute_loss(model, batch):
    x, y = batch
    hidden = model.norm(model.layers(x)) * model.scale
    return nn.functional.cross_entropy(model.head(hidden), y)
"""


def _train(path, values, batch_size, ranks):
    plan = Plan.of({**values, "batch_size": batch_size})
    with build_step(load_workload(path), plan, torch.device("cpu"), 0, ranks) as step:
        batches = itertools.cycle(step.loader)
        losses = [step(next(batches)).item() for _ in range(STEPS * step.accumulation)]
        parameters = [_whole(p).tolist() for p in step.model.parameters()]
        return ranks.mean(*losses), parameters, list(step.model.state_dict())


def _whole(parameter):
    full = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
    return full.detach()


def _train_all(place, path, cases):
    ranks = met(place)
    alone = {count: _train(path, {"accumulation": count}, 8, ALONE) for count in (1, 2)}
    together = {name: _train(path, values, 4, ranks) for name, values in cases.items()}
    return alone, together


def _train_by_parts(place, path):
    step = build_step(
        load_workload(path), Plan.of({"batch_size": 4}), torch.device("cpu"), 0, met(place)
    )
    for _, batch in zip(range(STEPS), step.loader, strict=False):
        step.backward(step.loss(step.move(batch), step._compute_loss))
        step.update()
    return [_whole(p).tolist() for p in step.model.parameters()]


def _steps_after_infinity(place, path, sharding):
    ranks = met(place)
    plan = Plan.of({"batch_size": 4, "precision": "fp16", "sharding": sharding})
    step = build_step(load_workload(path), plan, torch.device("cpu"), 0, ranks)
    step.backward(step.loss(step.move(next(iter(step.loader)))))
    parameter = next(step.model.parameters())
    before = parameter.to_local().clone()
    if place.rank == 1:
        parameter.grad.to_local().fill_(float("inf"))
    step.update()
    return torch.equal(before, parameter.to_local())


@pytest.fixture(scope="module")
def workload(tmp_path_factory):
    path = tmp_path_factory.mktemp("sharding") / "sharded_model.py"
    path.write_text(TINY + SGD)
    return path


@pytest.fixture(scope="module")
def trained(workload):
    """What all cases trained to, in one pair of processes."""
    (answer, other) = on_two_ranks(_train_all, workload, EXACT | NEAR)
    assert answer is not None
    assert answer == other  # losses are means over ranks, parameters whole
    return answer


def _close(got, expected, tolerance):
    return all(
        torch.allclose(torch.tensor(a), torch.tensor(b), atol=tolerance, rtol=tolerance)
        for a, b in zip(got, expected, strict=True)
    )


@pytest.mark.parametrize("case", EXACT)
def test_ranks_train_as_one_device_with_their_batches_together(case, trained):
    """Losses and parameters after SGD, so gradients too, are equal within fp32's rounding."""
    alone, together = trained
    losses, parameters, _ = alone[EXACT[case].get("accumulation", 1)]
    assert together[case][0] == pytest.approx(losses, rel=1e-5)
    assert _close(together[case][1], parameters, 1e-5)


@pytest.mark.parametrize("case", NEAR)
def test_half_precision_is_near(case, trained):
    """Something is computed in fewer bits, and the training is still the same."""
    alone, together = trained
    losses, parameters, _ = alone[NEAR[case].get("accumulation", 1)]
    assert together[case][0] == pytest.approx(losses, rel=2e-2)
    assert together[case][1] != parameters
    assert _close(together[case][1], parameters, 2e-2)


def test_names_in_the_state_dict_stay(trained):
    """Whatever stands around the model, checkpoints load into the plain one."""
    alone, together = trained
    for case in ("ddp-1-none", "zero1-1-none", "fsdp_zero3-1-none", "hsdp-1-none"):
        assert together[case][2] == alone[1][2]


def test_compute_loss_may_use_parts_of_the_model(tmp_path):
    """Under DDP its gradients are averaged though it never calls the model as a whole."""
    path = tmp_path / "parts_model.py"
    path.write_text(TINY + SGD + METHODS)
    (alone, together), _ = on_two_ranks(_train_all, path, {"ddp": {}})
    assert _close(together["ddp"][1], alone[1][1], 1e-5)


SPARE = """
class WithSpare(Normed):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(16, 3)

def build_model():
    return WithSpare()

def build_optimizer(params):
    return torch.optim.SGD(params, lr=0.2, momentum=0.9, weight_decay=0.1)
"""
LEFT_OUT = {
    "ddp": {},
    "ddp-accumulated": {"accumulation": 2},
    "ddp-views": {"gradient_as_bucket_view": True},
    "ddp-small-buckets": {"bucket_mb": 1},
    "ddp-static": {"static_graph": True},
    "ddp-checkpointed": {"activation_checkpointing": "full"},
    "ddp-model-compiled": {"compile_mode": "default"},
    "zero1": {"sharding": "zero1"},
    "fsdp_zero2": {"sharding": "fsdp_zero2"},
    "fsdp_zero3": {"sharding": "fsdp_zero3"},
}


@pytest.fixture(scope="module")
def trained_with_spare(tmp_path_factory):
    """What a model trained to, a part of which has no part in the loss."""
    path = tmp_path_factory.mktemp("spare") / "spare_model.py"
    path.write_text(TINY + SGD + SPARE)
    (answer, other) = on_two_ranks(_train_all, path, LEFT_OUT)
    assert answer == other
    return answer


@pytest.mark.parametrize("case", LEFT_OUT)
def test_a_model_may_have_parameters_that_the_loss_leaves_out(case, trained_with_spare):
    """It trains as on one device, where weight decay and momentum do not touch them either."""
    alone, together = trained_with_spare
    losses, parameters, _ = alone[LEFT_OUT[case].get("accumulation", 1)]
    assert together[case][0] == pytest.approx(losses, rel=1e-5)
    assert _close(together[case][1], parameters, 1e-5)


BY_RANK = """
import os

def compute_loss(model, batch):
    x, y = batch
    spare = model.spare(x).mean() if os.environ["RANK"] == "1" else 0.0
    return nn.functional.cross_entropy(model(x), y) + spare
"""
REENTRANT = """
from torch.utils.checkpoint import checkpoint

class Again(Normed):
    def forward(self, x):
        x = checkpoint(self.layers, x.requires_grad_(), use_reentrant=True)
        return self.head(self.norm(x))

def build_model():
    return Again()
"""


def _train_together(place, path):
    return _train(path, {}, 4, met(place))


def test_what_only_one_rank_leaves_out_is_averaged(tmp_path):
    """All ranks go on alike, and the parameters have moved."""
    path = tmp_path / "by_rank_model.py"
    path.write_text(TINY + SGD + SPARE + BY_RANK)
    one, two = on_two_ranks(_train_together, path)
    assert one == two
    path = tmp_path / "spare_model.py"
    path.write_text(TINY + SGD + SPARE)
    neither, _ = on_two_ranks(_train_together, path)
    assert one[1][-1] != neither[1][-1]  # the bias of the spare part


def test_parameters_inside_reentrant_checkpoints_are_not_left_out(tmp_path):
    """Their gradients come from a graph that the forward pass does not show."""
    path = tmp_path / "reentrant_model.py"
    path.write_text(TINY + SGD + REENTRANT)
    (alone, together), _ = on_two_ranks(_train_all, path, {"ddp": {}})
    assert _close(together["ddp"][1], alone[1][1], 1e-5)


LATER = """
import os
calls = 0

def compute_loss(model, batch):
    global calls
    calls += 1
    x, y = batch
    spare = model.spare(x).mean() if {uses} else 0.0
    return nn.functional.cross_entropy(model(x), y) + spare
"""


def test_parameters_that_only_the_second_step_leaves_out_are_averaged(tmp_path):
    """As where layers are dropped at random: the first step may have dropped none."""
    path = tmp_path / "later_model.py"
    path.write_text(TINY + SGD + SPARE + LATER.format(uses="calls == 1"))
    one, two = on_two_ranks(_train_together, path)
    assert one == two


def _trained_for_long(place, path):
    plan = Plan.of({"batch_size": 2})
    with build_step(load_workload(path), plan, torch.device("cpu"), 0, met(place)) as step:
        try:
            for batch in itertools.islice(itertools.cycle(step.loader), 15):
                step(batch)
        except (InvalidPlanError, RuntimeError) as error:  # the latter where the other has left
            return str(error)


@pytest.mark.parametrize("which", ["", ' or os.environ["RANK"] == "0"'])
def test_parameters_that_only_later_steps_leave_out_are_refused(which, tmp_path):
    """At once, by the rank that left them out: the other may wait for it."""
    path = tmp_path / "late_model.py"
    path.write_text(TINY + SGD + SPARE + LATER.format(uses=f"calls < 13{which}"))
    _, message = on_two_ranks(_trained_for_long, path, within_s=60.0)
    assert "let compute_loss use the same parameters" in message


def _hooked(place, path):
    ranks = met(place)
    plan = Plan.of({"batch_size": 4, "sharding": "fsdp_zero3"})
    with pytest.raises(InvalidPlanError) as caught:
        build_step(load_workload(path), plan, torch.device("cpu"), 0, ranks)
    return str(caught.value)


def test_fsdp_refuses_hooks_that_it_would_not_call(write_workload):
    """Such as one that clips gradients; the parts of a parameter have none."""
    path = write_workload(
        """
        def build_model():
            model = nn.Linear(16, 3)
            model.bias.register_hook(lambda gradient: gradient.clamp(-1, 1))
            return model
        """
    )
    assert all("parameter bias has a hook" in message for message in on_two_ranks(_hooked, path))


def test_a_loop_of_ones_own_averages_gradients(workload, trained):
    """`step.loss` with the user's function is what DDP prepares its buckets around."""
    got, other = on_two_ranks(_train_by_parts, workload)
    assert got == other
    assert _close(got, trained[1]["ddp-1-none"][1], 1e-6)


def test_a_gradient_that_overflows_on_one_rank_stops_the_step_of_all(workload):
    """Otherwise the parts of a sharded fp16 model would be of different steps."""
    assert on_two_ranks(_steps_after_infinity, workload, "fsdp_zero3") == [True, True]


def _without_values(workload):
    with torch.device("meta"):
        return workload.model({})


def _fill_and_train(place, path):
    ranks = met(place)
    workload, plan = load_workload(path), Plan.of({"batch_size": 4, "sharding": "hsdp"})
    torch.manual_seed(0)
    whole = _without_values(workload)
    for module in (*find_blocks(whole, workload), whole):
        materialise(module, "cpu")
    torch.manual_seed(0)
    hollow = _without_values(workload)
    sharded = shard(hollow, find_blocks(hollow, workload), plan, ranks, "cpu")
    filled = [_whole(p).tolist() for p in hollow.parameters()]
    loss = sharded.loss(
        workload.compute_loss, next(iter(build_loader(workload, plan, 0, Ranks(place=place))))
    )
    loss.backward()
    return filled == [p.tolist() for p in whole.parameters()], *ranks.mean(loss.item())


def test_a_model_without_values_is_filled_block_by_block(workload):
    """Ranks draw the same numbers, so all parts are of one model; and it trains."""
    one, two = on_two_ranks(_fill_and_train, workload)
    assert one == two
    assert one[0]
    assert math.isfinite(one[1])


GRIDS = [((2, 2), (1, 2)), ((4, 4), (2, 2)), ((8, 8), (2, 4)), ((8, 4), (2, 4)), ((16, 8), (2, 8))]


@pytest.mark.parametrize(("ranks", "grid"), GRIDS)
def test_hsdp_cuts_inside_a_node_and_copies_across(ranks, grid):
    """One copy per node; a single node holds two, as far as it can."""
    world, local = ranks
    assert hybrid_mesh_shape(RankPlace(world_size=world, local_world_size=local)) == grid
    assert math.prod(grid) == world


def test_hsdp_refuses_groups_of_different_size():
    """Five ranks on a node make no two equal copies."""
    with pytest.raises(InvalidPlanError, match="5 ranks do not divide by 2"):
        hybrid_mesh_shape(RankPlace(world_size=5, local_world_size=5))


def test_nodes_with_unequal_ranks_are_refused_by_all():
    """Each would make other groups than its peers, and they would wait for ever."""

    class Uneven(Ranks):
        def gather(self, *values):
            return [(1.0,), (2.0,), (2.0,)]

    place = RankPlace(world_size=3, local_world_size=2)
    with pytest.raises(InvalidPlanError, match=r"as many ranks on each node, .*\[1, 2\]"):
        shard(torch.nn.Linear(2, 2), (), Plan.of({"sharding": "hsdp"}), Uneven(place=place), "cpu")


def test_a_parameter_in_two_parts_is_refused(write_workload):
    """The head's may be the embedding's: both are what is left for the root."""
    shared = """
        def build_model():
            model = Normed()
            model.{one} = model.{other}
            return model
    """
    for one, other, parts in (
        ("head.weight", "layers[0].linear.weight", 2),
        ("layers[1].linear.weight", "layers[0].linear.weight", 2),
        ("norm.bias", "norm.weight", 1),
    ):
        extra = SGD + textwrap.dedent(shared.format(one=one, other=other))
        model = load_workload(write_workload(extra)).model({})
        found = parameter_of_two_parts(model, list(model.layers))
        assert (found is not None) == (parts == 2), found
    both = "layers.0.linear.weight and layers.1.linear.weight are one parameter"
    for part in ("linear", "linear.weight"):
        one, other = f"layers[1].{part}", f"layers[0].{part}"
        path = write_workload(SGD + textwrap.dedent(shared.format(one=one, other=other)))
        assert both in probe(path, CPU_MACHINE, 0).shared_across
    assert all(both in message for message in on_two_ranks(_refused_in_parts, path))


def _refused_in_parts(place, path):
    plan = Plan.of({"batch_size": 4, "sharding": "fsdp_zero3"})
    with pytest.raises(InvalidPlanError) as refused:
        build_step(load_workload(path), plan, torch.device("cpu"), 0, met(place))
    return str(refused.value)


def _norms_clipped(place, path):
    """The norm that `clip` tells, and the one it leaves, under each sharding."""
    ranks, workload, told = met(place), load_workload(path), {}
    for sharding in SHARDINGS:
        plan = Plan.of({"sharding": sharding, "batch_size": 2})
        with build_step(workload, plan, torch.device("cpu"), 0, ranks) as step:
            step.backward(step.loss(step.move(next(iter(step.loader)))))
            told[sharding] = [float(step.clip(1e-3)), float(step.clip(1.0))]
            step.update()
    return told


def test_gradients_are_clipped_by_their_norm_over_all_ranks(write_workload):
    """Whatever a rank holds of them."""
    path = write_workload(SGD)
    plan = Plan.of({"batch_size": 4})
    with build_step(load_workload(path), plan, torch.device("cpu"), 0, ALONE) as step:
        step.backward(step.loss(step.move(next(iter(step.loader)))))
        norm = float(step.clip(1e-3))
    for told in on_two_ranks(_norms_clipped, path):
        assert told == {name: pytest.approx([norm, 1e-3], rel=1e-3) for name in SHARDINGS}


ROTARY = """
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)
        angles = torch.outer(torch.arange(4.0), 0.1 ** torch.arange(16))
        self.register_buffer("angles", angles, persistent=False)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        q, k = q * self.angles.cos(), k * self.angles.cos()
        return x + self.out(nn.functional.scaled_dot_product_attention(q, k, v))


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 16)
        self.blocks = nn.ModuleList(Attention() for _ in range(3))
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        x = self.first(x.view(-1, 4, 4))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))

def build_model():
    return Rotary()
"""
IN_HALF = {
    f"{sharding}-{name}": {"sharding": sharding, "precision": "bf16", **values}
    for sharding in ("ddp", "fsdp_zero2", "fsdp_zero3")
    for name, values in {
        "eager": {},
        "compiled": COMPILED,
        "checkpointed": {"activation_checkpointing": "full"},
    }.items()
}


def test_buffers_in_fp32_meet_parameters_in_half_precision(write_workload):
    """A table of angles makes queries fp32 again, which attention takes under autocast only."""
    path = write_workload(TINY + SGD + ROTARY)
    (alone, together), _ = on_two_ranks(_train_all, path, IN_HALF)
    losses, parameters, _ = alone[1]
    for case in IN_HALF:
        assert together[case][0] == pytest.approx(losses, rel=2e-2)
        assert _close(together[case][1], parameters, 2e-2)


CONVOLVED = """
class Convolved(nn.Module):
    def __init__(self):
        super().__init__()
        layers = ([nn.Conv1d(4, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ReLU()] for _ in range(3))
        self.blocks = nn.ModuleList(nn.Sequential(*block) for block in layers)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        x = x.view(-1, 4, 4)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.norm(x.flatten(1)))

def build_model():
    return Convolved()
"""


def test_norms_that_keep_statistics_train_in_half_precision(write_workload):
    """Their statistics are in fp32, with which parameters in half precision do not go."""
    path = write_workload(TINY + SGD + CONVOLVED)
    (_, together), _ = on_two_ranks(_train_all, path, IN_HALF)
    losses, parameters, _ = together["ddp-eager"]
    for case in IN_HALF:
        assert together[case][0] == pytest.approx(losses, rel=2e-2)
        assert _close(together[case][1], parameters, 2e-2)


FOLLOWING = """
class Following(Normed):
    def __init__(self):
        super().__init__()
        self.seen = nn.BatchNorm1d(16)
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("still", torch.ones(16))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0) * self.still
        return super().forward(self.seen(x + self.mean))

def build_model():
    return Following()
"""


def _buffers_trained(place, path):
    """What the buffers are on this rank at the fourth forward pass, under each sharding."""
    ranks, workload, told = met(place), load_workload(path), {}
    for sharding in SHARDINGS:
        plan = Plan.of({"sharding": sharding, "batch_size": 4})
        with build_step(workload, plan, torch.device("cpu"), 0, ranks) as step:
            batches = iter(step.loader)
            for _ in range(3):
                step(next(batches))
            with torch.no_grad():
                one = step.move(next(batches))
                step.loss((torch.zeros_like(one[0]), one[1]))
            told[sharding] = {name: b.tolist() for name, b in step.model.named_buffers()}
    return told


def test_all_ranks_compute_with_the_same_buffers(write_workload):
    """Each sees other batches; what a model learns of them in buffers is the first rank's."""
    path = write_workload(SGD + textwrap.dedent(FOLLOWING))
    told, of_other = on_two_ranks(_buffers_trained, path)
    for sharding in SHARDINGS:
        for name in ("mean", "count", "seen.running_mean", "seen.running_var"):
            expected = pytest.approx(told["ddp"][name], rel=1e-4, abs=1e-6)
            assert told[sharding][name] == expected
            assert of_other[sharding][name] == expected
