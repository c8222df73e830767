"""A search played on a recorded table: what it measures costs what the recording took."""

import dataclasses
import random

from drift import steady

from autotune.trials.interval import relative_half_width


class Over(Exception):  # noqa: N818  no error: the search may stop
    """Nothing is left to find."""


class Game:
    """One search on one table, until it has measured a plan near the best one.

    Each seed sees one of the processes that measured a plan, and a resample of its windows (with
    replacement), so that strategies without any chance in them are not judged by one draw of the
    noise. How near a plan is to the best is judged by the median of its processes, which is
    what somebody who trains by it may expect, in minutes that were alike (see `drift`).

    Args:
        table: recorded.
        memory_cap_bytes: plans that need more cannot be the best one.
        seed: of the resample; strategies take it for themselves, too.
        near: share of the best throughput at which the game is over.
    """

    def __init__(self, table, *, memory_cap_bytes, seed, near=0.98):
        self.table, self.space, self.seed = table, table.space, seed
        self.memory_cap_bytes = memory_cap_bytes
        rng = random.Random(seed)  # noqa: S311  not for secrets
        drawn = {plan: rng.choice(processes) for plan, processes in table.results.items()}
        self.results = {plan: resampled(result, rng) for plan, result in drawn.items()}
        self.truth = steady(table.rows, self.value)
        self.best = max(self.truth.values())
        self.near = near
        self.spent_s, self.progress = 0.0, []  # (seconds spent, share of the best) at each gain
        self.known = {}

    def value(self, result):
        """Throughput, 0 where it failed or left too little memory."""
        measured = result.measurement
        if measured is None or (measured.memory_bytes or 0) > self.memory_cap_bytes:
            return 0.0
        return measured.throughput

    def measure(self, plan):
        """Return what the plan gave; a repeated question is answered for nothing."""
        if plan not in self.known:
            self.known[plan] = self.results[plan]
            self.pay(plan, self.results[plan])
        return self.known[plan]

    def pay(self, plan, result):
        """Count the seconds of a trial; a plan that was raced out is no find.

        Raises:
            Over: when the plan is as near to the best as asked, or all plans are known.
        """
        self.spent_s += result.total_s
        raced = result.measurement is not None and result.measurement.raced
        share = 0.0 if raced else self.truth[plan] / self.best
        if not self.progress or share > self.progress[-1][1]:
            self.progress.append((self.spent_s, share))
        if share >= self.near:
            raise Over

    def seconds_to(self, share):
        """Device-seconds until a plan of this share of the best was measured, inf: never."""
        return next((s for s, found in self.progress if found >= share), float("inf"))


def resampled(result, rng):
    """Return the result as other windows of the same process might have given it."""
    measured = result.measurement
    if measured is None or len(measured.windows) < 2:
        return result
    windows = tuple(rng.choices(measured.windows, k=len(measured.windows)))
    throughput = sum(w.samples for w in windows) / sum(w.seconds for w in windows)
    half = relative_half_width([w.throughput for w in windows])
    fresh = dataclasses.replace(
        measured,
        windows=windows,
        throughput=throughput,
        throughput_low=throughput / (1 + half),
        throughput_high=throughput * (1 + half),
    )
    return dataclasses.replace(result, measurement=fresh)
