"""Trials get their devices on one node where they can."""

import pytest

from autotune.dispatch.slot_actor import SlotPlace
from autotune.dispatch.slots import choose, visible_devices

FREE = {0: "a", 1: "a", 2: "b", 3: "b", 4: "b"}


@pytest.mark.parametrize(
    ("count", "chosen"),
    [(1, [0]), (2, [0, 1]), (3, [2, 3, 4]), (4, [2, 3, 4, 0])],
)
def test_ranks_are_packed(count, chosen):
    """The fullest node that has room is taken, else the trial spreads over the fewest nodes."""
    assert choose(FREE, count) == chosen


def test_too_few_free_devices_are_refused():
    """A trial never gets fewer devices than it has ranks."""
    with pytest.raises(RuntimeError, match="2 devices are free, fewer than the 3"):
        choose({0: "a", 1: "b"}, 3)


def place(node: str, device: str | None) -> SlotPlace:
    cores = frozenset({0})
    return SlotPlace(node_id=node, address="", visible_devices=device, machine_cores=cores)


def test_ranks_see_all_devices_of_their_trial_on_their_node():
    """As under torchrun: the local rank is the number of the rank's own device among them."""
    places = [place("a", "3"), place("a", "1"), place("b", "0")]
    assert visible_devices(places) == ["3,1", "3,1", "0"]
    assert visible_devices([place("a", None)] * 2) == [None, None]
