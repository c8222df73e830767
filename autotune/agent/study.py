"""A run as an Optuna study, for Optuna's own dashboard."""

import math

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

from autotune.search_space.plan import Plan, Value
from autotune.storage.records import NOT_SEARCHED, RunRecord, TrialRecord
from autotune.trials.result import Outcome


class Studies:
    """Optuna studies in memory, one for each run that was shown; trials stay in the store."""

    def __init__(self) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.storage = optuna.storages.InMemoryStorage()

    def show(self, run: RunRecord, trials: list[TrialRecord]) -> int:
        """Build the run's study, which maximises throughput, anew and return its id, the run's.

        Trials that are not candidates of the search, or ran on fewer ranks, are left out.
        """
        wanted = [t for t in trials if t.purpose not in NOT_SEARCHED and t.outcome is not None]
        wanted = [trial for trial in wanted if trial.num_ranks == run.new.num_ranks]
        self._make_room(run.id)
        study = optuna.create_study(
            storage=self.storage, study_name=run.name, direction="maximize"
        )
        study.set_user_attr("workload", run.new.workload_path)
        choices = _choices([trial.plan for trial in wanted])
        study.add_trials([_told(trial, choices) for trial in wanted])
        return run.id

    def _make_room(self, run_id: int) -> None:
        """Delete the older study of a run, and let the next one have the run's id.

        The id is in the addresses of Optuna's dashboard, which so stay when a server starts anew.
        """
        if any(frozen._study_id == run_id for frozen in self.storage.get_all_studies()):  # noqa: SLF001  it has no other name
            self.storage.delete_study(run_id)
        self.storage._max_study_id = run_id - 1  # noqa: SLF001  Optuna counts from here


def _choices(plans: list[Plan]) -> dict[str, BaseDistribution]:
    values: dict[str, dict[Value, None]] = {}
    for plan in plans:
        for knob, value in plan.items:
            values.setdefault(knob, {})[value] = None
    return {knob: CategoricalDistribution(tuple(seen)) for knob, seen in values.items()}


def _told(trial: TrialRecord, choices: dict[str, BaseDistribution]) -> FrozenTrial:
    measured = trial.result and trial.result.measurement
    ran = trial.outcome is Outcome.OK and measured and math.isfinite(measured.throughput)
    told = optuna.trial.create_trial(
        state=TrialState.COMPLETE if ran else TrialState.FAIL,
        value=measured.throughput if ran and measured else None,
        params=dict(trial.plan.items),
        distributions={knob: choices[knob] for knob, _ in trial.plan.items},
        user_attrs={
            "trial": trial.number,
            "purpose": trial.purpose.value,
            "reason": trial.reason,
            "outcome": None if trial.outcome is None else trial.outcome.value,
            "memory_bytes": measured.memory_bytes if measured else None,
        },
    )
    told.datetime_start, told.datetime_complete = trial.started_at, trial.finished_at
    return told
