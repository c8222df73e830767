"""The first trials of a run, for `--dry-run`: its agenda is asked without running anything."""

from typing import Any

from autotune.agent.agenda import Agenda
from autotune.agent.conclusion.confirm import Ending
from autotune.agent.journal import Journal
from autotune.agent.objectives.objective import Figures, Objective
from autotune.agent.objectives.throughput import FASTEST
from autotune.agent.observer import SilentObserver
from autotune.agent.settings import SearchSettings
from autotune.agent.stages import stages_of
from autotune.clock import Budget, FakeClock
from autotune.search_space.changes import describe_changes
from autotune.search_space.hardware import Hardware
from autotune.search_space.plan import Plan
from autotune.search_space.space import Space
from autotune.trials.result import Measurement, Outcome, Purpose, TrialResult

_MAX_SHOWN = 5  # trials
_TRIAL_S = 10.0  # assumed seconds of the baseline's trial
_ENOUGH_DEVICES = 2**30  # so many free devices that no trial has to wait for one


def first_trials(
    space: Space,
    hardware: Hardware,
    budget_s: float,
    scouting: Space | None = None,
    objective: Objective = FASTEST,
) -> list[dict[str, Any]]:
    """Return `purpose`, `num_ranks`, `change` and `reason` of the first trials.

    The baseline is assumed to take ten seconds, not to wait for data, and to meet the objective;
    its real measurement may change the order. `scouting` is the space on one device if a trial has
    several.
    """
    spaces = {s.num_ranks: s for s in (scouting, space) if s is not None}
    settings = SearchSettings(budget_s=budget_s, objective=objective)
    journal = Journal(spaces.values(), settings.memory_cap_bytes(hardware), (), objective)
    agenda = Agenda(
        stages=stages_of(space, scouting, settings, hardware),
        ending=Ending(settings=settings, hardware=hardware),
        journal=journal,
        settings=settings,
        budget=Budget(clock=FakeClock(), total_s=budget_s, started_at=0.0),
        observer=SilentObserver(),
    )
    lines: list[dict[str, Any]] = []
    while len(lines) < _MAX_SHOWN and (proposal := agenda.next(_ENOUGH_DEVICES)):
        change = describe_changes(proposal.plan, spaces[proposal.num_ranks].baseline)
        lines.append(
            {
                "purpose": proposal.purpose.value,
                "num_ranks": proposal.num_ranks,
                "change": change,
                "reason": proposal.reason,
            }
        )
        number = journal.start(proposal)
        if proposal.purpose is Purpose.BASELINE:
            journal.end(number, _assumed_result(proposal.plan, objective.assumed()))
    return lines


def _assumed_result(plan: Plan, assumed: Figures) -> TrialResult:
    measurement = Measurement(
        throughput=assumed.throughput,
        throughput_low=assumed.throughput,
        throughput_high=assumed.throughput,
        step_ms=1000.0 * int(plan["batch_size"]) / assumed.throughput,
        step_ms_spread=0.0,
        data_wait_share=0.0,
        build_s=0.0,
        first_step_s=0.0,
        warm_up_s=0.0,
        measure_s=_TRIAL_S,
        first_loss=1.0,
        last_loss=1.0,
        settled=True,
        peak_reserved_overall_bytes=assumed.memory_bytes,
    )
    return TrialResult(outcome=Outcome.OK, measurement=measurement, total_s=_TRIAL_S)
