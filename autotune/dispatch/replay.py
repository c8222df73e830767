"""Plays trials back from a table on a fake clock: a two-hour run in milliseconds.

A trial takes the time that it took when it was recorded. Where the recorded windows show that it
would have been raced out, it ends after as many of them as that needed.
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
class _Played:
    request: TrialRequest
    result: TrialResult
    started_at: float
    ends_at: float


class ReplayRunner:
    """A runner that looks results up instead of measuring; each takes its own `total_s`.

    Args:
        hardware: the machine to pretend; its number of devices is the capacity.
        table: the result of each plan, or a function that makes it.
        clock: advanced by `wait`, and by nothing else here.
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
        self._running: list[_Played] = []

    @property
    def hardware(self) -> Hardware:
        """The machine that trials pretend to run on."""
        return self._hardware

    @property
    def capacity(self) -> int:
        """How many devices there are; a trial takes one for each rank."""
        return self._hardware.num_devices

    def submit(self, request: TrialRequest) -> None:
        """Start a trial on as many free devices as its place says that it has ranks.

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
            result = raced(result, request.interesting_above)
        if duration_s is not None and duration_s < (result.total_s or 0.0):
            result = _cancelled(request.give_up_cause, duration_s, result)
        self._play(request, result, self._clock.now())

    def _play(self, request: TrialRequest, result: TrialResult, started_at: float) -> None:
        ends_at = started_at + (result.total_s or 0.0)
        played = _Played(request=request, result=result, started_at=started_at, ends_at=ends_at)
        self._running.append(played)

    def _look_up(self, plan: Plan) -> TrialResult:
        if callable(self._table):
            return self._table(plan)
        if plan not in self._table:
            raise LookupError(f"the replayed table has no result for {plan.values}; add it")
        return self._table[plan]

    def wait(self, timeout_s: float) -> list[Finished]:
        """Advance the clock to the next end, by `timeout_s` at most; return what ended."""
        if not self._running:
            return []
        next_end_s = min(played.ends_at for played in self._running) - self._clock.now()
        self._clock.sleep(min(next_end_s, timeout_s))
        # The sum of two floats may fall just short of the end that it was computed from.
        by = self._clock.now() + (1e-9 if next_end_s <= timeout_s else 0.0)
        ended = sorted((p for p in self._running if p.ends_at <= by), key=lambda p: p.ends_at)
        self._running = [played for played in self._running if played not in ended]
        return [Finished(request=played.request, result=played.result) for played in ended]

    def cancel(self, number: int, cause: Cause) -> None:
        """End a running trial; it comes back from `wait` as `cancelled`, with `cause`."""
        for played in [p for p in self._running if p.request.number == number]:
            self._running.remove(played)
            lasted_s = self._clock.now() - played.started_at
            ended = _cancelled(cause, lasted_s, played.result)
            self._play(played.request, ended, played.started_at)

    def close(self) -> None:
        """Forget what runs."""
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


def raced(result: TrialResult, interesting_above: float) -> TrialResult:
    """Return the result as it would be, had its trial stopped once it was clearly too slow.

    What the trial was spared is known: the seconds of the later windows.
    """
    measurement = result.measurement
    windows = measurement.windows if measurement else ()
    rates = [window.throughput for window in windows]
    counts = (n for n in range(1, len(rates) + 1) if is_below(rates[:n], interesting_above))
    count = next(counts, None)
    if measurement is None or count is None:
        return result
    spared_s = sum(window.seconds for window in windows[count:])
    return replace(
        result,
        measurement=_of_windows(measurement, windows[:count], spared_s),
        total_s=(result.total_s or 0.0) - spared_s,
    )


def _of_windows(
    measurement: Measurement, windows: Sequence[Window], spared_s: float
) -> Measurement:
    throughput = sum(w.samples for w in windows) / sum(w.seconds for w in windows)
    half = relative_half_width([window.throughput for window in windows])
    return replace(
        measurement,
        throughput=throughput,
        throughput_low=throughput / (1 + half),
        throughput_high=throughput * (1 + half),
        measure_s=measurement.measure_s - spared_s,
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
    """Return where a trial was that lasted so long instead of as a whole."""
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
