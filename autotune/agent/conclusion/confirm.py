"""The end of a run: interleaved confirmation, the numerics check, what each knob is worth.

Like the search, each step is a function of the history and the time left, so a run that was
killed goes on in the middle of a round.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune.agent.conclusion.finalists import choose, confirmed, finalists
from autotune.agent.conclusion.numerics import next_check
from autotune.agent.forecast.durations import check_s, expected_s
from autotune.agent.history import History, conclusive
from autotune.agent.proposal import Proposal
from autotune.agent.settings import SearchSettings
from autotune.search_space.hardware import Hardware
from autotune.search_space.knobs.batch import FOLLOWS
from autotune.search_space.plan import Plan, spell
from autotune.trials.result import Purpose

_TO_FIND = 2.0  # times the baseline's trial
# Finalists and rounds, best first; the first that time can pay for is run.
SCHEDULES = ((3, 3), (2, 3), (2, 2), (1, 2), (1, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Decides what to run once the search is over."""

    settings: SearchSettings
    hardware: Hardware

    def reserve_s(self, history: History, left_s: float) -> float:
        """Return the seconds to keep for the end: the best schedule within its share.

        Where none fits, only what was found is worth keeping time for: a single round, or
        nothing where that is too dear as well, so that the search has all that is left. A search
        that was cut short once for what it had found does not get that time back.
        """
        if self.fits(history, left_s):
            costs = [self._schedule_s(history, *schedule) for schedule in SCHEDULES]
            share_s = self.settings.confirm_share * self.settings.budget_s
            if to_find_s := self._to_find_s(history):
                share_s = min(share_s, left_s - to_find_s)
            return next((cost for cost in costs if cost <= share_s), costs[-1])
        if not finalists(history):
            return 0.0
        if history.cut_short:
            return left_s
        round_s = self._cost_s(self._field(history, 1), history)
        return round_s if round_s <= left_s else 0.0

    def fits(self, history: History, left_s: float) -> bool:
        """Whether `left_s` pays for the smallest schedule, and first for finding a finalist."""
        return self._to_find_s(history) + self._schedule_s(history, *SCHEDULES[-1]) <= left_s

    def next(self, history: History, left_s: float) -> Proposal | None:
        """Return the next trial of the ending, None when there is nothing left to do or pay."""
        if not finalists(history):
            return None
        return (
            self._check_leader(history, left_s)
            or self._scheduled(history, left_s)
            or self._check_winner(history, left_s)
            or self._another_round(history, left_s)
            or self._ablation(history, left_s)
        )

    def _check_leader(self, history: History, left_s: float) -> Proposal | None:
        """Check the fastest before anything is spent on confirming it."""
        leader = finalists(history)[0]
        least_s = self._cost_s(missing(self._field(history, 1), 1, history), history)
        return self._check(leader, history, left_s - least_s)

    def _scheduled(self, history: History, left_s: float) -> Proposal | None:
        for num_finalists, rounds in SCHEDULES:
            enough = min(rounds, 2) if self._is_tight(history) else rounds
            open_plans = missing(self._field(history, num_finalists), enough, history)
            if self._cost_s(open_plans, history) <= left_s:
                return _confirm(open_plans[0], history) if open_plans else None
        return None

    def _check_winner(self, history: History, left_s: float) -> Proposal | None:
        winner = choose(history, self.settings.gain, checks_pass=True)
        return self._check(winner.plan, history, left_s) if winner else None

    def _another_round(self, history: History, left_s: float) -> Proposal | None:
        """Time left sharpens the interval, until it is tight."""
        plans = [entry.plan for entry in confirmed(history)]
        if not plans or history.baseline is None or self._is_tight(history):
            return None
        field = [history.baseline.plan, *(p for p in finalists(history) if p in plans)]
        for rounds in range(2, self.settings.max_rounds + 1):
            open_plans = missing(field, rounds, history)
            if open_plans:
                affordable = self._cost_s(open_plans, history) <= left_s
                return _confirm(open_plans[0], history) if affordable else None
        return None

    def _ablation(self, history: History, left_s: float) -> Proposal | None:
        winner = choose(history, self.settings.gain)
        if winner is None:
            return None
        for name, plan in flipped_back(winner.plan, history):
            if not _is_known(plan, history) and expected_s(plan, history, self.hardware) <= left_s:
                reason = f"what is {name}={spell(winner.plan[name])} worth to the winner?"
                return Proposal(plan=plan, purpose=Purpose.ABLATE, reason=reason)
        return None

    def _check(self, plan: Plan, history: History, left_s: float) -> Proposal | None:
        proposal = next_check(plan, history)
        cost_s = check_s(plan, history, self.hardware)
        return proposal if proposal and cost_s <= left_s else None

    def _is_tight(self, history: History) -> bool:
        repeated = confirmed(history, rounds=2)
        return bool(repeated) and repeated[0].speedup.half_width < self.settings.gain

    def _field(self, history: History, num_finalists: int) -> list[Plan]:
        baseline = history.reference
        return [baseline, *finalists(history)[:num_finalists]]

    def _to_find_s(self, history: History) -> float:
        """Return the seconds to keep for finding a first finalist, which may take longer steps."""
        own_plan, *found = self._field(history, 1)
        return 0.0 if found else _TO_FIND * expected_s(own_plan, history, self.hardware)

    def _schedule_s(self, history: History, num_finalists: int, rounds: int) -> float:
        field = self._field(history, num_finalists)
        # Before the search found any, finalists are taken to last as long as the baseline.
        field += field[-1:] * (1 + num_finalists - len(field))
        return rounds * self._cost_s(field, history) + check_s(field[1], history, self.hardware)

    def _cost_s(self, plans: Sequence[Plan], history: History) -> float:
        return sum(expected_s(plan, history, self.hardware) for plan in plans)


def missing(plans: Sequence[Plan], rounds: int, history: History) -> list[Plan]:
    """Return the trials that `rounds` interleaved rounds still lack, in the order to run them."""
    return [
        plan for number in range(rounds) for plan in plans if attempts(plan, history) <= number
    ]


def attempts(plan: Plan, history: History) -> int:
    """Return how often the plan was run again, as far as that counts."""
    return len(conclusive(t for t in history.of(Purpose.CONFIRM) if t.plan == plan))


def flipped_back(plan: Plan, history: History) -> Iterator[tuple[str, Plan]]:
    """Yield each knob that the plan changes, with the plan without that change.

    What changes the numbers most has to prove its worth first. Knobs of another setting, such as
    workers' prefetch, come last: the baseline has none, and they go back to their first value.
    """
    baseline, domains = history.reference, history.space.by_name

    def place(name: str) -> tuple[bool, int]:
        return name not in baseline, -domains[name].knob.numerics.rank

    for name in sorted(plan, key=place):
        own = baseline.get(name, domains[name].values[0])
        if plan[name] == own or name == FOLLOWS:
            continue
        without = history.space.possible({name: own}, plan)
        if without is not None:
            yield name, without


def _is_known(plan: Plan, history: History) -> bool:
    flipped_back = conclusive(t for t in history.of(Purpose.ABLATE) if t.plan == plan)
    return bool(flipped_back) or plan in history.measured or plan in history.tried


def _confirm(plan: Plan, history: History) -> Proposal:
    reason = f"confirmation, round {attempts(plan, history) + 1}: alone, in a fresh process"
    return Proposal(plan=plan, purpose=Purpose.CONFIRM, reason=reason)
