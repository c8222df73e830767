"""Each way to spread a model trains it as one device would, on two real gloo ranks."""

import itertools
import math

import pytest
import torch

from autotune.search_space.plan import Plan
from autotune.trials.applying.apply import build_step
from autotune.trials.applying.ranks import hybrid_mesh_shape, shard
from autotune.trials.failure import InvalidPlanError
from autotune.trials.process_group import ALONE, Ranks
from autotune.trials.request import RankPlace
from autotune.trials.workload import load_workload
from tests.trials.applying.sharded_training import (
    COMPILED,
    SGD,
    SHARDINGS,
    STEPS,
    close,
    full_value,
    train_all,
)
from tests.trials.conftest import TINY
from tests.trials.two_ranks import met, on_two_ranks


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


def _train_by_parts(place, path):
    step = build_step(
        load_workload(path), Plan.of({"batch_size": 4}), torch.device("cpu"), 0, met(place)
    )
    for _, batch in zip(range(STEPS), step.loader, strict=False):
        step.backward(step.loss(step.move(batch), step._compute_loss))
        step.update()
    return [full_value(p).tolist() for p in step.model.parameters()]


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
def trained(workload):
    """What all cases trained to, in one pair of processes."""
    (answer, other) = on_two_ranks(train_all, workload, EXACT | NEAR)
    assert answer is not None
    assert answer == other  # losses are means over ranks, parameters whole
    return answer


@pytest.mark.parametrize("case", EXACT)
def test_ranks_train_as_one_device_with_their_batches_together(case, trained):
    """Losses and parameters after SGD, so gradients too, are equal within fp32's rounding."""
    alone, together = trained
    losses, parameters, _ = alone[EXACT[case].get("accumulation", 1)]
    assert together[case][0] == pytest.approx(losses, rel=1e-5)
    assert close(together[case][1], parameters, 1e-5)


@pytest.mark.parametrize("case", NEAR)
def test_half_precision_is_near(case, trained):
    """Something is computed in fewer bits, and the training is still the same."""
    alone, together = trained
    losses, parameters, _ = alone[NEAR[case].get("accumulation", 1)]
    assert together[case][0] == pytest.approx(losses, rel=2e-2)
    assert together[case][1] != parameters
    assert close(together[case][1], parameters, 2e-2)


def test_names_in_the_state_dict_stay(trained):
    """Whatever stands around the model, checkpoints load into the plain one."""
    alone, together = trained
    for case in ("ddp-1-none", "zero1-1-none", "fsdp_zero3-1-none", "hsdp-1-none"):
        assert together[case][2] == alone[1][2]


def test_compute_loss_may_use_parts_of_the_model(tmp_path):
    """Under DDP its gradients are averaged though it never calls the model as a whole."""
    path = tmp_path / "parts_model.py"
    path.write_text(TINY + SGD + METHODS)
    (alone, together), _ = on_two_ranks(train_all, path, {"ddp": {}})
    assert close(together["ddp"][1], alone[1][1], 1e-5)


def test_a_loop_of_ones_own_averages_gradients(workload, trained):
    """`step.loss` with the user's function is what DDP prepares its buckets around."""
    got, other = on_two_ranks(_train_by_parts, workload)
    assert got == other
    assert close(got, trained[1]["ddp-1-none"][1], 1e-6)


def test_a_gradient_that_overflows_on_one_rank_stops_the_step_of_all(workload):
    """Otherwise the parts of a sharded fp16 model would be of different steps."""
    assert on_two_ranks(_steps_after_infinity, workload, "fsdp_zero3") == [True, True]


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
