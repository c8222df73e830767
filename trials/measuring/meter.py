"""The measurement protocol: first step, warm-up, drain, windows.

Wall clock, end to end: waiting for data is part of a step. Nothing is synchronised inside a
window; its end is the next one's start, so a pause cannot let the loader's queue fill again.

With several ranks the seconds of a window are those of the slowest rank. All ranks gather the same
numbers, so they decide alike whether to go on.
"""

import math
import resource
import statistics
import time
from typing import Any

import torch
from torch import Tensor

from autotune.trials.applying.compiler import check_compiled
from autotune.trials.applying.step import Step
from autotune.trials.failure import DivergedError
from autotune.trials.feed import Feed
from autotune.trials.interval import is_below, relative_half_width
from autotune.trials.measuring.communication import traced_share
from autotune.trials.process_group import ALONE, Ranks
from autotune.trials.request import Protocol
from autotune.trials.result import Measurement, Phase, Window
from autotune.trials.workload import Workload, check_loss

# Step times have settled when the last few differ by no more than this share of their median.
_SETTLED_SPREAD, _SETTLED_STEPS = 0.1, 3
_TRACED_STEPS = 2  # for the communication that is exposed
_PHASES = (Phase.BUILD, Phase.FIRST_STEP, Phase.WARM_UP, Phase.MEASURE)


