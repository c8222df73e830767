"""Trains until the workload's `evaluate` reaches a target, and times only the training."""

import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from autotune.errors import WorkloadError
from autotune.trials.applying.step import Step
from autotune.trials.feed import Feed
from autotune.trials.measuring.steady import check_finite
from autotune.trials.quality import QualityCurve, QualityPoint, QualityRequest

Evaluate = Callable[[nn.Module], float]
"""A workload's `evaluate(model)`."""


def train_to_target(
    step: Step,
    feed: Feed,
    evaluate: Evaluate,
    request: QualityRequest,
    *,
    until: float,
    path: Path,
) -> QualityCurve:
    """Train and evaluate in turn until the target is reached or the time is up.

    Args:
        step: after its first optimizer step, in which the compiler ran.
        feed: the batches to train on.
        evaluate: the workload's.
        request: the target, and how often to evaluate.
        until: when to have ended, on `time.perf_counter()`.
        path: of the workload's file, for errors.

    Raises:
        WorkloadError: when `evaluate` returns no number.
        DivergedError: when a loss is not finite.
    """
    points: list[QualityPoint] = []
    train_s, longest_s = 0.0, 0.0
    num_untimed, num_timed, steps = 1 + _get_ready(step, feed), 0, 1
    most_s = math.inf if request.max_train_s is None else request.max_train_s
    batch = step.accumulation * int(step.plan["batch_size"])
    while True:
        begun = time.perf_counter()
        train_s, num_timed = train_s + _train(step, feed, steps), num_timed + steps
        steps = max(1, round(request.interval_s * num_timed / train_s))
        if train_s < (len(points) + 0.5) * request.interval_s:
            continue
        value, samples = _evaluated(step.model, evaluate, path), (num_untimed + num_timed) * batch
        points.append(QualityPoint(train_s=train_s, samples=samples, value=value))
        now = time.perf_counter()
        longest_s = max(longest_s, now - begun)
        is_over = now + longest_s > until or train_s >= most_s
        if value >= request.target or is_over:
            return QualityCurve(target=request.target, points=tuple(points))


def _get_ready(step: Step, feed: Feed) -> int:
    """Take the steps in which CUDA graphs are recorded, and return their number."""
    count = 0
    while count < step.steps_until_ready or not step.is_ready:
        _train(step, feed, 1)
        count += 1
    return count


def _train(step: Step, feed: Feed, steps: int) -> float:
    """Take optimizer steps, and return their seconds; the device is idle before and after."""
    begun = time.perf_counter()
    for _ in range(steps * step.accumulation):
        loss = step(feed.next())
    check_finite(loss.item())
    if step.device.type == "cuda":
        torch.cuda.synchronize(step.device)
    return time.perf_counter() - begun


def _evaluated(model: nn.Module, evaluate: Evaluate, path: Path) -> float:
    """Return what `evaluate` returns, run eagerly; the modules' modes are as before then.

    Compiled for evaluation once more, a model would take the time that its training needs.
    """
    modes = {module: module.training for module in model.modules()}
    with torch.compiler.set_stance("force_eager"), torch.no_grad():
        value = evaluate(model)
    for module, is_training in modes.items():
        module.training = is_training
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise WorkloadError(
            f"evaluate() in {path.name} returned {value!r}; return a number, the higher the better"
        )
    return number
