"""The type of the catalogue's entries, which hold everything that is known about a knob.

Every question that the space, the search, the forecasts and the explanations ask about a knob has
a field here, most of them without a default, so that a new entry has to answer them. Entries live
in the modules of their families beside this one.
"""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from autotune.search_space.bound import Bound
from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.hardware import DeviceKind
from autotune.search_space.plan import Plan, Value
from autotune.search_space.site import Site


class Numerics(enum.Enum):
    """How much a knob may change the computed numbers, least first.

    `exact`: not at all. `rounding`: by another order of operations. `precision`: by another number
    format. `training`: the training itself changes, as with another batch.
    """

    EXACT = "exact"
    ROUNDING = "rounding"
    PRECISION = "precision"
    TRAINING = "training"

    @property
    def rank(self) -> int:
        """Position from the least change (0) to the most."""
        return list(Numerics).index(self)


@dataclass(frozen=True, slots=True)
class Out:
    """The reason, in words for the user, why a knob does not apply at a site."""

    reason: str


Offer = tuple[Value, ...] | Out
"""The values of a knob at a site, baseline first, or why it has none."""


@dataclass(frozen=True, slots=True)
class Effect:
    """The expected speed-up of host and device in a step, relative to the knob's first value.

    Attributes:
        host: factor on the speed of preparing and launching operations.
        device: factor on the speed of running them.
        products: further factor on the speed of matrix products, convolutions and attention.
        pointwise: further factor on the speed of those that are bound by memory bandwidth, such as
            norms and activations between products.
    """

    host: float = 1.0
    device: float = 1.0
    products: float = 1.0
    pointwise: float = 1.0


NO_EFFECT = Effect()


def both(speed: float) -> Effect:
    """Return the same expected speed-up of host and device."""
    return Effect(speed, speed)


Speed = Callable[[Value, Site], Effect]
"""Returns the expected speed-up of a value at a site, to rank plans before they are measured."""


def no_speed(value: Value, site: Site) -> Effect:
    """Return no expected speed-up, whatever the value."""
    return NO_EFFECT


def speed_by_device(
    *, cuda: Mapping[Value, Effect] | None = None, cpu: Mapping[Value, Effect] | None = None
) -> Speed:
    """Return a `Speed` by tables of values for each kind of device; others gain nothing."""
    tables = {"cuda": cuda or {}, "cpu": cpu or {}}
    return lambda value, site: tables[site.hardware.device_kind].get(value, NO_EFFECT)


def no_correction(value: Value, beside: Mapping[str, Effect]) -> Effect:
    """Return no change to the expected speed-ups of other knobs."""
    return NO_EFFECT


class StepPart(enum.StrEnum):
    """A part of a step, as a diagnosis measures it."""

    DATA = "data"
    COPY = "copy"
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"
    IDLE = "idle"


class MeasuredOn(enum.Enum):
    """The devices that a trial needs to measure the effect of a knob.

    `one_device`: one is enough. `all_ranks`: the best value depends on memory or communication of
    all ranks. `ranks_only`: a trial on one device does not have the knob, or has another value.
    """

    ONE_DEVICE = "one_device"
    ALL_RANKS = "all_ranks"
    RANKS_ONLY = "ranks_only"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """What a knob does to the peak of device memory.

    Attributes:
        saving: a rank for each value, higher for a value that needs less; values that are not
            listed have rank 0, and the key None stands for a plan without the knob. None: it is
            unknown which of two values needs more.
        activations: size of the activations kept for the backward pass, by value, as a part of
            that with the knob's first value; an estimate that measured peaks replace.
        why_less: why a value may save memory, for the user.
        less_is_less: for counts, whether a smaller (True) or a larger one (False) saves memory.
        makes_room: whether it trades speed for memory, to be tried with a batch that does not fit.
        matters: whether plans that differ only in this knob may differ in their peaks.
    """

    saving: Mapping[Value | None, int] | None
    activations: Mapping[Value, float] = field(default_factory=lambda: MappingProxyType({}))
    why_less: str | None = None
    less_is_less: bool | None = None
    makes_room: bool = False
    matters: bool = True

    def rank(self, value: Value | None) -> int:
        """Return the value's rank in `saving`, 0 if it has none."""
        return (self.saving or {}).get(value, 0)

    def why(self, value: Value, instead_of: Value | None) -> str | None:
        """Return why `value` may save memory in another one's place; None: it does not."""
        if self.less_is_less is not None and instead_of is not None:
            if (int(value) < int(instead_of)) != self.less_is_less:
                return None
        return self.why_less


