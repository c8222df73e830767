"""What `autotune run` was asked, and how it ended, as plain values."""

import re
from dataclasses import dataclass, field

from autotune.agent.objectives.objective import Objective
from autotune.agent.objectives.throughput import FASTEST
from autotune.agent.objectives.time_to_quality import TimeToQuality
from autotune.errors import ResourceError, UsageError
from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.space import Narrowing
from autotune.search_space.target import Target
from autotune.storage.records import RunRecord, TrialRecord

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")
_MIN_BUDGET_S = 10.0  # starting Ray and one short trial take about as long


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneRequest:
    """What `autotune run` was asked.

    Attributes:
        target: what to tune.
        budget_s: wall clock from `started_at` to the end.
        objective: gives plans the value to maximise.
        num_ranks: devices of each trial; a CPU process stands for one where there are no GPUs.
        started_at: moment of `time.monotonic()` from which the budget counts; the command line
            gives the start of its process. None: the call of `tune`.
        max_trials: largest number of search trials; None for no limit.
        narrowing: which knobs and values may vary.
        max_memory_bytes: most memory of one device that a plan may use; None for all of it.
        storage: URL or path of the store; None: `autotune.db` here.
        name: of the run; None: the store chooses one.
        fresh: start a new run even if there is an unfinished one to continue.
        ray_address: of a cluster to use; None starts a private one.
        seed: of parameters, data order and the sampler.
        disturbances: what else used the machine as the run began, in sentences for the user.
    """

    target: Target
    budget_s: float
    objective: Objective = FASTEST
    num_ranks: int = 1
    started_at: float | None = None
    max_trials: int | None = None
    narrowing: Narrowing = field(default_factory=Narrowing)
    max_memory_bytes: int | None = None
    storage: str | None = None
    name: str | None = None
    fresh: bool = False
    ray_address: str | None = None
    seed: int = 0
    disturbances: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    """How a run ended.

    Attributes:
        record: the run, with its winner if there is one.
        trials: all its trials by number.
        failure: the store, the cluster or a full disk, which ended the run before its time or
            kept its end from being stored; None: nothing of that kind.
    """

    record: RunRecord
    trials: list[TrialRecord]
    failure: ResourceError | None = None


def check_evaluates(request: TuneRequest, facts: WorkloadFacts) -> None:
    """Raise an error where there is a target, and nothing can be trained to it.

    Raises:
        UsageError: for a command, several ranks, or a workload without `evaluate`.
    """
    if not isinstance(request.objective, TimeToQuality):
        return
    option = f"--target {request.objective.target:g}"
    if facts.command is not None:
        raise UsageError(
            f"{option} needs a model.py with an evaluate(model), and a command has none; write "
            "one, or leave --objective and --target out"
        )
    if request.num_ranks > 1:
        raise UsageError(
            f"{option} is for trainings on one device, and --gpus-per-trial is "
            f"{request.num_ranks}; leave one of them out"
        )
    if not facts.evaluates:
        raise UsageError(
            f"{option} needs evaluate(model), and {request.target.path.name} defines none; add a "
            "function that returns a number, the higher the better, or use another --objective"
        )


def parse_budget(text: str) -> float:
    """Return the seconds of a budget such as `90s`, `15m`, `1h30m` or `2h`.

    Raises:
        UsageError: when it is no duration, or shorter than `_MIN_BUDGET_S`.
    """
    match = _DURATION.fullmatch(text.strip())
    if not text.strip() or match is None:
        raise UsageError(f"--budget {text!r} is no duration; write it like 90s, 15m or 1h30m")
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    total = 3600 * hours + 60 * minutes + seconds
    if total < _MIN_BUDGET_S:
        raise UsageError(
            f"--budget {text} is too short: start-up and one trial take about "
            f"{_MIN_BUDGET_S:.0f} s; use 60s or more"
        )
    return total
