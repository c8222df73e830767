"""Judges the gaps between a plan's steps and those of eager fp32 from the same weights.

What is allowed is a multiple of what eager fp32 does when its numbers are moved by the unit
roundoff of the plan's format, and at least a floor for the class of what the plan changes. Where
that moves gradients so far that the multiple would allow any, their sizes are compared; where not
even the rounding of fp32 leaves anything of them, they are noise, and the loss alone is judged.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from autotune.search_space.knobs import Numerics
from autotune.trials.numerics.gaps import Gap, StepGaps, together
from autotune.trials.numerics_report import Deviation, Part

# A plan rounds activations, too, and more often than once: so many times as far as its unit
# roundoff moves eager fp32 it may be from it.
_TIMES_ROUNDING = 4.0
# Two draws of random numbers are each as far from the mean; the largest of several is farther.
_TIMES_SPREAD = 2.0
# A rounded gradient this far from itself has nothing to do with it (unrelated ones: 1.41).
_UNRELATED = 0.7
# Sizes of chaotic gradients vary. A wrong scale is a factor of two at least, and in every step.
_SIZE_ALLOWED = 0.9


class _Floors(NamedTuple):
    """The least that is allowed.

    Attributes:
        loss: a mean over much, which leaves little of its terms' rounding.
        together: all gradients, or all updates.
        single: one tensor of them, which may have few elements. What is wrong with one, such as a
            dropped gradient, is large.
    """

    loss: float
    together: float
    single: float


_PRECISION = _Floors(loss=1e-2, together=10 * 2**-8, single=0.5)  # 2^-8 is what bf16 rounds by
_FLOORS = {
    Numerics.EXACT: _Floors(loss=2e-4, together=1e-3, single=1e-2),
    Numerics.ROUNDING: _Floors(loss=2e-3, together=1e-2, single=0.1),
    Numerics.PRECISION: _PRECISION,
    Numerics.TRAINING: _PRECISION,
}
_SAME_SETTING = 1e-6  # relative; a rate that a device holds is a number of 32 bits

_Named = Mapping[str, Gap]
_Pick = Callable[[_Named], Gap]
_Measure = Callable[[_Named], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """What gaps are held against: those of eager fp32 from itself.

    Attributes:
        numerics: the widest class of what the plan changes.
        rounded: with numbers moved by the unit roundoff of the plan's format.
        in_fp32: with numbers moved by that of fp32; empty where it was not looked at.
        redrawn: with other random numbers; empty where the plan is to draw the same.
    """

    numerics: Numerics
    rounded: Sequence[StepGaps]
    in_fp32: Sequence[StepGaps] = ()
    redrawn: Sequence[StepGaps] = ()


def judged(seen: Sequence[StepGaps], yardstick: Yardstick) -> list[Deviation]:
    """Return how far each part of the steps is that can be judged, with what is allowed."""
    gradients = _Tensors(seen, yardstick, Part.GRADIENTS, lambda gaps: gaps.gradients)
    # What a gradient of mere rounding makes of an optimizer's update is nobody's doing.
    noise = gradients.noise()
    weights = _Tensors(seen, yardstick, Part.WEIGHTS, lambda gaps: _without(gaps.weights, noise))
    buffers = _Tensors(seen, yardstick, Part.BUFFERS, lambda gaps: gaps.buffers)
    return [
        _loss(seen, yardstick),
        *_not_finite(seen),
        *gradients.together("gradients"),
        *gradients.worst("gradient of"),
        *weights.together("updates"),
        *weights.worst("update of"),
        *buffers.worst("change of the buffer"),
    ]


def _without(named: _Named, names: set[str]) -> _Named:
    return {name: gap for name, gap in named.items() if name not in names}


def is_lost_in_rounding(rounded: Sequence[StepGaps]) -> bool:
    """Whether rounding to the plan's format leaves nothing of the direction of the gradients."""
    return max(together(gaps.gradients.values()).relative for gaps in rounded) >= _UNRELATED


def _loss(seen: Sequence[StepGaps], yardstick: Yardstick) -> Deviation:
    own = _loss_gap(yardstick.rounded)
    allowed = _allowed(
        _FLOORS[yardstick.numerics].loss,
        own,
        _loss_gap(yardstick.redrawn),
    )
    return Deviation(
        part=Part.LOSS, what="loss", seen=_loss_gap(seen), allowed=allowed, by_itself=own
    )


def _loss_gap(steps: Sequence[StepGaps]) -> float:
    if not steps:
        return 0.0
    scale = sum(abs(gaps.expected_loss) for gaps in steps) / len(steps) or 1.0
    gaps = [abs(gaps.loss - gaps.expected_loss) / scale for gaps in steps]
    return max(gaps) if all(map(math.isfinite, gaps)) else math.inf


