"""The measurement protocol: first step, warm-up, drain, windows.

Wall clock, end to end: waiting for data is part of a step. Nothing is synchronised inside a
window; its end is the next one's start, so a pause cannot let the loader's queue fill again.

With several ranks the seconds of a window are those of the slowest rank. All ranks gather the same
numbers, so they decide alike whether to go on.
"""

import math
import statistics
import time

import torch
from torch import Tensor

from autotune.trials.applying.compiler import check_compiled, recompile_limit_hits
from autotune.trials.applying.step import Step
from autotune.trials.feed import Feed
from autotune.trials.measuring.communication import traced_share
from autotune.trials.measuring.longest import longest_batch
from autotune.trials.measuring.steady import (
    SETTLED_STEPS,
    TIMED_PHASES,
    MemoryPeaks,
    check_finite,
    is_enough,
    is_hopeless,
    is_settled,
    steps_of_burst,
    summary,
    whole_bursts,
)
from autotune.trials.process_group import ALONE, Ranks
from autotune.trials.request import Protocol
from autotune.trials.result import Measurement, Phase, Window
from autotune.trials.workload import Workload, check_loss

_TRACED_STEPS = 2  # for the communication that is exposed


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
        self._memory = MemoryPeaks(step.device)
        self._longest_of: int | None = None

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

    def longest_step(self) -> None:
        """Run one optimizer step on the longest batch, after the first step.

        Its memory is in the peaks then, so a plan that cannot hold it fails here, and not after
        hours of training. Where batches have another shape each, the compiler sees a second one.

        Raises:
            DivergedError: for a loss that is not finite.
        """
        step = self._step
        longest = longest_batch(self.feed, int(step.plan["batch_size"]))
        (fewest,) = self._ranks.worst(-longest.num_samples)
        self._longest_of = int(-fewest)
        for _ in range(step.accumulation):
            loss = step.loss(step.move(longest.batch))
            step.backward(loss)
        step.update()
        self._checked_mean(loss)
        self._synchronize()

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
        step_s = statistics.median(times[-SETTLED_STEPS:])
        loading_s = (self.feed.drain() or 0.0) * self._step.accumulation
        burst = self._burst() if loading_s > statistics.median(computing) else 1
        self._step_s, self._burst_steps = self._ranks.worst(max(step_s, loading_s), burst)
        self._run(1)
        self._memory.restart()

    def windows(self, interesting_above: float | None) -> tuple[list[Window], bool]:
        """Measure until the interval is narrow, time is up, or the plan is not interesting.

        Args:
            interesting_above: the throughput below which to stop early; None: never.

        Returns:
            The windows, and whether it stopped early.
        """
        protocol, burst = self._protocol, int(self._burst_steps)
        steps = whole_bursts(protocol.window_s / self._step_s, burst)
        windows: list[Window] = []
        begin = time.perf_counter()
        while True:
            begin, window = self._window(begin, steps)
            windows.append(window)
            if is_hopeless(windows, interesting_above):
                return windows, True
            if is_enough(windows, protocol):
                return windows, False
            # Steps are shorter than expected; short windows would measure the clock's errors.
            if window.seconds < protocol.window_s:
                steps = whole_bursts(steps * 1.1 * protocol.window_s / window.seconds, burst)

    def _burst(self) -> int:
        return steps_of_burst(
            int(getattr(self.feed.loader, "num_workers", 0) or 0), self._step.accumulation
        )

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
        return summary(
            windows,
            self._protocol,
            self._worst_phases(phases_s),
            self._worst_memory(),
            first_loss=self._first_loss,
            last_loss=self._last_loss,
            longest_batch_of=self._longest_of,
            recompile_limit_hits=recompile_limit_hits(self._step.plan),
            raced=raced,
            exposed_comm_share=exposed_comm_share,
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
        return is_settled(times, elapsed_s, self._protocol)

    def _synchronize(self) -> None:
        if self._step.device.type == "cuda":
            torch.cuda.synchronize(self._step.device)

    def _worst_phases(self, phases_s: dict[Phase, float]) -> dict[Phase, float]:
        worst = self._ranks.worst(*(phases_s[phase] for phase in TIMED_PHASES))
        return dict(zip(TIMED_PHASES, worst, strict=True))

    def _worst_memory(self) -> dict[str, int]:
        own = self._memory.read()
        worst = self._ranks.worst(*own.values())
        return {name: int(value) for name, value in zip(own, worst, strict=True)}
