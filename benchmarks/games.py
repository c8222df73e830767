"""A search on a recorded table, in which a plan costs the seconds that its recording took."""

import dataclasses
import random

from drift import steady

from autotune.trials.interval import relative_half_width


class Over(Exception):  # noqa: N818  it is no error
    """The game is over, as a plan near enough to the best was measured."""


class Game:
    """One search on one table, until it has measured a plan near the best one.

    For each seed, the result of a plan is drawn from the processes that measured it, and its
    windows are resampled with replacement. So even a deterministic strategy is judged on many
    draws of the noise. How near a plan is to the best is judged by the median of its processes,
    without the machine's drift (see `drift`): the throughput that a user of the plan can expect.

    Args:
        table: the recorded table.
        memory_cap_bytes: the device memory above which a plan cannot be the best.
        seed: of the resampling, and of strategies that draw random numbers.
        near: the share of the best throughput at which the game is over.
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
        """Return the throughput of a result; 0 if it failed or needs too much memory."""
        measured = result.measurement
        if measured is None or (measured.memory_bytes or 0) > self.memory_cap_bytes:
            return 0.0
        return measured.throughput

    def measure(self, plan):
        """Return the result of a plan; only its first measurement costs time."""
        if plan not in self.known:
            self.known[plan] = self.results[plan]
            self.pay(plan, self.results[plan])
        return self.known[plan]

    def pay(self, plan, result):
        """Add the seconds of a trial, and record the plan if it is the best so far.

        A plan whose trial racing cut short does not count as found.

        Raises:
            Over: when the plan is near enough to the best.
        """
        self.spent_s += result.total_s
        raced = result.measurement is not None and result.measurement.raced
        share = 0.0 if raced else self.truth[plan] / self.best
        if not self.progress or share > self.progress[-1][1]:
            self.progress.append((self.spent_s, share))
        if share >= self.near:
            raise Over

    def seconds_to(self, share):
        """Return the device-seconds until a plan of this share of the best; inf: never."""
        return next((s for s, found in self.progress if found >= share), float("inf"))


def resampled(result, rng):
    """Return the result with its windows drawn again, with replacement."""
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