def _allowed(floor: float, rounded: float, redrawn: float) -> float:
    return max(floor, _TIMES_ROUNDING * rounded, _TIMES_SPREAD * redrawn)


class _Tensors:
    """The gradients, the weights or the buffers of the compared steps.

    The step in which the plan is nearest counts: what is wrong is wrong in every step. What
    rounding decides, such as which side of zero a sum falls on or which expert a token goes to,
    is not.
    """

    def __init__(
        self,
        seen: Sequence[StepGaps],
        yardstick: Yardstick,
        part: Part,
        of: Callable[[StepGaps], _Named],
    ) -> None:
        self._part, self._floors = part, _FLOORS[yardstick.numerics]
        self._seen = [of(gaps) for gaps in seen]
        self._rounded = [of(gaps) for gaps in yardstick.rounded]
        self._in_fp32 = [of(gaps) for gaps in yardstick.in_fp32]
        self._redrawn = [of(gaps) for gaps in yardstick.redrawn]

    def together(self, name: str) -> Iterator[Deviation]:
        """Yield how far all of them are, as one; nothing where they are noise."""
        found = self._judge(lambda gaps: together(gaps.values()), name, self._floors.together)
        if found is not None:
            yield found

    def worst(self, name: str) -> Iterator[Deviation]:
        """Yield the single tensor that is farthest beside what it may be."""
        # Momentum adds chaotic gradients up, in which a single tensor's size means little.
        judge = self._by_direction if self._part is Part.WEIGHTS else self._judge
        tensors = [
            judge(itemgetter(one), f"{name} {one}", self._floors.single)
            for one in sorted(self._common())
        ]
        yield from sorted(filter(None, tensors), key=lambda found: -found.excess)[:1]

    def noise(self) -> set[str]:
        """Return the names of the tensors that even the rounding of fp32 makes to others."""
        return {name for name in self._common() if self._is_noise(itemgetter(name))}

    def _common(self) -> set[str]:
        everywhere = (*self._seen, *self._rounded, *self._in_fp32, *self._redrawn)
        return set.intersection(*(set(gaps) for gaps in everywhere))

    def _judge(self, of: _Pick, what: str, floor: float) -> Deviation | None:
        """Return how far the direction is, or the size where rounding leaves no direction."""
        by_direction = self._by_direction(of, what, floor)
        if by_direction is not None or self._is_noise(of):
            return by_direction
        size = f"size of the {what}"
        return self._judge_one(lambda gaps: of(gaps).in_size, size, _SIZE_ALLOWED)

    def _by_direction(self, of: _Pick, what: str, floor: float) -> Deviation | None:
        return self._judge_one(lambda gaps: of(gaps).relative, what, floor)

    def _judge_one(self, measure: _Measure, what: str, floor: float) -> Deviation | None:
        """Return how far the plan is, None where that much would be allowed to anything."""
        seen = min(map(measure, self._seen))
        by_itself = max(map(measure, self._rounded))
        allowed = _allowed(floor, by_itself, max(map(measure, self._redrawn), default=0.0))
        if allowed >= 1.0:
            return None
        return Deviation(
            part=self._part, what=what, seen=seen, allowed=allowed, by_itself=by_itself
        )

    def _is_noise(self, of: _Pick) -> bool:
        """Whether even the rounding of fp32 leaves nothing of it, as far as that was looked at."""
        if max(of(gaps).relative for gaps in self._rounded) < _UNRELATED:
            return False
        in_fp32 = [of(gaps).relative for gaps in self._in_fp32]
        return not in_fp32 or max(in_fp32) >= 1 / _TIMES_ROUNDING


def settings_judged(
    seen: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]
) -> Iterator[Deviation]:
    """Yield a deviation for the first setting in which two optimizers' groups differ."""
    for own, reference in zip(seen, expected, strict=False):
        for name in sorted(own.keys() & reference.keys()):
            if not _is_same_setting(own[name], reference[name]):
                what = f"its optimizer has {name}={own[name]} instead of {reference[name]}"
                yield Deviation(part=Part.OPTIMIZER, what=what, seen=math.inf, allowed=0.0)
                return


def _is_same_setting(own: Any, reference: Any) -> bool:
    if isinstance(own, float) and isinstance(reference, float):
        return math.isclose(own, reference, rel_tol=_SAME_SETTING)
    return bool(own == reference)


def _not_finite(seen: Sequence[StepGaps]) -> Iterator[Deviation]:
    """Yield a deviation where the plan's gradients overflow in a step, however noisy they are."""
    sizes = [together(gaps.gradients.values()).difference for gaps in seen]
    if not all(map(math.isfinite, sizes)):
        yield Deviation(part=Part.GRADIENTS, what="gradients", seen=math.inf, allowed=1.0)