NO_MEMORY = MemoryUse(saving=MappingProxyType({}), matters=False)
UNKNOWN_MEMORY = MemoryUse(saving=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasons:
    """Why a value may be faster than the one in its place, for the user.

    Attributes:
        change: for a value that has no sentence of its own.
        by_value: for values that have one.
        back: why to return to a value that the user may have had.
        more, less: for a larger and a smaller count.
        less_goes_back: a smaller count undoes what the knob does against a bound.
        allow: for a guarded value that acts on what bounds the step: how to try it.
    """

    change: str = "a choice that the workload offers"
    by_value: Mapping[Value, str] = field(default_factory=lambda: MappingProxyType({}))
    back: Mapping[Value, str] = field(default_factory=lambda: MappingProxyType({}))
    more: str | None = None
    less: str | None = None
    less_goes_back: bool = False
    allow: str | None = None

    def why(self, value: Value, instead_of: Value | None) -> str:
        """Return why `value` may be faster than `instead_of`."""
        if value in self.back:
            return self.back[value]
        if self.more and self.less:
            return self.less if _is_less(value, instead_of) else self.more
        if value in self.by_value:
            return self.by_value[value]
        # What a value does in the place of the user's own may be no news after another one.
        if self.back and instead_of is not None and instead_of not in self.back:
            return f"it may suit the step better than {instead_of}"
        return self.change

    def goes_back(self, value: Value, instead_of: Value | None) -> bool:
        """Whether the change undoes what the knob does against a bound."""
        return value in self.back or (self.less_goes_back and _is_less(value, instead_of))


def _is_less(count: Value, instead_of: Value | None) -> bool:
    return instead_of is not None and int(count) < int(instead_of)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """A combination of values that cannot run together.

    Attributes:
        knobs: those involved, the first to give up first.
        found: whether a plan has the combination, for a workload.
        reason: why it cannot run, for the user.
    """

    knobs: tuple[str, ...]
    found: Callable[[Plan, WorkloadFacts], bool]
    reason: str


def always(plan: Plan) -> bool:
    """Return True: the knob applies to every plan."""
    return True


ANY_DEVICE: frozenset[DeviceKind] = frozenset({"cpu", "cuda"})
NO_DEVICE: frozenset[DeviceKind] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """An entry of the catalogue: a setting that may vary, with all that is known about it.

    Attributes:
        name: as plans, tables and the command line spell it.
        doc: one line for the user.
        numerics: how much it may change the computed numbers.
        values: its values at a site, baseline first, or `Out`.
        speed: the expected speed-up of each value at a site.
        acts_on: limits of a step's speed that the knob can reduce.
        saves: the only parts of a step that it can shorten; None: it may shorten any part.
        hides: a part that runs beside the rest with any value but the first; a diagnosis of a step
            without it then says what it is worth.
        memory: what it does to the peak of device memory.
        recompiles_on: the kinds of device where torch.compile compiles another program for each
            value.
        measured_on: the devices that a trial needs to measure its effect.
        reasons: why a value may be faster, for the user.
        correction: returns a further factor for a value, given the expected speed-ups of the
            plan's other settings.
        doubt: standard deviation of a value's log speed about the expected one.
        known: every value that it can have at some site; empty if that depends on the workload.
        active: returns whether it applies in a plan.
        guarded: values that run only after `--allow VALUE`, or where `--fix` names them.
        same_as: returns the value that means the same at a site where two of them are one
            setting; any other value is returned as it is.
        any_count: `--fix` and plan files may name any integer from `least` on, not only `values`.
        least: the smallest count that it can have.
        check_count: raises a `PlanError` for a count that a site cannot have.
        allowed_from: the narrowest `--numerics` that lets it vary; None: its own class.
        missing: returns in words which known values a site lacks and why; empty: none.
        conflicts: combinations of its values with others that cannot run.
        feeds_device: whether it only changes how batches are loaded and copied to the device.
        needs_data_wait: whether it is worth a trial only while the loop waits for data.
        lengthens_start: whether the first step takes far longer with another value.
        cannot_fail: values that never make a plan fail.
    """

    name: str
    doc: str
    numerics: Numerics
    values: Callable[[Site], Offer]
    speed: Speed
    acts_on: frozenset[Bound]
    saves: frozenset[StepPart] | None
    memory: MemoryUse
    recompiles_on: frozenset[DeviceKind]
    measured_on: MeasuredOn
    reasons: Reasons
    correction: Callable[[Value, Mapping[str, Effect]], Effect] = no_correction
    hides: StepPart | None = None
    doubt: float = 0.03
    known: tuple[Value, ...] = ()
    active: Callable[[Plan], bool] = always
    guarded: tuple[Value, ...] = ()
    same_as: Callable[[Value, Site], Value] = lambda value, site: value
    any_count: bool = False
    least: int = 1
    check_count: Callable[[int, Site], None] = lambda count, site: None
    allowed_from: Numerics | None = None
    missing: Callable[[Site], str] = lambda site: ""
    conflicts: tuple[Conflict, ...] = ()
    feeds_device: bool = False
    needs_data_wait: bool = False
    lengthens_start: bool = False
    cannot_fail: tuple[Value, ...] = ()


ON_OFF = (False, True)


def cuda_only(site: Site, values: tuple[Value, ...]) -> Offer:
    """Return the values on a GPU, else that the knob needs one."""
    return values if site.hardware.device_kind == "cuda" else Out("needs a CUDA device")


def needs_blocks(site: Site, values: tuple[Value, ...]) -> Offer:
    """Return the values for a model with repeated blocks, else that none were found."""
    if site.facts.num_blocks >= 2:
        return values
    if site.facts.command is not None:
        return Out("the model has no repeated blocks")
    return Out("no repeated blocks found; define blocks(model) in the workload to name them")
