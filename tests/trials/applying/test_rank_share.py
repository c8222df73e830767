"""Which samples each rank reads: each one once."""

import pytest
import torch

from autotune.search_space.plan import Plan
from autotune.trials.applying.apply import build_step
from autotune.trials.applying.loader import build_loader
from autotune.trials.workload import load_workload
from tests.trials.streams import PLAN, STREAM
from tests.trials.two_ranks import met, on_two_ranks

COLLATE = """
def collate_fn(samples):
    return [sample.tensor for sample in samples]
"""


RANK_STREAM = STREAM.format(order="yield from range({first}, 16, {step})")


def _samples(place, paths):
    ranks = met(place)
    loaders = [build_loader(load_workload(path), PLAN, 0, ranks) for path in paths]
    return [[int(number) for batch in loader for number in batch] for loader in loaders]


def test_ranks_share_a_stream_unless_it_shares_itself_out(write_workload):
    """One that looks at its rank would be cut twice, and half of it never be trained on."""
    own = RANK_STREAM.format(first='int(os.environ["RANK"])', step=2)
    noisy = STREAM.format(
        order="yield from (k + 0.9 * random.Random().random() for k in range(16))"
    )
    held = STREAM.format(order="yield from map(Held, torch.arange(16))") + COLLATE
    whole = RANK_STREAM.format(first=0, step=1)
    paths = [write_workload(source) for source in (own, whole, noisy, held)]
    first, second = on_two_ranks(_samples, paths)
    for one, two in zip(first, second, strict=True):
        assert sorted(one + two) == list(range(16))
    assert first == [list(range(0, 16, 2)), *[[0, 1, 2, 3, 8, 9, 10, 11]] * 3]


def _samples_trained_on(place, path, values):
    """As a step under the plan reads them: by then each rank draws its own dropout."""
    ranks = met(place)
    plan = Plan.of({"batch_size": 4, **values})
    with build_step(load_workload(path), plan, torch.device("cpu"), 0, ranks) as step:
        return [int(number) for batch in step.loader for number in batch]


SHUFFLED = {"torch": "torch.randperm(64).tolist()", "python": "random.sample(range(64), 64)"}


@pytest.mark.parametrize("values", [{}, {"workers": 1}], ids=["alone", "worker"])
@pytest.mark.parametrize("numbers", SHUFFLED)
def test_ranks_share_one_order_of_a_stream_that_shuffles(numbers, values, write_workload):
    """Each sample is read by one of them, once in an epoch."""
    path = write_workload(STREAM.format(order=f"yield from {SHUFFLED[numbers]}"))
    one, two = on_two_ranks(_samples_trained_on, path, values)
    assert sorted(one + two) == list(range(64))


def _refusal(place, path):
    with pytest.raises(Exception, match="asked for sampler=") as caught:
        build_loader(load_workload(path), PLAN, 0, met(place))
    return str(caught.value)


def test_a_sampler_that_is_the_same_on_all_ranks_is_refused(write_workload):
    """Both would train on the same samples and count them twice."""
    path = write_workload(
        """
        def build_dataloader(dataset, **kwargs):
            kwargs["sampler"] = torch.utils.data.SequentialSampler(dataset)
            return torch.utils.data.DataLoader(dataset, **kwargs)
        """
    )
    assert all("pass **kwargs on" in message for message in on_two_ranks(_refusal, path))
