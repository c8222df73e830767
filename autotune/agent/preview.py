"""What a run would start with, for `--dry-run`: its agenda asked before anything ran."""

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
from autotune.search_space.hardware import Hardware
from autotune.search_space.plan import Plan, describe_diff
from autotune.search_space.space import Space
from autotune.trials.result import Measurement, Outcome, Purpose, TrialResult

_SHOWN = 5
_TRIAL_S = 10.0
_ENOUGH_DEVICES = 2**30  # what waits for a device is among the first, too


def first_trials(
    space: Space,
    hardware: Hardware,
    budget_s: float,
    scouting: Space | None = None,
    objective: Objective = FASTEST,
) -> list[dict[str, Any]]:
    """Return `purpose`, `num_ranks`, `change` and `reason` of the first trials.

    A baseline is taken to run in ten seconds without waiting for data, and to be what the
    objective asks for; what it really shows may change the order. `scouting` is the space on one
    device, where a trial has several.
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
    while len(lines) < _SHOWN and (proposal := agenda.next(_ENOUGH_DEVICES)):
        change = describe_diff(proposal.plan, spaces[proposal.num_ranks].baseline)
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
            journal.end(number, _ran(proposal.plan, objective.assumed()))
    return lines


def _ran(plan: Plan, assumed: Figures) -> TrialResult:
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
