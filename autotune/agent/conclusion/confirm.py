"""The end of a run: interleaved confirmation, the numerics check, and an ablation of each knob.

Like the search, each step is a function of the history and the time left, so a run that was
killed continues in the middle of a round.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune.agent.conclusion.finalists import (
    better_plans,
    choose,
    confirmed,
    finalists,
)
from autotune.agent.conclusion.numerics import next_check
from autotune.agent.forecast.durations import (
    check_s,
    confirmation_s,
    expected_s,
)
from autotune.agent.history import History, conclusive
from autotune.agent.proposal import Proposal
from autotune.agent.settings import SearchSettings
from autotune.search_space.hardware import Hardware
from autotune.search_space.knobs.batch import FOLLOWS
from autotune.search_space.plan import Plan, spell
from autotune.trials.result import Purpose

# Part of its expected duration that must be left for a last measurement to be tried.
_LEAST_PART_OF_DURATION = 0.8
# A check comes before the leader is measured again only if so many times the time for that is left
# after it: a check may take longer than expected, and a leader that is not confirmed is no answer.
_MARGIN_OF_CHECK = 1.2
# Numbers of finalists and of rounds, best first; the first that fits into the time left is run.
SCHEDULES = ((3, 3), (2, 3), (2, 2), (1, 2), (1, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Chooses the trials that follow the search: confirmation, numerics check, ablation."""

    settings: SearchSettings
    hardware: Hardware

    def reserve_s(self, history: History, left_s: float) -> float:
        """Return the seconds to reserve for the ending, 0 while there is no plan to confirm.

        That is the best schedule that fits into its share of the budget, else the shortest one.
        If that does not fit into the time left, it is the time to measure the leader again and
        check it, else only to measure it. If that hardly fits, or a search trial was cancelled for
        the ending before, it is all of the time left.
        """
        if not finalists(history):
            return 0.0
        if history.cut_short:
            return left_s
        share_s = self.settings.confirm_share * self.settings.budget_s
        costs = [self._schedule_s(history, *schedule) for schedule in SCHEDULES]
        within = [cost for cost in costs if cost <= min(share_s, left_s)]
        least_s = self._cost_s(finalists(history)[:1], history)
        options = [*within[:1], costs[-1], self.leader_ending_s(history, left_s), least_s]
        hardly = left_s if _LEAST_PART_OF_DURATION * least_s <= left_s else 0.0
        return next((cost for cost in options if cost <= left_s), hardly)

    def leader_ending_s(self, history: History, left_s: float) -> float:
        """Return the seconds to measure the leading finalist again and check it, 0 without one.

        If the time left is too short for both, the check is left out.
        """
        if not (found := finalists(history)[:1]):
            return 0.0
        whole_s = remeasure_and_check_s(found[0], history, self.hardware)
        return whole_s if whole_s <= left_s else self._cost_s(found, history)

    def confirmable_s(self, plan: Plan, history: History) -> float:
        """Return the seconds to measure a plan or the leader again, whichever takes longer."""
        return max(self._cost_s([p], history) for p in (plan, *finalists(history)[:1]))

    def fits(self, history: History, left_s: float) -> bool:
        """Whether time is left to try, measure again and check a plan as slow as the baseline."""
        own = history.reference
        trial_s = expected_s(own, history, self.hardware)
        again_s = confirmation_s(own, history, self.hardware)
        return trial_s + again_s + check_s(own, history, self.hardware) <= left_s

    def next(self, history: History, left_s: float) -> Proposal | None:
        """Return the next trial of the ending, None if the time left allows no further one."""
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
        """Return the leader's numerics check if time is left for it and a confirmation."""
        leader = finalists(history)[0]
        least_s = self._cost_s(missing([leader], 1, history), history)
        return self._check(leader, history, left_s - _MARGIN_OF_CHECK * least_s)

    def _leader_alone(self, history: History, left_s: float) -> Proposal | None:
        """Return a measurement of the leader alone, if none of the better plans has had one.

        Where no time is left for it, that is the next best plan that takes less.
        """
        plans = better_plans(history)
        if any(attempts(plan, history) for plan in (*finalists(history), *plans)):
            return None
        within_s = left_s / _LEAST_PART_OF_DURATION
        fitting = (plan for plan in plans if self._cost_s([plan], history) <= within_s)
        return next((_confirm(plan, history) for plan in fitting), None)

    def _scheduled(self, history: History, left_s: float) -> Proposal | None:
        """Return the next confirmation of the best schedule that fits into the time left."""
        for num_finalists, rounds in SCHEDULES:
            enough = min(rounds, 2) if self._is_tight(history) else rounds
            field = self._field(history, num_finalists)
            # A single round starts with the finalist: the baseline already has a measured process.
            ordered = field[::-1] if rounds == 1 else field
            open_plans = missing(ordered, enough, history)
            if self._cost_s(open_plans, history) <= left_s:
                return _confirm(open_plans[0], history) if open_plans else None
        return None

    def _check_winner(self, history: History, left_s: float) -> Proposal | None:
        winner = choose(history, self.settings.gain, checks_pass=True)
        return self._check(winner.plan, history, left_s) if winner else None

    def _another_round(self, history: History, left_s: float) -> Proposal | None:
        """Return a confirmation of a further round while the speed-up's interval is too wide."""
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
        """Return the winner with one setting reverted, for the next setting not yet compared."""
        winner = choose(history, self.settings.gain)
        if winner is None:
            return None
        for name, plan in reverted_knobs(winner.plan, history):
            if (
                not _was_ablated(plan, history)
                and expected_s(plan, history, self.hardware) <= left_s
            ):
                reason = f"what is {name}={spell(winner.plan[name])} worth to the winner?"
                return Proposal(plan=plan, purpose=Purpose.ABLATE, reason=reason)
        return None

    def _check(self, plan: Plan, history: History, left_s: float) -> Proposal | None:
        proposal = next_check(plan, history)
        if proposal is None or check_s(proposal.plan, history, self.hardware) > left_s:
            return None
        return proposal

    def _is_tight(self, history: History) -> bool:
        """Whether the interval of the best plan's speed-up is narrower than a gain that counts."""
        repeated = confirmed(history, rounds=2)
        return bool(repeated) and repeated[0].speedup.half_width < self.settings.gain

    def _field(self, history: History, num_finalists: int) -> list[Plan]:
        """Return the plans of a round: the baseline and the best finalists."""
        baseline = history.reference
        return [baseline, *finalists(history)[:num_finalists]]

    def _schedule_s(self, history: History, num_finalists: int, rounds: int) -> float:
        field = self._field(history, num_finalists)
        # A finalist that the search has not found yet counts as the last one that it has.
        field += field[-1:] * (1 + num_finalists - len(field))
        checked_s = remeasure_and_check_s(field[1], history, self.hardware) - self._cost_s(
            field[1:2], history
        )
        return rounds * self._cost_s(field, history) + checked_s

    def _cost_s(self, plans: Sequence[Plan], history: History) -> float:
        return sum(confirmation_s(plan, history, self.hardware) for plan in plans)


