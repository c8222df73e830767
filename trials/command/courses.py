"""What trials do with a training, as generators that are resumed after each optimizer step."""

import math
import statistics
import time
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from autotune.trials.applying.compiler import check_compiled, recompile_limit_hits
from autotune.trials.applying.kernels import save_kernels
from autotune.trials.command.comparison import comparing
from autotune.trials.command.diagnosing import diagnosing
from autotune.trials.command.observation import observe
from autotune.trials.command.order import Order, Task
from autotune.trials.command.training import Course, Training
from autotune.trials.failure import InvalidPlanError
from autotune.trials.measuring.steady import (
    SETTLED_STEPS,
    MemoryPeaks,
    check_finite,
    is_enough,
    is_hopeless,
    is_settled,
    steps_of_burst,
    summary,
    whole_bursts,
)
from autotune.trials.profiling.measured import Measured
from autotune.trials.result import Kept, Measurement, Outcome, Phase, TrialResult, Window

# Longest time for which steps use up the loader's queue, filled while the compiler ran: a queue of
# 16 workers and a step of 100 ms take less.
_MAX_DRAIN_S = 4.0
# A script that does much beside training is measured so many times as long as the protocol has it,
# so that half of its time may be spent elsewhere.
_PATIENCE = 3.0
# Share of a step's time that it waits for the loader from which batches come in bursts of all
# workers; waits of one step vary by less on a quiet machine.
_WAITS = 0.3


def course_of(order: Order) -> Course | None:
    """Return what to do with the training, None to do nothing beside applying the plan."""
    if order.task is Task.MEASURE:
        return lambda training: _measuring(training, order)
    if order.task is Task.COMPARE:
        return lambda training: comparing(training, order)
    if order.task is Task.OBSERVE:
        return lambda training: observe(training, order)
    return None


class _Mark:
    """A moment between two steps: what was counted until then, and when the device got there.

    On a GPU the moment is an event in its queue, so that nothing waits for it: a script whose loop
    prepares the next step while the device works goes on doing so.
    """

    def __init__(self, training: Training) -> None:
        self.steps, self.samples = training.steps, training.samples
        self.waited_s, self.num_ranks = training.data_wait_s, training.world_size
        self.event = None
        if training.device.type == "cuda":
            self.event = torch.cuda.Event(enable_timing=True)
            self.event.record()
        self.moment = time.perf_counter()

    def until(self, end: "_Mark") -> Window:
        """Return what lies between here and `end`, once the device has got there."""
        return Window(
            steps=end.steps - self.steps,
            samples=(end.samples - self.samples) * end.num_ranks,
            seconds=self._seconds_until(end),
            data_wait_s=end.waited_s - self.waited_s,
        )

    def _seconds_until(self, end: "_Mark") -> float:
        if self.event is None or end.event is None:
            return end.moment - self.moment
        end.event.synchronize()
        return float(self.event.elapsed_time(end.event)) / 1e3


