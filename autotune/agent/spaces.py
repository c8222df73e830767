"""The spaces of a run: of its trials, and of its scouts, the trials on one device each."""

from dataclasses import dataclass, replace

from autotune.dispatch.machine import detect_hardware
from autotune.errors import UsageError
from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.hardware import Hardware
from autotune.search_space.knobs import CATALOGUE
from autotune.search_space.knobs.knob import MeasuredOn
from autotune.search_space.plan import spell
from autotune.search_space.space import Narrowing, Space, build_space

_RANKS_ONLY = frozenset(k.name for k in CATALOGUE if k.measured_on is MeasuredOn.RANKS_ONLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spaces:
    """The spaces that a run searches.

    Attributes:
        whole: the space on all devices of a trial.
        scouting: the space on one device; None if trials have one device anyway.
    """

    whole: Space
    scouting: Space | None


def spaces_of(
    facts: WorkloadFacts, hardware: Hardware, narrowing: Narrowing, num_ranks: int
) -> Spaces:
    """Return the spaces of a run with `num_ranks` devices in a trial.

    Raises:
        UsageError: see `build_space`.
    """
    whole = build_space(facts, hardware, narrowing, num_ranks)
    if num_ranks == 1:
        return Spaces(whole=whole, scouting=None)
    fixed = tuple((name, text) for name, text in narrowing.fix if name not in _RANKS_ONLY)
    of_scouts = replace(narrowing, fix=fixed)
    # A scout accumulates as a rank does: over the rank's share of the global batch.
    share = facts.global_batch_size and facts.global_batch_size // num_ranks
    of_rank = replace(facts, global_batch_size=share)
    scouting = build_space(of_rank, hardware, of_scouts)
    # A value that several ranks cannot have must not make a scout the best one.
    missing = tuple(
        (d.knob.name, spell(d.values[0]))
        for d in scouting.domains
        if d.varies and d.knob.name in whole.out and d.knob.name not in _RANKS_ONLY
    )
    if missing:
        scouting = build_space(of_rank, hardware, replace(of_scouts, fix=(*fixed, *missing)))
    return Spaces(whole=whole, scouting=scouting)


def this_machine(num_ranks: int) -> Hardware:
    """Return this machine; without GPUs it counts as one device for each rank of a trial.

    Raises:
        UsageError: when it has fewer GPUs.
    """
    hardware = detect_hardware()
    if hardware.device_kind == "cpu":
        share = hardware.device_memory_bytes // num_ranks
        return replace(hardware, num_devices=num_ranks, device_memory_bytes=share)
    check_devices(hardware, num_ranks, "this machine has")
    return hardware


def check_devices(hardware: Hardware, num_ranks: int, who_has: str) -> None:
    """Raise an error if a trial needs more devices than there are.

    Raises:
        UsageError: with how many there are.
    """
    if num_ranks > hardware.num_devices:
        raise UsageError(
            f"--gpus-per-trial {num_ranks}: {who_has} {hardware.num_devices} x "
            f"{hardware.device_name}; use {hardware.num_devices} or fewer"
        )