def remeasure_and_check_s(plan: Plan, history: History, hardware: Hardware) -> float:
    """Return the seconds to measure the plan again after its trial, and to check it if it must."""
    check = next_check(plan, history)
    checked_s = check_s(check.plan, history, hardware) if check else 0.0
    return confirmation_s(plan, history, hardware) + checked_s


def missing(plans: Sequence[Plan], rounds: int, history: History) -> list[Plan]:
    """Return the plans that `rounds` interleaved rounds still have to run, in that order."""
    return [
        plan for number in range(rounds) for plan in plans if attempts(plan, history) <= number
    ]


def attempts(plan: Plan, history: History) -> int:
    """Return how many conclusive confirmations the plan has had."""
    return len(conclusive(t for t in history.of(Purpose.CONFIRM) if t.plan == plan))


def reverted_knobs(plan: Plan, history: History) -> Iterator[tuple[str, Plan]]:
    """Yield each knob that the plan changes, with the plan that has the baseline's value of it.

    Knobs that change the numerics most come first. Knobs that the baseline does not have, such as
    prefetch without workers, come last and are set to their first value.
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


def _was_ablated(plan: Plan, history: History) -> bool:
    reverted_knobs = conclusive(t for t in history.of(Purpose.ABLATE) if t.plan == plan)
    return bool(reverted_knobs) or plan in history.measured or plan in history.tried


def _confirm(plan: Plan, history: History) -> Proposal:
    reason = f"confirmation, round {attempts(plan, history) + 1}: alone, in a fresh process"
    return Proposal(plan=plan, purpose=Purpose.CONFIRM, reason=reason)