class _Stretches:
    """Steps that together are a window, without those in which something else than training ran.

    Attributes:
        loss: of the last step, valid once the device has got there.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        training.interrupted = False
        self._begin = self._last = _Mark(training)
        self._closed: list[tuple[_Mark, _Mark]] = []
        self._left_out: list[tuple[_Mark, _Mark]] = []
        self.num_steps = 0
        self.loss: Tensor | None = None

    def step_ended(self, *, is_clean: bool) -> None:
        """Take the step that has just ended in, or leave it out."""
        now = _Mark(self._training)
        if is_clean:
            self.num_steps += 1
        else:
            self._close()
            self._left_out.append((self._last, now))
            self._begin = now
        self._training.interrupted = False
        self._last = now

    def end(self) -> None:
        """End the window here."""
        self._close()
        self.loss = self._training.loss_later()

    def _close(self) -> None:
        if self._last is not self._begin:
            self._closed.append((self._begin, self._last))

    def left_out(self) -> tuple[int, float]:
        """Return the steps that were left out, and their seconds."""
        stretches = [begin.until(end) for begin, end in self._left_out]
        return len(stretches), sum(stretch.seconds for stretch in stretches)

    def window(self) -> Window:
        """Return the window; waits for the device to get to its end."""
        parts = [begin.until(end) for begin, end in self._closed]
        return Window(
            steps=sum(part.steps for part in parts),
            samples=sum(part.samples for part in parts),
            seconds=sum(part.seconds for part in parts),
            data_wait_s=sum(part.data_wait_s for part in parts),
        )


class _Measuring:
    """The measurement protocol, on steps that the script takes by itself."""

    def __init__(self, training: Training, order: Order) -> None:
        self._training, self._order = training, order
        self._protocol = order.protocol
        self._phases_s = {Phase.BUILD: training.first_forward_at - training.started_at}
        self._since = training.first_forward_at
        self._memory = MemoryPeaks(training.device)
        self._first_loss = math.nan
        self._last_loss = math.nan
        self._other_work_s = 0.0
        # In every step, as where a teacher shares the model: then that is part of the training.
        self._is_always_interrupted = True

    def run(self) -> Iterator[None]:
        """Go through the phases, and report the result."""
        self._first_step()
        yield from self._warm_up()
        windows: list[Window] = []
        self._training.at_end = partial(self._report_short, windows)
        raced = yield from self._windows(windows)
        self._training.at_end = None
        result, request = self._result(windows, raced=raced), self._order.diagnosis
        measured = result.measurement
        if request is not None and measured is not None and measured.throughput >= request.above:
            self._training.wire.send(Kept(result=result))
            self._training.wire.send(Phase.DIAGNOSE)
            diagnosis = yield from diagnosing(self._training, self._step_of(measured), request)
            result = replace(result, diagnosis=diagnosis)
        if self._order.kernels_path is not None:
            save_kernels(Path(self._order.kernels_path), self._training.device)
        self._training.wire.send(result)
        self._training.wait_to_be_killed()

    def _report_short(self, windows: list[Window]) -> None:
        """Report what was measured until the script ended, if it is enough for an interval."""
        if len(windows) > 1:
            self._training.wire.send(self._result(windows, raced=False))

    def _step_of(self, measurement: Measurement) -> Measured:
        training = self._training
        return Measured(
            device=training.device,
            plan=self._order.plan,
            model=training.roots[0].module,
            accumulation=self._accumulation,
            world_size=training.world_size,
            measurement=measurement,
        )

    def _first_step(self) -> None:
        training = self._training
        _check_batch(training, self._order)
        for root in training.roots[:1]:
            check_compiled(self._order.plan, root.module)
        loss = training.loss_later()
        training.synchronize()
        self._first_loss = self._checked(loss)
        self._enter(Phase.FIRST_STEP, Phase.WARM_UP)

    def _warm_up(self) -> Iterator[None]:
        training, times, waited_s = self._training, list[float](), 0.0
        begin = _Mark(training)
        while not is_settled(times, sum(times), self._protocol):
            training.interrupted = False
            yield
            training.synchronize()
            self._is_always_interrupted = self._is_always_interrupted and training.interrupted
            begin, end = _Mark(training), begin
            window = end.until(begin)
            times.append(window.seconds)
            waited_s = window.data_wait_s
        self._step_s = statistics.median(times[-SETTLED_STEPS:])
        yield from self._drain()
        self._burst = self._steps_of_burst(waited_s)
        self._memory.restart()
        self._enter(Phase.WARM_UP, Phase.MEASURE)

    def _drain(self) -> Iterator[None]:
        """Train on what the loader's workers have prefetched, until the time for that is up."""
        loader = self._training.loader
        workers = int(getattr(loader, "num_workers", 0) or 0)
        depth = workers * int(getattr(loader, "prefetch_factor", None) or 2)
        until = time.perf_counter() + _MAX_DRAIN_S
        for _ in range(math.ceil(depth / self._accumulation)):
            yield
            if time.perf_counter() > until:
                break

    def _steps_of_burst(self, waited_s: float) -> int:
        workers = int(getattr(self._training.loader, "num_workers", 0) or 0)
        is_bound = waited_s > _WAITS * self._step_s
        return steps_of_burst(workers, self._accumulation) if is_bound else 1

    @property
    def _accumulation(self) -> int:
        training = self._training
        passes = training.backwards if training.loader is None else training.batches
        return max(1, round(passes / max(1, training.steps)))

    def _windows(self, windows: list[Window]) -> Generator[None, None, bool]:
        """Measure until it is enough; return whether it stopped early.

        On a GPU each window is read when the next one ends: by then the device has got there.
        """
        training, protocol = self._training, self._protocol
        steps = whole_bursts(protocol.window_s / self._step_s, self._burst)
        waiting, began = deque[_Stretches](), time.perf_counter()
        while True:
            now = _Stretches(training)
            while now.num_steps < steps:
                yield
                now.step_ended(is_clean=self._is_always_interrupted or not training.interrupted)
            now.end()
            waiting.append(now)
            if len(waiting) == 1 and training.device.type == "cuda":
                continue
            ended = waiting.popleft()
            window = ended.window()
            windows.append(window)
            num_left_out, seconds = ended.left_out()
            self._other_work_s += max(0.0, seconds - num_left_out * self._step_s)
            self._last_loss = self._checked(ended.loss)
            if is_hopeless(windows, self._order.interesting_above):
                return True
            is_late = time.perf_counter() - began > _PATIENCE * protocol.max_measure_s
            if is_enough(windows, protocol) or (is_late and len(windows) > 1):
                return False
            if window.seconds < protocol.window_s:
                longer = steps * 1.1 * protocol.window_s / window.seconds
                steps = whole_bursts(longer, self._burst)

    def _checked(self, loss: Tensor | None) -> float:
        """Return a loss that the device has got to; NaN where no loss was seen.

        Raises:
            DivergedError: when it is not finite.
        """
        if loss is None or self._training.last_loss is None:
            return math.nan
        if any(root.own_autocast is torch.float16 for root in self._training.roots):
            return float(loss)  # a scaled one, which the script's scaler may let overflow
        return check_finite(float(loss))

    def _enter(self, ended: Phase, begun: Phase) -> None:
        now = time.perf_counter()
        self._phases_s[ended] = now - self._since
        self._since = now
        self._training.wire.send(begun)

    def _result(self, windows: list[Window], *, raced: bool) -> TrialResult:
        self._phases_s[Phase.MEASURE] = time.perf_counter() - self._since
        measurement = summary(
            windows,
            self._protocol,
            self._phases_s,
            self._memory.read(),
            first_loss=self._first_loss,
            last_loss=self._last_loss,
            recompile_limit_hits=recompile_limit_hits(self._order.plan),
            raced=raced,
            other_work_share=self._other_work_share(windows),
        )
        return TrialResult(outcome=Outcome.OK, measurement=measurement, phase=Phase.MEASURE)

    def _other_work_share(self, windows: list[Window]) -> float | None:
        """Return the part of the time beside training; what comes with each step is part of it."""
        if self._is_always_interrupted:
            return None
        training_s = sum(window.seconds for window in windows)
        return self._other_work_s / (self._other_work_s + training_s)


def _check_batch(training: Training, order: Order) -> None:
    """Raise an error where a plan was to set the batch, and the loader has another one.

    Raises:
        InvalidPlanError: naming the argument, and what to do.
    """
    flag, seen = order.command.flag_of("batch_size"), getattr(training.loader, "batch_size", None)
    asked = order.plan.values.get("batch_size")
    if None in (flag, asked, seen) or seen == asked:
        return
    raise InvalidPlanError(
        f"{flag} was set to {asked}, and the script's loader still gives batches of {seen}; name "
        f"the argument that sets them with --bind batch_size=--NAME, or --fix batch_size={seen}"
    )


def _measuring(training: Training, order: Order) -> Iterator[None]:
    # Built when this is first resumed: by then the roots are known.
    yield from _Measuring(training, order).run()
