"""What is found out from a few batches: arithmetic, varying modules, the speed of the loader."""

import contextlib
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.plan import Plan
from autotune.trials.applying.loader import build_loader
from autotune.trials.feed import Feed
from autotune.trials.probing.lengths import with_length_facts
from autotune.trials.probing.loader import has_fixed_batches, read_batches
from autotune.trials.probing.products import UnevenProducts
from autotune.trials.probing.varying import (
    NUM_BATCHES,
    on_meta,
    uneven_batches,
    varies_with_shapes,
    varies_with_values,
)
from autotune.trials.workload import Workload


def with_batch_facts(
    facts: WorkloadFacts, workload: Workload, plan: Plan, seed: int, model: nn.Module
) -> WorkloadFacts:
    """Return the facts with those that a few batches show; `model` has no values afterwards."""
    varies = False
    feed = Feed(build_loader(workload, plan, seed))
    batch = feed.next()
    is_fixed = has_fixed_batches(workload, plan, seed, feed, batch)
    others = read_batches(feed, facts.batch_size, NUM_BATCHES - 1)
    batches = [batch, *others.batches]
    flops = _count_flops(workload, model, batch)
    with contextlib.suppress(Exception), torch.no_grad():  # a trial will show what raises
        if flops is None:
            varies = varies_with_values(workload, plan, seed)
        else:
            varies = varies_with_shapes(workload, model, batches)
    facts = replace(
        facts,
        fixed_batches=is_fixed,
        uneven_batches=uneven_batches(batches),
        varies=varies,
        flops_per_sample=flops.all / facts.batch_size if flops else None,
        conv_share=flops.share(flops.in_convolutions) if flops else 0.0,
        uneven_share=flops.share(flops.in_uneven_products) if flops else None,
        loader_samples_per_s=others.samples_per_s,
        loader_busy_share=others.busy_share,
        remarks=(*facts.remarks, *_remarks(facts.batch_size, is_fixed=is_fixed)),
    )
    return with_length_facts(facts, feed.loader, seed)


def _remarks(batch_size: int, *, is_fixed: bool) -> tuple[str, ...]:
    if not is_fixed:
        return ()
    counts = f"each counts as {batch_size} samples: set BATCH_SIZE to what it holds"
    return (f"the loader makes its own batches, so batch_size stays; {counts}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flops:
    """FLOPs of a training step: all, and those in kinds of operations."""

    all: float
    in_convolutions: float
    in_uneven_products: float

    def share(self, flops: float) -> float:
        """Return the part of all that some FLOPs are, 0 where there are none."""
        return min(1.0, flops / self.all) if self.all else 0.0


def _count_flops(workload: Workload, model: nn.Module, batch: Any) -> _Flops | None:
    """Return the FLOPs of one training step, counted on the meta device: it computes shapes only.

    Models whose code reads values cannot run there; their count is unknown, which is None.
    """
    try:
        # The outer mode sees the operators into which the inner one decomposes others.
        with UnevenProducts(model) as uneven, FlopCounterMode(display=False) as counter:
            workload.compute_loss(model.to("meta"), on_meta(batch)).backward()
    except Exception:  # noqa: BLE001  whatever the user's code makes of tensors without values
        return None
    counts = counter.get_flop_counts().get("Global", {})
    return _Flops(
        all=float(counter.get_total_flops()),
        in_convolutions=float(sum(n for op, n in counts.items() if "convolution" in str(op))),
        in_uneven_products=uneven.flops,
    )
