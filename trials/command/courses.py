"""What trials do with a training, as generators that are resumed after each optimizer step."""

import math
import statistics
import time
from collections.abc import Generator, Iterator

import torch

from autotune.trials.applying.compiler import check_compiled
from autotune.trials.command.comparison import comparing
from autotune.trials.command.observation import observe
from autotune.trials.command.order import Order, Task
from autotune.trials.command.training import Course, Training
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
from autotune.trials.result import Outcome, Phase, TrialResult, Window

# Seconds for which the loader's queue, filled while the compiler ran, may be used up by steps.
_MAX_DRAIN_S = 4.0
# A loader bounds the step where it is waited for more than this share of the time.
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
        self._loss = training.loss_later()
        self.event = None
        if training.device.type == "cuda":
            self.event = torch.cuda.Event(enable_timing=True)
            self.event.record()
        self.moment = time.perf_counter()

    def until(self, end: "_Mark") -> Window:
        """Return the window from here to `end`, which the device must have reached."""
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

    def loss(self) -> float:
        """Return the loss of the latest backward pass before it, once the device has got there."""
        return float(self._loss)


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
        # Whether every step is interrupted, as where a teacher shares the model: then it is no
        # interruption.
        self._always = True

    def run(self) -> Iterator[None]:
        """Go through the phases, and report the result."""
        self._first_step()
        yield from self._warm_up()
        windows: list[Window] = []
        raced = yield from self._windows(windows)
        self._report(windows, raced=raced)

    def _first_step(self) -> None:
        training = self._training
        for root in training.roots[:1]:
            check_compiled(self._order.plan, root.module)
        mark = _Mark(training)
        training.synchronize()
        self._first_loss = self._checked(mark)
        self._enter(Phase.FIRST_STEP, Phase.WARM_UP)

    def _warm_up(self) -> Iterator[None]:
        training, times = self._training, list[float]()
        (mark,), waited_s = self._first_marks(), 0.0
        while not is_settled(times, sum(times), self._protocol):
            yield
            training.synchronize()
            self._always = self._always and training.interrupted
            (now,) = self._first_marks()
            window, mark = mark.until(now), now
            times.append(window.seconds)
            waited_s = window.data_wait_s
        self._step_s = statistics.median(times[-SETTLED_STEPS:])
        yield from self._drain()
        self._burst = self._steps_of_burst(waited_s)
        self._memory.restart()
        self._enter(Phase.WARM_UP, Phase.MEASURE)

    def _drain(self) -> Iterator[None]:
        """Use up the batches that the loader's workers have ready, as far as time allows."""
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
        return max(1, round(training.backwards / max(1, training.steps)))

    def _windows(self, windows: list[Window]) -> Generator[None, None, bool]:
        """Measure until it is enough; return whether it stopped early.

        Each window is read when the next one ends: by then the device has surely got there.
        """
        training, protocol = self._training, self._protocol
        steps = whole_bursts(protocol.window_s / self._step_s, self._burst)
        marks = self._first_marks()
        while True:
            for _ in range(steps):
                yield
                if training.interrupted and not self._always:
                    marks = self._first_marks()
                    break
            else:
                marks.append(_Mark(training))
                if len(marks) == 2 and training.device.type == "cuda":
                    continue
                begin, end = marks[-3:-1] if training.device.type == "cuda" else marks[-2:]
                window = begin.until(end)
                windows.append(window)
                self._last_loss = self._checked(end)
                if is_hopeless(windows, self._order.interesting_above):
                    return True
                if is_enough(windows, protocol):
                    return False
                if window.seconds < protocol.window_s:
                    longer = steps * 1.1 * protocol.window_s / window.seconds
                    steps = whole_bursts(longer, self._burst)

    def _first_marks(self) -> list[_Mark]:
        """Return the mark that windows begin at; what was interrupted is left out."""
        self._training.interrupted = False
        return [_Mark(self._training)]

    def _checked(self, mark: _Mark) -> float:
        return math.nan if self._training.last_loss is None else check_finite(mark.loss())

    def _enter(self, ended: Phase, begun: Phase) -> None:
        now = time.perf_counter()
        self._phases_s[ended] = now - self._since
        self._since = now
        self._training.wire.send(begun)

    def _report(self, windows: list[Window], *, raced: bool) -> None:
        training = self._training
        self._phases_s[Phase.MEASURE] = time.perf_counter() - self._since
        measurement = summary(
            windows,
            self._protocol,
            self._phases_s,
            self._memory.read(),
            first_loss=self._first_loss,
            last_loss=self._last_loss,
            raced=raced,
        )
        result = TrialResult(outcome=Outcome.OK, measurement=measurement, phase=Phase.MEASURE)
        training.wire.send(result)
        training.rest()


def _measuring(training: Training, order: Order) -> Iterator[None]:
    yield from _Measuring(training, order).run()
