"""The numerics check: a plan's losses beside eager fp32, same batches, same start."""

import contextlib
import copy
import gc
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from autotune.errors import WorkloadError
from autotune.search_space.knobs import BY_NAME, Numerics, is_compiled
from autotune.search_space.plan import Plan
from autotune.trials.applying.apply import build_step
from autotune.trials.applying.loader import build_loader
from autotune.trials.feed import Feed
from autotune.trials.measuring.meter import check_finite
from autotune.trials.process_group import ALONE, Ranks
from autotune.trials.request import COMPARED_STEPS
from autotune.trials.result import NumericsReport
from autotune.trials.seeding import seed_all
from autotune.trials.workload import Workload, load_again

# Largest difference of a loss over the mean reference loss, by the widest class that differs.
# bf16 has 8 bits of mantissa (0.4 % per operation); reordered fp32 sums stay far below 1 %.
TOLERANCE = {
    Numerics.EXACT: 1e-3,
    Numerics.ROUNDING: 1e-2,
    Numerics.PRECISION: 5e-2,
    Numerics.TRAINING: 5e-2,
}


def compare(
    workload: Workload,
    plan: Plan,
    reference: Plan,
    device: torch.device,
    seed: int,
    ranks: Ranks = ALONE,
) -> NumericsReport:
    """Train both from the same seed on the same batches, and compare the losses step by step.

    Both plans must use the same batch size and accumulation. Losses are the mean over ranks.
    """
    batches = _batches(workload, plan, seed, ranks)

    def losses(one: Plan, of: Workload) -> list[float]:
        return _losses(of, one, batches, device, seed, ranks)

    expected = losses(reference, workload)
    report = _report(expected, losses(plan, workload), plan, reference)
    with contextlib.ExitStack() as settings:
        if not report.passed and is_compiled(plan):
            # Compiled dropout draws other random numbers than eager dropout. Make it draw the
            # same, which compiles anew, only where the losses differ.
            settings.enter_context(_eager_random_numbers())
            report = _report(expected, losses(plan, workload), plan, reference)
        if not report.passed:
            # A model that the workload's file keeps was trained for the reference already.
            with contextlib.suppress(WorkloadError):  # a file that cannot be loaded twice
                expected = losses(reference, load_again(workload))
                report = _report(expected, losses(plan, load_again(workload)), plan, reference)
    return report


def _report(
    expected: Sequence[float], got: Sequence[float], plan: Plan, reference: Plan
) -> NumericsReport:
    scale = statistics.fmean(abs(loss) for loss in expected) or 1.0
    return NumericsReport(
        reference_losses=tuple(expected),
        plan_losses=tuple(got),
        tolerance=TOLERANCE[widest_class(plan, reference)],
        worst=max(abs(a - b) / scale for a, b in zip(expected, got, strict=True)),
    )


@contextlib.contextmanager
def _eager_random_numbers() -> Iterator[None]:
    from torch._inductor import config  # noqa: PLC0415  seconds that only this case needs

    torch.compiler.reset()
    with config.patch(fallback_random=True):
        yield


def widest_class(plan: Plan, reference: Plan) -> Numerics:
    """Return the widest numerics class among the knobs that differ."""
    changed = [BY_NAME[name].numerics for name in plan.diff(reference) if name in BY_NAME]
    return max(changed, key=lambda numerics: numerics.rank, default=Numerics.EXACT)


def _batches(workload: Workload, plan: Plan, seed: int, ranks: Ranks) -> list[Any]:
    in_process = Plan.of({**plan.values, "workers": 0, "pin_memory": False})
    feed = Feed(build_loader(workload, in_process, seed, ranks))
    return [feed.next() for _ in range(COMPARED_STEPS * int(plan.get("accumulation", 1)))]


def _losses(
    workload: Workload,
    plan: Plan,
    batches: Sequence[Any],
    device: torch.device,
    seed: int,
    ranks: Ranks,
) -> list[float]:
    with build_step(workload, plan, device, seed, ranks) as step:
        seed_all(seed)
        losses = [step(_copied(batch)).item() for batch in batches]
    del step
    gc.collect()  # wrapped models hold themselves in cycles, and the next one needs their memory
    if device.type == "cuda":
        torch.cuda.empty_cache()  # how much is free decides where the next one is built
    return [check_finite(loss) for loss in ranks.mean(*losses)]


def _copied(batch: Any) -> Any:
    """Return a copy: on a CPU the workload gets the batch itself, and may change it."""
    try:
        return copy.deepcopy(batch)
    except Exception:  # noqa: BLE001  what cannot be copied is hardly what is changed
        return batch