class Meter:
    """Runs one step through the phases of the protocol: call them in order, each once.

    Attributes:
        feed: the batches it trains on.
    """

    def __init__(
        self, step: Step, workload: Workload, protocol: Protocol, ranks: Ranks = ALONE
    ) -> None:
        self._step = step
        self._workload = workload
        self._protocol = protocol
        self._ranks = ranks
        self.feed = Feed(step.loader)
        self._first_loss = math.nan
        self._last_loss = math.nan
        self._step_s, self._burst_steps = math.nan, 1.0
        self._early_peak_bytes = 0
        self._early_retries = 0

    def first_step(self) -> None:
        """Run one optimizer step, in which the compiler runs, and check the loss.

        Raises:
            WorkloadError: for a loss that cannot be trained on.
            DivergedError: for one that is not finite.
            InvalidPlanError: when the plan compiles and nothing was compiled.
        """
        step = self._step
        batch = step.move(self.feed.next())
        loss = check_loss(step.loss(batch), self._workload.path)
        step.backward(loss)
        self._first_loss = self._checked_mean(loss)
        for _ in range(step.accumulation - 1):
            step.backward(step.loss(step.move(self.feed.next())))
        step.update()
        self._synchronize()
        check_compiled(step.plan, step.model)

    def warm_up(self) -> None:
        """Step until the step time settles, then empty the loader's queue."""
        times: list[float] = []
        computing: list[float] = []
        start = time.perf_counter()
        while not self._is_settled(times, *self._ranks.worst(time.perf_counter() - start)):
            begin, waited_s = time.perf_counter(), self.feed.wait_s
            self._run(1)
            took_s = time.perf_counter() - begin
            computing.append(took_s - (self.feed.wait_s - waited_s))
            times += self._ranks.worst(took_s)
        step_s = statistics.median(times[-_SETTLED_STEPS:])
        loading_s = (self.feed.drain() or 0.0) * self._step.accumulation
        burst = self._burst() if loading_s > statistics.median(computing) else 1
        self._step_s, self._burst_steps = self._ranks.worst(max(step_s, loading_s), burst)
        self._run(1)
        self._reset_memory_peaks()

    def windows(self, interesting_above: float | None) -> tuple[list[Window], bool]:
        """Measure until the interval is narrow, time is up, or the plan is not interesting.

        Args:
            interesting_above: the throughput below which to stop early; None: never.

        Returns:
            The windows, and whether it stopped early.
        """
        protocol = self._protocol
        steps = self._whole_bursts(protocol.window_s / self._step_s)
        windows: list[Window] = []
        begin = time.perf_counter()
        while True:
            begin, window = self._window(begin, steps)
            windows.append(window)
            if self._is_hopeless(windows, interesting_above):
                return windows, True
            if self._is_enough(windows):
                return windows, False
            # Steps are shorter than expected; short windows would measure the clock's errors.
            if window.seconds < protocol.window_s:
                steps = self._whole_bursts(steps * 1.1 * protocol.window_s / window.seconds)

    def _burst(self) -> int:
        """Return the steps for which all workers together load once.

        Workers that wait for storage all finish at once: batches come in bursts of one per worker.
        """
        workers = int(getattr(self.feed.loader, "num_workers", 0) or 1)
        return workers // math.gcd(workers, self._step.accumulation)

    def _whole_bursts(self, steps: float) -> int:
        """Return the number of steps, rounded up so that a window holds whole bursts."""
        burst = int(self._burst_steps)
        return burst * max(1, math.ceil(steps / burst))

    def exposed_communication(self) -> float | None:
        """Trace two more steps after the windows; return the worst rank's share.

        None on one rank, on the CPU, and for an empty trace.
        """
        alone = self._ranks.control is None
        if alone or self._step.device.type != "cuda":
            return None
        share = traced_share(lambda: self._run(_TRACED_STEPS))
        # All ranks must gather, also one whose trace came out empty.
        (worst,) = self._ranks.worst(math.nan if share is None else share)
        return None if math.isnan(worst) else worst

    def summary(
        self,
        windows: list[Window],
        phases_s: dict[Phase, float],
        *,
        raced: bool,
        exposed_comm_share: float | None = None,
    ) -> Measurement:
        """Return the measurement of all ranks; `phases_s` holds the seconds of each phase."""
        seconds = sum(w.seconds for w in windows)
        throughput = sum(w.samples for w in windows) / seconds
        half = relative_half_width([w.throughput for w in windows])
        step_ms = [1e3 * w.seconds / w.steps for w in windows]
        return Measurement(
            throughput=throughput,
            # Symmetric in the logarithm: a wide interval stays above zero.
            throughput_low=throughput / (1 + half),
            throughput_high=throughput * (1 + half),
            step_ms=statistics.median(step_ms),
            step_ms_spread=statistics.stdev(step_ms) / statistics.fmean(step_ms),
            data_wait_share=sum(w.data_wait_s for w in windows) / seconds,
            first_loss=self._first_loss,
            last_loss=self._last_loss,
            settled=half <= self._protocol.target_interval,
            raced=raced,
            exposed_comm_share=exposed_comm_share,
            windows=tuple(windows),
            **self._worst_phases(phases_s),
            **self._worst_memory(),
        )

    def _window(self, begin: float, steps: int) -> tuple[float, Window]:
        waited = self.feed.wait_s
        self._run(steps)
        end = time.perf_counter()
        seconds, data_wait_s = self._ranks.worst(end - begin, self.feed.wait_s - waited)
        batch_size = int(self._step.plan["batch_size"])
        window = Window(
            steps=steps,
            samples=steps * self._step.accumulation * batch_size * self._ranks.place.world_size,
            seconds=seconds,
            data_wait_s=data_wait_s,
        )
        return end, window

    def _run(self, steps: int) -> None:
        """Run optimizer steps without synchronising between them, once at their end."""
        step, feed = self._step, self.feed
        for _ in range(steps * step.accumulation):
            loss = step(feed.next())
        self._last_loss = self._checked_mean(loss)
        self._synchronize()

    def _checked_mean(self, loss: Tensor) -> float:
        """Return the mean loss over ranks, which is finite exactly when every rank's is."""
        return check_finite(*self._ranks.mean(loss.detach().item()))

    def _is_settled(self, times: list[float], elapsed_s: float) -> bool:
        if len(times) < self._step.steps_until_ready or not self._step.is_ready:
            return False
        if elapsed_s > self._protocol.max_warm_up_s:
            return True  # the minimum of steps would take too long
        if len(times) < max(_SETTLED_STEPS, self._protocol.min_warm_up_steps):
            return False
        last = times[-_SETTLED_STEPS:]
        return max(last) - min(last) <= _SETTLED_SPREAD * statistics.median(last)

    def _is_enough(self, windows: list[Window]) -> bool:
        if len(windows) < self._protocol.min_windows:
            # Two windows are enough for an interval where steps are very long.
            return len(windows) >= 2 and self._is_out_of_time(windows)
        half = relative_half_width([w.throughput for w in windows])
        return half <= self._protocol.target_interval or self._is_out_of_time(windows)

    def _is_out_of_time(self, windows: list[Window]) -> bool:
        return sum(w.seconds for w in windows) >= self._protocol.max_measure_s

    def _is_hopeless(self, windows: list[Window], interesting_above: float | None) -> bool:
        if interesting_above is None:
            return False
        return is_below([w.throughput for w in windows], interesting_above)

    def _synchronize(self) -> None:
        if self._step.device.type == "cuda":
            torch.cuda.synchronize(self._step.device)

    def _reset_memory_peaks(self) -> None:
        """Note the peaks of compilation and warm-up, and measure new ones from here on."""
        if self._step.device.type == "cuda":
            self._early_peak_bytes = torch.cuda.max_memory_reserved()
            self._early_retries = _alloc_retries()
            torch.cuda.reset_peak_memory_stats()

    def _worst_phases(self, phases_s: dict[Phase, float]) -> dict[str, Any]:
        worst = self._ranks.worst(*(phases_s[phase] for phase in _PHASES))
        return {f"{phase.value}_s": s for phase, s in zip(_PHASES, worst, strict=True)}

    def _worst_memory(self) -> dict[str, int]:
        own = self._memory()
        worst = self._ranks.worst(*own.values())
        return {name: int(value) for name, value in zip(own, worst, strict=True)}

    def _memory(self) -> dict[str, int]:
        host = {"peak_host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
        if self._step.device.type != "cuda":
            return host
        reserved = torch.cuda.max_memory_reserved()
        return host | {
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
            "peak_reserved_bytes": reserved,
            "peak_reserved_overall_bytes": max(reserved, self._early_peak_bytes),
            "alloc_retries": _alloc_retries() - self._early_retries,
        }


def _alloc_retries() -> int:
    return int(torch.cuda.memory_stats()["num_alloc_retries"])


def check_finite(loss: float) -> float:
    """Return the loss.

    Raises:
        DivergedError: when it is NaN or infinite.
    """
    if not math.isfinite(loss):
        raise DivergedError(
            f"the loss is {loss}: the training diverged; lower the learning rate, or look for "
            "overflow in this precision"
        )
    return loss
