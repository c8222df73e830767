"""What trials do with a training, as generators that are resumed after each optimizer step."""

import math
import statistics
import time
from collections.abc import Generator, Iterator

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


class _Stretch:
    """The steps since the latest mark: their number, samples, waiting and seconds."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self.mark()

    def mark(self) -> None:
        training = self._training
        training.interrupted = False
        self._steps, self._samples = training.steps, training.samples
        self._waited_s, self._begin = training.data_wait_s, time.perf_counter()

    def window(self) -> Window:
        """Return what came since the mark, which is set anew."""
        training, begin = self._training, self._begin
        steps, samples, waited_s = self._steps, self._samples, self._waited_s
        self.mark()
        return Window(
            steps=training.steps - steps,
            samples=(training.samples - samples) * training.world_size,
            seconds=self._begin - begin,
            data_wait_s=training.data_wait_s - waited_s,
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
        self._stretch = _Stretch(training)
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
        training.synchronize()
        for root in training.roots[:1]:
            check_compiled(self._order.plan, root.module)
        self._first_loss = check_finite(training.loss()) if training.last_loss is not None else 0.0
        self._enter(Phase.FIRST_STEP, Phase.WARM_UP)

    def _warm_up(self) -> Iterator[None]:
        training, times = self._training, list[float]()
        self._stretch.mark()
        waited_s = 0.0
        while not is_settled(times, sum(times), self._protocol):
            yield
            training.synchronize()
            self._always = self._always and training.interrupted
            window = self._stretch.window()
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
        self._training.synchronize()
        self._stretch.mark()

    def _steps_of_burst(self, waited_s: float) -> int:
        workers = int(getattr(self._training.loader, "num_workers", 0) or 0)
        is_bound = waited_s > _WAITS * self._step_s
        return steps_of_burst(workers, self._accumulation) if is_bound else 1

    @property
    def _accumulation(self) -> int:
        training = self._training
        return max(1, round(training.backwards / max(1, training.steps)))

    def _windows(self, windows: list[Window]) -> Generator[None, None, bool]:
        """Measure until it is enough; return whether it stopped early."""
        training, protocol = self._training, self._protocol
        steps = whole_bursts(protocol.window_s / self._step_s, self._burst)
        while True:
            for _ in range(steps):
                yield
                if training.interrupted and not self._always:
                    training.synchronize()
                    self._stretch.mark()
                    break
            else:
                training.synchronize()
                window = self._stretch.window()
                windows.append(window)
                check_finite(training.loss()) if training.last_loss is not None else None
                if is_hopeless(windows, self._order.interesting_above):
                    return True
                if is_enough(windows, protocol):
                    return False
                if window.seconds < protocol.window_s:
                    longer = steps * 1.1 * protocol.window_s / window.seconds
                    steps = whole_bursts(longer, self._burst)

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
            last_loss=training.loss(),
            raced=raced,
        )
        result = TrialResult(outcome=Outcome.OK, measurement=measurement, phase=Phase.MEASURE)
        training.wire.send(result)
        training.rest()


def _measuring(training: Training, order: Order) -> Iterator[None]:
    yield from _Measuring(training, order).run()
