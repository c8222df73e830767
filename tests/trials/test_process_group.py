"""Trials of two real ranks: what they agree on, and what a failure of one of them becomes."""

import itertools
import json
import random
from dataclasses import fields

import pytest

from autotune.search_space.plan import Plan
from autotune.trials.applying.loader import build_loader
from autotune.trials.applying.rank_share import RankSampler
from autotune.trials.diagnosis import DiagnosisRequest
from autotune.trials.merge import merge
from autotune.trials.process_group import Ranks
from autotune.trials.rank import run_trial
from autotune.trials.request import Deadlines, Protocol, RankPlace, TrialRequest
from autotune.trials.result import Outcome, Phase, Purpose, TrialResult
from autotune.trials.workload import load_workload
from tests.trials.conftest import QUICK
from tests.trials.padded_texts import PADDED_TEXTS
from tests.trials.two_ranks import on_two_ranks

SLOW_RANK = """
import os

def compute_loss(model, batch):
    time.sleep(0.02 if os.environ["RANK"] == "1" else 0.0)
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)
"""
FAULT = """
import os
calls = 0

def compute_loss(model, batch):
    global calls
    calls += 1
    if os.environ["RANK"] == "1" and calls > 3:
        {fault}
    x, y = batch
    return nn.functional.cross_entropy(model(x), y) * factor

factor = 1.0
"""
FAULTS = {
    "raise": ("raise ValueError('my mistake')", Outcome.CRASH, "ValueError: my mistake"),
    "memory": (
        "raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 1.00 GiB')",
        Outcome.OOM,
        "OutOfMemoryError",
    ),
    "exit": ("raise SystemExit(7)", Outcome.CRASH, "called sys.exit(7)"),
}


def requested(path, place=None, **changes):
    values = {"batch_size": 4, **changes.pop("plan", {})}
    return TrialRequest(
        number=1,
        plan=Plan.of(values),
        purpose=Purpose.MEASURE,
        workload_path=str(path),
        working_dir=str(path.parent),
        device_kind="cpu",
        place=place or RankPlace(),
        **{"protocol": QUICK, **changes},
    )


def _trial(place, path, changes):
    *phases, result = run_trial(requested(path, place, **changes))
    return phases, result


@pytest.fixture
def measured(write_workload):
    """Run a trial on two ranks; return their results, checking the phases."""

    def run(extra="", *, apart_s=20.0, **changes):
        answers = on_two_ranks(_trial, write_workload(extra), changes, apart_s=apart_s)
        assert all(phases[0] is Phase.RENDEZVOUS for phases, _ in filter(None, answers))
        return [answer and answer[1] for answer in answers]

    return run


def test_ranks_agree_on_everything_measured(measured):
    """Each decision came from the same windows; rank 0's measurement is the trial's."""
    one, two = measured(SLOW_RANK, plan={"accumulation": 2})
    assert one.outcome is two.outcome is Outcome.OK
    assert one.measurement == two.measurement
    assert merge([one, two]) is one


def test_ranks_train_on_the_longest_batch_together(measured):
    """And on batches of similar length, of which each rank reads its own part."""
    plan = {"length_bucketing": True}
    one, two = measured(PADDED_TEXTS, plan=plan, uneven_batches=True)
    assert one.measurement, one.error
    assert one.measurement == two.measurement
    assert one.measurement.longest_batch_of == 64


def test_throughput_is_of_all_ranks_and_time_of_the_slowest(measured):
    """Rank 1 sleeps 20 ms in a step, rank 0 does not; together they train on 8 samples in it."""
    one, _ = measured(SLOW_RANK)
    assert all(w.samples == w.steps * 2 * 4 for w in one.measurement.windows)
    assert one.measurement.step_ms >= 20.0
    assert one.measurement.throughput <= 8 / 0.020


def test_losses_are_the_mean_over_ranks(measured):
    """A loss of 1 on rank 0 and of 3 on rank 1 is one of 2."""
    one, _ = measured(
        """
        import os

        def compute_loss(model, batch):
            return model(batch[0]).mean() * 0.0 + 1.0 + 2.0 * int(os.environ["RANK"])
        """
    )
    assert one.measurement.first_loss == one.measurement.last_loss == 2.0


def test_exposed_communication_is_unknown_on_a_cpu(measured):
    """There are no kernels to trace: None, not zero."""
    assert measured()[0].measurement.exposed_comm_share is None


def test_hopeless_trials_stop_on_all_ranks(measured):
    """Racing is a decision like any other."""
    protocol = Protocol(window_s=0.02, min_windows=50, max_measure_s=60.0, max_warm_up_s=0.2)
    results = measured(SLOW_RANK, protocol=protocol, interesting_above=1e9)
    assert [len(result.measurement.windows) for result in results] == [3, 3]


