"""What is expected of workers, of larger batches, and of the cores that both need."""

from dataclasses import replace

import pytest

from autotune.agent.forecast.loading import loading_of
from autotune.agent.forecast.speed import Forecast
from autotune.search_space.space import Narrowing, build_space
from tests.agent.histories import SPACE, history
from tests.agent.world import CPU, GPT, GPU, ok

ONE_THREAD = Narrowing(fix=(("threads", "1"),))

FAR_APART = ((16, 110.0), (64, 70.0))


def test_workers_are_expected_to_share_the_loading():
    """Four of them quarter the time of a loop that does nothing but load."""
    seen = history(({}, ok(50.0, wait=0.99)))
    (outlook,) = Forecast(seen, GPU).of([SPACE.plan({"workers": 4})])
    assert outlook.throughput == pytest.approx(4 * 50.0, rel=0.1)


@pytest.mark.parametrize(("cores", "expected"), [(2, 200.0), (8, 300.0)])
def test_on_a_cpu_workers_load_on_the_cores_that_computing_leaves(cores, expected):
    """Two of them, with a third of the time computing: all of it on two cores, or beside it."""
    space = build_space(GPT, replace(CPU, num_cores=cores), ONE_THREAD)
    seen = history(({}, ok(100.0, wait=2 / 3)), space=space)
    (outlook,) = Forecast(seen, CPU).of([space.plan({"workers": 2})])
    assert outlook.throughput == pytest.approx(expected, rel=0.05)


def test_workers_that_wait_need_no_cores():
    """Eight of them on two cores load eight samples in the time of one, beside the step."""
    space = build_space(replace(GPT, loader_busy_share=0.02), CPU, ONE_THREAD)
    seen = history(({}, ok(50.0, wait=0.98)), space=space)
    (outlook,) = Forecast(seen, CPU).of([space.plan({"workers": 8})])
    assert outlook.throughput == pytest.approx(8 * 50.0, rel=0.05)


def test_where_workers_lack_cores_faster_computing_helps_to_load():
    """On a CPU with as many processes as cores."""
    assert gain_of_bf16(CPU, wait=0.25) > 1.05


def test_beside_a_device_faster_computing_helps_where_the_loop_waits_a_part_of_the_time():
    """Batches come in bursts; where the loop waits all the time, the workers are the limit."""
    machine = replace(GPU, num_cores=2)
    assert gain_of_bf16(machine, wait=0.25) > 1.15
    assert gain_of_bf16(machine, wait=0.95) == pytest.approx(1.0, abs=0.01)


def gain_of_bf16(machine, wait):
    """Return the expected speed-up of bf16 beside two workers for which the loop waits."""
    space = build_space(GPT, machine, ONE_THREAD)
    waits = ({"workers": 2}, ok(200.0, wait=wait))
    seen = history(({}, ok(100.0, wait=2 / 3)), waits, space=space)
    slow, fast = Forecast(seen, machine).of(
        [space.plan({"workers": 2, **more}) for more in ({}, {"precision": "bf16"})]
    )
    return fast.throughput / slow.throughput


def test_loop_that_hardly_waits_does_not_tell_how_fast_its_workers_are():
    """The one that waits most does: its workers are what it waits for."""
    half = ({"workers": 2, "precision": "bf16"}, ok(400.0, wait=0.6))
    little = ({"workers": 2, "batch_size": 64}, ok(450.0, wait=0.06))
    alone = loading_of(history(({}, ok(50.0, wait=0.9)), half))
    both = loading_of(history(({}, ok(50.0, wait=0.9)), half, little))
    assert both.sample_s == alone.sample_s


def test_one_batch_does_not_tell_how_fast_others_are_loaded():
    """What a batch costs beside its samples shows from two of them, for the batches between."""
    space = build_space(GPT, CPU, ONE_THREAD)
    waits = ({"workers": 2}, ok(110.0, wait=0.6))
    another = ({"workers": 2, "batch_size": 64}, ok(115.0, wait=0.6))
    one = loading_of(history(({}, ok(100.0, wait=0.9)), waits, space=space))
    two = loading_of(history(({}, ok(100.0, wait=0.9)), waits, another, space=space))
    own, between = ({"workers": 2, "batch_size": size} for size in (16, 32))
    assert one.doubt(space.plan(own)) == 0.0
    assert one.doubt(space.plan(between)) == one.doubt(space.plan({"workers": 1})) > 0.0
    assert 0.0 < two.doubt(space.plan(between)) < one.doubt(space.plan(between))


def test_between_two_batches_a_loader_may_be_better_than_with_either():
    """What is not known is not taken to be worse than both."""
    ends = [({"workers": 2, "batch_size": n}, ok(speed, wait=0.9)) for n, speed in FAR_APART]
    seen = history(({}, ok(60.0, wait=0.9)), *ends)
    plans = [SPACE.plan({"workers": 2, "batch_size": n}) for n in (16, 32, 64)]
    small, between, large = Forecast(seen, GPU).of(plans)
    assert large.throughput < between.throughput < small.throughput
    assert between.chance(small.throughput) > 0.1
    assert between.log_std > 5 * small.log_std


@pytest.mark.parametrize(("samples", "expected"), [(8 * 16, 8.0), (9 * 16, 4.5), (4 * 16, 4.0)])
def test_workers_wait_for_the_end_of_a_short_epoch(samples, expected):
    """Nine batches for eight workers take as long as sixteen, and four keep four of them busy."""
    space = build_space(replace(GPT, dataset_len=samples), GPU)
    seen = history(({}, ok(50.0, wait=0.99)), space=space)
    (outlook,) = Forecast(seen, GPU).of([space.plan({"workers": 8})])
    assert outlook.throughput == pytest.approx(expected * 50.0, rel=0.1)


@pytest.mark.parametrize(("throughput", "expected"), [(100_000.0, 1.6), (50.0, 4.0)])
def test_a_batch_four_times_as_large_takes_a_quick_loader_hardly_longer(throughput, expected):
    """Most of 80 us goes to putting together any batch; 160 ms are those of the samples."""
    seen = history(({}, ok(throughput, wait=0.5)))
    own, larger = (SPACE.plan({"batch_size": size}) for size in (16, 64))
    loading = loading_of(seen)
    batch_s = [loading.step_s(plan, 0.0) * int(plan["batch_size"]) for plan in (own, larger)]
    assert batch_s[0] == pytest.approx(8 / throughput)
    assert batch_s[1] / batch_s[0] == pytest.approx(expected, rel=0.01)
