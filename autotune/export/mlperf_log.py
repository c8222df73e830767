"""Writes what was measured of a plan in the format of MLPerf's training logs.

Such a log says when initialisation and training began and ended. Here they are the phases of one
trial, counted back from the moment at which its result arrived.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import UsageError
from autotune.search_space.plan import Plan
from autotune.trials.result import Measurement

_INSTALL = "pip install 'torch-autotune[mlperf]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPlan:
    """A plan and what one trial of it measured.

    Attributes:
        name: of the workload, in the log the name of the benchmark.
        device: the name of the devices.
        num_ranks: that trained together.
        seed: of parameters and data order.
    """

    name: str
    device: str
    plan: Plan
    num_ranks: int
    seed: int
    measurement: Measurement


class MlperfLog:
    """A log of MLPerf's format.

    Args:
        path: the file, which what is written is added to.

    Raises:
        UsageError: where MLPerf's library is not installed, or the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            from mlperf_logging.mllog import mllog  # noqa: PLC0415  an optional dependency
        except ImportError:
            raise UsageError(
                f"--mlperf-log {path} needs MLPerf's logging library; install it: {_INSTALL}"
            ) from None
        try:
            path.open("a").close()
        except OSError as error:
            raise UsageError(f"--mlperf-log {path} cannot be written: {error.strerror}") from None
        self._path, self._mllog = path, mllog

    def write(self, measured: MeasuredPlan) -> None:
        """Write the phases of a trial that has just ended, with the throughput of each window."""
        measurement, now_s = measured.measurement, time.time()
        run_s = sum(window.seconds for window in measurement.windows)
        init_s = measurement.build_s + measurement.first_step_s + measurement.warm_up_s
        began_s = now_s - run_s
        with self._logger() as log:
            keys, at = self._mllog.constants, int(1e3 * (began_s - init_s))
            for key, value in _facts(keys, measured):
                log.event(key, value, time_ms=at)
            log.start(keys.INIT_START, time_ms=at)
            log.end(keys.INIT_STOP, time_ms=int(1e3 * began_s))
            log.start(keys.RUN_START, time_ms=int(1e3 * began_s))
            samples = 0
            for window in measurement.windows:
                began_s, samples = began_s + window.seconds, samples + window.samples
                log.event(
                    "tracked_stats",
                    {"throughput": window.throughput},
                    metadata={keys.SAMPLES_COUNT: samples},
                    time_ms=int(1e3 * began_s),
                )
            ended = {"status": keys.SUCCESS, keys.SAMPLES_COUNT: samples}
            log.end(keys.RUN_STOP, metadata=ended, time_ms=int(1e3 * began_s))

    @contextmanager
    def _logger(self) -> Iterator[Any]:
        """Yield the library's logger with the file as its only output."""
        logger = logging.getLogger("autotune.mlperf")
        logger.setLevel(logging.INFO)
        logger.propagate = False
        handler = logging.FileHandler(self._path)
        logger.addHandler(handler)
        try:
            yield self._mllog.MLLogger(logger)
        finally:
            logger.removeHandler(handler)
            handler.close()


def _facts(keys: Any, measured: MeasuredPlan) -> Iterator[tuple[str, Any]]:
    batch, accumulation = measured.plan["batch_size"], measured.plan.get("accumulation", 1)
    yield keys.SUBMISSION_BENCHMARK, measured.name
    yield keys.SUBMISSION_PLATFORM, f"{measured.num_ranks}x {measured.device}"
    yield keys.SEED, measured.seed
    yield keys.GLOBAL_BATCH_SIZE, int(batch) * int(accumulation) * measured.num_ranks
    yield keys.GRADIENT_ACCUMULATION_STEPS, int(accumulation)
    yield "plan", measured.plan.values
