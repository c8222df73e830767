"""The settings of a search: limits, thresholds and the measurement protocol."""

from dataclasses import dataclass

from autotune.agent.objectives.objective import Objective, ObjectiveName
from autotune.agent.objectives.throughput import FASTEST
from autotune.search_space.hardware import Hardware
from autotune.trials.request import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """Limits and thresholds of a search; `autotune run` uses the defaults.

    Attributes:
        budget_s: wall clock of the whole run, confirmation included.
        objective: gives plans the value to maximise.
        max_trials: largest number of search trials, baseline included; None for no limit.
        seed: of the sampler and of every trial.
        max_memory_bytes: `--max-memory`, bytes of one device; None for all that it has.
        memory_headroom: part of the memory that a winner leaves free.
        teardown_s: seconds at the end of the budget reserved for shutting down.
        scout_share: largest part of the search, in time after the baseline and in trials, that may
            go into one-device trials before those on several devices.
        adopted: number of best one-device plans that are tried on several devices.
        confirm_share: largest part of the budget kept for confirming and checking.
        quality_share: part of the budget kept for training to a target, where there is one.
        gain: relative gain below which two values count as equal.
        chance: least probability of such a gain for a change of the best plans to be tried.
        slight_chance: least probability of such a gain for a sampled plan to be tried.
        patience: least number of sampled plans without such a gain that ends the search.
        racing: part of the best value below which a search trial may stop early; slower plans
            are never finalists. It is lowered where processes of one plan differ much.
        overrun: multiple of its expected duration after which a search trial is given up.
        max_rounds: largest number of rounds of the confirmation.
        disturbances: what else used the machine as the run began, in sentences for the user.
    """

    budget_s: float
    objective: Objective = FASTEST
    max_trials: int | None = None
    seed: int = 0
    max_memory_bytes: int | None = None
    memory_headroom: float = 0.05
    teardown_s: float = 3.0
    scout_share: float = 0.4
    adopted: int = 1
    confirm_share: float = 0.2
    quality_share: float = 0.3
    gain: float = 0.01
    chance: float = 0.1
    slight_chance: float = 0.02
    patience: int = 8
    racing: float = 0.95
    overrun: float = 2.5
    max_rounds: int = 5
    disturbances: tuple[str, ...] = ()

    @property
    def protocol(self) -> Protocol:
        """The measurement protocol; short budgets cap the windows, never their number."""
        return Protocol(
            max_measure_s=min(10.0, max(1.5, self.budget_s / 40)),
            max_warm_up_s=min(10.0, max(2.0, self.budget_s / 30)),
        )

    @property
    def quality_s(self) -> float:
        """Seconds of the budget that are kept for training to a target; 0 without one."""
        is_kept = self.objective.name is ObjectiveName.TIME_TO_QUALITY
        return self.quality_share * self.budget_s if is_kept else 0.0

    def memory_cap_bytes(self, hardware: Hardware) -> float:
        """Return the most memory that a winner may need, headroom taken off."""
        limit = hardware.device_memory_bytes
        if self.max_memory_bytes is not None:
            limit = min(limit, self.max_memory_bytes)
        return limit * (1 - self.memory_headroom)
