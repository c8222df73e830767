"""Replays recorded trials on a fake clock, so that a two-hour run takes milliseconds.

A trial lasts as long as when it was recorded. One that racing would have stopped ends after the
window at which it would have stopped; see `stopped_by_racing`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from autotune.clock import FakeClock
from autotune.dispatch.runner import Finished
from autotune.search_space.hardware import Hardware
from autotune.search_space.plan import Plan
from autotune.trials.cause import Cause
from autotune.trials.interval import is_below, relative_half_width
from autotune.trials.request import TrialRequest
from autotune.trials.result import Measurement, Outcome, Phase, TrialResult, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replayed:
    """A trial between `submit` and its recorded end."""

    request: TrialRequest
    result: TrialResult
    started_at: float
    ends_at: float


class ReplayRunner:
    """A `Runner` that returns recorded results; each trial lasts its recorded `total_s`.

    Args:
        hardware: of the recording; its number of devices is the capacity.
        table: the result of each plan, or a function that returns it.
        clock: advanced only by `wait`.
    """

    def __init__(
        self,
        hardware: Hardware,
        table: Mapping[Plan, TrialResult] | Callable[[Plan], TrialResult],
        *,
        clock: FakeClock,
    ) -> None:
        self._hardware = hardware
        self._table = table
        self._clock = clock
        self._running: list[_Replayed] = []

    @property
    def hardware(self) -> Hardware:
        """The hardware of the recording."""
        return self._hardware

    @property
    def capacity(self) -> int:
        """The number of devices; a trial takes one for each of its ranks."""
        return self._hardware.num_devices

    def submit(self, request: TrialRequest) -> None:
        """Start a trial on `request.place.world_size` free devices.

        Raises:
            RuntimeError: when fewer devices are free.
            LookupError: when the table has no such plan.
        """
        num_ranks = request.place.world_size
        num_free = self.capacity - sum(p.request.place.world_size for p in self._running)
        if num_free < num_ranks:
            raise RuntimeError(
                f"{num_free} devices are free, fewer than the {num_ranks} of a trial; "
                "wait for a trial to end"
            )
        result, duration_s = self._look_up(request.plan), request.give_up_after_s
        if request.interesting_above is not None:
            result = stopped_by_racing(result, request.interesting_above)
        if duration_s is not None and duration_s < (result.total_s or 0.0):
            result = _cancelled(request.give_up_cause, duration_s, result)
        self._start(request, result, self._clock.now())

    def _start(self, request: TrialRequest, result: TrialResult, started_at: float) -> None:
        ends_at = started_at + (result.total_s or 0.0)
        played = _Replayed(request=request, result=result, started_at=started_at, ends_at=ends_at)
        self._running.append(played)

    def _look_up(self, plan: Plan) -> TrialResult:
        if callable(self._table):
            return self._table(plan)
        if plan not in self._table:
            raise LookupError(
                f"the replayed table has no result for {plan.values}; record it first"
            )
        return self._table[plan]

    def wait(self, timeout_s: float) -> list[Finished]:
        """Advance the clock to the next trial's end, by at most `timeout_s`; return what ended."""
        if not self._running:
            return []
        next_end_s = min(played.ends_at for played in self._running) - self._clock.now()
        self._clock.sleep(min(next_end_s, timeout_s))
        # The sum of two floats may fall just short of the end that it was computed from.
        by = self._clock.now() + (1e-9 if next_end_s <= timeout_s else 0.0)
        ended = sorted((p for p in self._running if p.ends_at <= by), key=lambda p: p.ends_at)
        self._running = [played for played in self._running if played not in ended]
        return [Finished(request=played.request, result=played.result) for played in ended]

    def phases(self) -> dict[int, Phase]:
        """Return the phase of each running trial by its number."""
        now = self._clock.now()
        return {
            played.request.number: _phase_after(now - played.started_at, played.result)
            for played in self._running
        }

    def cancel(self, number: int, cause: Cause) -> None:
        """Stop a running trial; `wait` returns it with the outcome `cancelled` and `cause`."""
        for played in [p for p in self._running if p.request.number == number]:
            self._running.remove(played)
            lasted_s = self._clock.now() - played.started_at
            ended = _cancelled(cause, lasted_s, played.result)
            self._start(played.request, ended, played.started_at)

    def drop(self) -> list[Finished]:
        """Return the running trials as stopped by the end of the budget."""
        for number in self.phases():
            self.cancel(number, Cause.BUDGET_ENDED)
        dropped, self._running = self._running, []
        return [Finished(request=played.request, result=played.result) for played in dropped]

    def close(self) -> None:
        """Drop the running trials."""
        self._running.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def stopped_by_racing(result: TrialResult, interesting_above: float) -> TrialResult:
    """Return the result of a trial that stops when it is clearly below `interesting_above`.

    It has the windows up to that moment, and `total_s` without the seconds of the later ones.
    """
    measurement = result.measurement
    windows = measurement.windows if measurement else ()
    rates = [window.throughput for window in windows]
    counts = (n for n in range(1, len(rates) + 1) if is_below(rates[:n], interesting_above))
    count = next(counts, None)
    if measurement is None or count is None:
        return result
    saved_s = sum(window.seconds for window in windows[count:])
    return replace(
        result,
        measurement=_of_windows(measurement, windows[:count], saved_s),
        total_s=(result.total_s or 0.0) - saved_s,
    )


def _of_windows(
    measurement: Measurement, windows: Sequence[Window], saved_s: float
) -> Measurement:
    throughput = sum(w.samples for w in windows) / sum(w.seconds for w in windows)
    half = relative_half_width([window.throughput for window in windows])
    return replace(
        measurement,
        throughput=throughput,
        throughput_low=throughput / (1 + half),
        throughput_high=throughput * (1 + half),
        measure_s=measurement.measure_s - saved_s,
        settled=False,
        raced=True,
        windows=tuple(windows),
    )


def _cancelled(cause: Cause, lasted_s: float, whole: TrialResult) -> TrialResult:
    return TrialResult(
        outcome=Outcome.CANCELLED,
        cause=cause,
        error=cause.words,
        phase=_phase_after(lasted_s, whole),
        total_s=lasted_s,
    )


def _phase_after(lasted_s: float, whole: TrialResult) -> Phase:
    """Return the phase in which a trial was `lasted_s` after its start."""
    measured = whole.measurement
    if measured is None:
        return whole.phase
    end_s = whole.total_s or 0.0
    for phase, phase_s in (
        (Phase.MEASURE, measured.measure_s),
        (Phase.WARM_UP, measured.warm_up_s),
        (Phase.FIRST_STEP, measured.first_step_s),
    ):
        end_s -= phase_s
        if lasted_s >= end_s:
            return phase
    return Phase.BUILD