def test_numerics_are_compared_on_the_mean_loss(measured):
    """A sharded plan in bf16 beside eager fp32 under plain DDP, on the same place."""
    plan = {"sharding": "fsdp_zero3", "precision": "bf16"}
    one, two = measured(plan=plan, compare_with=Plan.of({"batch_size": 4, "sharding": "ddp"}))
    assert one.numerics == two.numerics
    assert one.numerics.passed
    assert one.numerics.plan_losses != one.numerics.reference_losses


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_on_one_rank_is_the_trials(case, measured):
    """The other rank says that it lost its peer, which hides nothing."""
    source, outcome, words = FAULTS[case]
    results = measured(FAULT.format(fault=source))
    assert results[0].peer_lost
    assert not results[1].peer_lost
    merged = merge(results)
    assert merged.outcome is outcome
    assert merged.error.startswith("rank 1: ")
    assert words in merged.error


def test_a_loss_that_is_no_tensor_is_the_users_mistake(measured):
    """As on one device."""
    one, two = measured("def compute_loss(model, batch): return 1.0")
    assert one.user_error
    assert two.user_error
    assert "compute_loss returned a value of type float" in one.error


def test_a_loss_that_is_nan_on_one_rank_diverges_on_all(measured):
    """The mean is NaN as well, so no rank waits for another."""
    results = measured(FAULT.format(fault="global factor; factor = float('nan')"))
    assert [result.outcome for result in results] == [Outcome.DIVERGED] * 2


def test_a_rank_that_dies_leaves_a_word_of_it(measured):
    """The dead rank says nothing; its peer says that it was left."""
    survivor, dead = measured(FAULT.format(fault="os._exit(3)"))
    assert dead is None
    assert survivor.peer_lost


def test_a_rank_that_hangs_keeps_its_peer_waiting_no_longer_than_twice_a_deadline(measured):
    """Where nobody enforces deadlines from outside."""
    short = Deadlines(**{field.name: 4.0 for field in fields(Deadlines)})
    fault = FAULT.format(fault="time.sleep(1000)")
    waiting, hung = measured(fault, deadlines=short, apart_s=1.0)
    assert hung is None
    assert waiting.peer_lost


def test_ranks_that_do_not_meet_say_nothing_about_the_plan(write_workload):
    """The other rank never comes: `infra`, so the plan may be tried again."""
    place = RankPlace(rank=0, world_size=2, local_world_size=2)
    deadlines = Deadlines(rendezvous_s=1.0)
    *phases, result = run_trial(requested(write_workload(), place, deadlines=deadlines))
    assert phases == [Phase.RENDEZVOUS]
    assert result.outcome is Outcome.INFRA
    assert "rank 0 of 2 did not meet the others" in result.error


def test_a_place_travels_as_json(write_workload):
    """With the rest of the request, to another process."""
    place = RankPlace(rank=1, world_size=2, local_rank=1, local_world_size=2, master_port=4000)
    request = requested(write_workload(), place)
    assert TrialRequest.from_dict(json.loads(json.dumps(request.to_dict()))) == request
    lost = TrialResult(outcome=Outcome.CRASH, peer_lost=True)
    assert TrialResult.from_dict(lost.to_dict()) == lost


def _labels(path, batch_size, place):
    plan = Plan.of({"batch_size": batch_size})
    return [
        batch.tolist() for batch in build_loader(load_workload(path), plan, 0, Ranks(place=place))
    ]


INDEXED = """
def build_dataset():
    return list(range(23))
"""
STREAM = """
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(23))

def build_dataset():
    return Stream()
"""


@pytest.mark.parametrize("source", [INDEXED, STREAM])
def test_ranks_share_the_batches_of_one_device(source, write_workload):
    """Batch by batch, in its order; what is left at the end is dropped."""
    path = write_workload(source)
    whole = _labels(path, 6, RankPlace())
    shares = [_labels(path, 2, RankPlace(rank=rank, world_size=3)) for rank in range(3)]
    assert [list(itertools.chain(*parts)) for parts in zip(*shares, strict=True)] == whole


def test_a_share_has_the_length_it_gives():
    """Loaders count their batches by it."""
    for size in random.Random(0).sample(range(1, 200), 20):
        place = RankPlace(rank=1, world_size=3)
        sampler = RankSampler(range(size), 4, place)
        assert len(list(sampler)) == len(sampler)


def test_a_dataset_too_small_for_all_ranks_says_so(write_workload):
    """With the batch that would do."""
    path = write_workload("def build_dataset(): return Rows(6)")
    with pytest.raises(Exception, match=r"4 on each of 2 ranks; set BATCH_SIZE = 3"):
        _labels(path, 4, RankPlace(world_size=2))


def test_ranks_are_diagnosed_together(measured):
    """Both take the same steps; what only one device can show is unknown, and says so."""
    first, second = measured(diagnosis=DiagnosisRequest(flops_per_sample=6e3))
    assert first.outcome is second.outcome is Outcome.OK
    assert first.diagnosis.bound is not None
    assert first.diagnosis.shares.backward > 0
    assert "one device" in first.diagnosis.unknown["findings"]
    assert first.diagnosis.mfu > 0
    assert first.diagnosis.flops_per_sample == 6e3
    assert "counted by the probe" in first.diagnosis.how["flops_per_sample"]
