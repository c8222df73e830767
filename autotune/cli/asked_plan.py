"""The plan that a command is to measure: of a file, with settings of the user's beside it."""

from dataclasses import dataclass
from pathlib import Path

from autotune.cli.parsing import parse_fixed
from autotune.errors import UsageError
from autotune.export.plan_file import load_plan_file
from autotune.search_space.plan import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPlan:
    """What `--plan`, `--fix` and `--gpus-per-trial` ask for.

    Attributes:
        values: knobs of the plan; the rest is the baseline's.
        num_ranks: devices that train together.
    """

    values: dict[str, Value]
    num_ranks: int


def asked_plan(plan: Path | None, fix: list[str] | None, gpus: int | None) -> AskedPlan:
    """Return the plan to measure.

    Args:
        plan: the file that `--plan` names; None: the baseline.
        fix: the settings of `--fix`, which count before those of the file.
        gpus: `--gpus-per-trial`; None: the ranks of the plan file, else one.

    Raises:
        UsageError: when the file is for another number of ranks.
        PlanError: when it cannot be read.
    """
    file = load_plan_file(plan) if plan else None
    ranks = file.ranks if file else None
    num_ranks = gpus or ranks or 1
    if ranks not in (None, num_ranks):
        raise UsageError(
            f"the plan is for {ranks} ranks and --gpus-per-trial is {num_ranks}; leave the option "
            f"out, or find a plan for {num_ranks} with `autotune run`"
        )
    values = dict(file.plan.values) if file else {}
    return AskedPlan(values=values | dict(parse_fixed(fix)), num_ranks=num_ranks)
