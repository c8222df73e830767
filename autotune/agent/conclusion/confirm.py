"""The end of a run: interleaved confirmation, the numerics check, what each knob is worth.

Like the search, each step is a function of the history and the time left, so a run that was
killed goes on in the middle of a round.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune.agent.conclusion.finalists import choose, confirmed, finalists
from autotune.agent.conclusion.numerics import next_check
from autotune.agent.forecast.durations import (
    check_s,
    confirmation_s,
    expected_s,
    remeasure_and_check_s,
)
from autotune.agent.history import History, conclusive
from autotune.agent.proposal import Proposal
from autotune.agent.settings import SearchSettings
from autotune.search_space.hardware import Hardware
from autotune.search_space.knobs.batch import FOLLOWS
from autotune.search_space.plan import Plan, spell
from autotune.trials.result import Purpose

# Finalists and rounds, best first; the first that time can pay for is run.
_HARDLY = 0.8  # part of its price for which a last measurement is tried all the same
SCHEDULES = ((3, 3), (2, 3), (2, 2), (1, 2), (1, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Decides what to run once the search is over."""

    settings: SearchSettings
    hardware: Hardware

    def reserve_s(self, history: History, left_s: float) -> float:
        """Return the seconds to keep for the end, once there is a plan to confirm.

        That is the best schedule within its share of the budget, at the least a round with the
        baseline and a check; where these do not fit, what an answer needs. Where hardly that fits,
        the search is over. A search that was cut short once for what it had found does not get
        that time back.
        """
        if not finalists(history):
            return 0.0
        if history.cut_short:
            return left_s
        share_s = self.settings.confirm_share * self.settings.budget_s
        costs = [self._schedule_s(history, *schedule) for schedule in SCHEDULES]
        within = [cost for cost in costs if cost <= min(share_s, left_s)]
        least_s = self._cost_s(finalists(history)[:1], history)
        options = [*within[:1], costs[-1], self.bare_s(history, left_s), least_s]
        hardly = left_s if _HARDLY * least_s <= left_s else 0.0
        return next((cost for cost in options if cost <= left_s), hardly)

    def bare_s(self, history: History, left_s: float) -> float:
        """Return the seconds that an answer about the leader needs, 0 without a leader.

        It is measured again, and checked where both can be paid.
        """
        if not (found := finalists(history)[:1]):
            return 0.0
        bare_s = self._bare_s(found[0], history)
        return bare_s if bare_s <= left_s else self._cost_s(found, history)

    def _bare_s(self, plan: Plan, history: History) -> float:
        checked_s = check_s(plan, history, self.hardware) if next_check(plan, history) else 0.0
        return confirmation_s(plan, history, self.hardware) + checked_s

    def fits(self, history: History, left_s: float) -> bool:
        """Whether a plan as long as the baseline could be found, measured again and checked."""
        own = history.reference
        trial_s = expected_s(own, history, self.hardware)
        return trial_s + remeasure_and_check_s(own, history, self.hardware) <= left_s

    def next(self, history: History, left_s: float) -> Proposal | None:
        """Return the next trial of the ending, None when there is nothing left to do or pay."""
        if not finalists(history):
            return None
        return (
            self._check_leader(history, left_s)
            or self._scheduled(history, left_s)
            or self._leader_alone(history, left_s)
            or self._check_winner(history, left_s)
            or self._another_round(history, left_s)
            or self._ablation(history, left_s)
        )

    def _check_leader(self, history: History, left_s: float) -> Proposal | None:
        """Check the fastest before anything is spent on confirming it, if both can be paid."""
        leader = finalists(history)[0]
        least_s = self._cost_s(missing([leader], 1, history), history)
        return self._check(leader, history, left_s - least_s)

    def _leader_alone(self, history: History, left_s: float) -> Proposal | None:
        """Measure the leader again where no time is left for the baseline beside it."""
        leader = finalists(history)[0]
        least_s = _HARDLY * self._cost_s([leader], history)
        if attempts(leader, history) or least_s > left_s:
            return None
        return _confirm(leader, history)

    def _scheduled(self, history: History, left_s: float) -> Proposal | None:
        for num_finalists, rounds in SCHEDULES:
            enough = min(rounds, 2) if self._is_tight(history) else rounds
            field = self._field(history, num_finalists)
            # With time for one round, the answer comes first: the baseline has a process to be
            # compared with already.
            ordered = field[::-1] if rounds == 1 else field
            open_plans = missing(ordered, enough, history)
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

    def _schedule_s(self, history: History, num_finalists: int, rounds: int) -> float:
        field = self._field(history, num_finalists)
        # Finalists that the search has not found yet are taken to last as long as those it has.
        field += field[-1:] * (1 + num_finalists - len(field))
        checked_s = self._bare_s(field[1], history) - self._cost_s(field[1:2], history)
        return rounds * self._cost_s(field, history) + checked_s

    def _cost_s(self, plans: Sequence[Plan], history: History) -> float:
        return sum(confirmation_s(plan, history, self.hardware) for plan in plans)


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
