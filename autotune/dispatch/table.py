"""Tables of measured plans: recorded once on a machine, replayed anywhere.

A table is a file of JSON lines. The first one says where it was recorded, each further one holds
a plan and how its trial ended, in the order in which they were measured.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.errors import UsageError
from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.hardware import Hardware
from autotune.search_space.plan import Plan
from autotune.search_space.space import NAMED_IN_FULL, Space, build_space
from autotune.trials.request import Protocol
from autotune.trials.result import TrialResult

_DIGITS = 6  # more than any measurement has


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What was measured of a workload on a machine.

    Attributes:
        name: of the workload.
        protocol: that every trial kept to.
        how: what else a reader must know, in words.
        fix: knobs that were held, as `--fix` takes them.
        rows: plans and how their trials ended, in the order in which they were measured; trials
            that say nothing about their plan are not among them.
    """

    name: str
    hardware: Hardware
    facts: WorkloadFacts
    protocol: Protocol
    how: str
    fix: tuple[tuple[str, str], ...] = ()
    rows: tuple[tuple[Plan, TrialResult], ...] = ()

    @property
    def results(self) -> dict[Plan, tuple[TrialResult, ...]]:
        """Of each plan, in every process that measured it."""
        results: dict[Plan, tuple[TrialResult, ...]] = {}
        for plan, result in self.rows:
            results[plan] = (*results.get(plan, ()), result)
        return results

    @property
    def space(self) -> Space:
        """The recorded plans, and no other."""
        narrowing = replace(NAMED_IN_FULL, fix=self.fix)
        return build_space(self.facts, self.hardware, narrowing).only(self.results)


def read_table(path: Path) -> Table:
    """Return the table in a file; a line cut short by a killed recording is left out.

    Raises:
        UsageError: when there is no such file, or its first line is no header.
    """
    try:
        head, *rows = path.read_text().splitlines()
        header = json.loads(head)
        table = _table(header)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"{path} is no recorded table: {error}; record one anew") from error
    return replace(table, rows=tuple(map(_result, filter(_is_whole, rows))))


def start_table(path: Path, table: Table) -> None:
    """Write the header of a new table, without results."""
    facts = replace(table.facts, imports=())
    header = {
        "name": table.name,
        "how": table.how,
        "fix": dict(table.fix),
        "hardware": table.hardware.to_dict(),
        "facts": facts.to_dict(),
        "protocol": _fields(table.protocol),
    }
    path.write_text(json.dumps(header) + "\n")


def append_result(path: Path, plan: Plan, result: TrialResult) -> None:
    """Add a line, so that a killed recording loses only the trials that were running."""
    told = replace(result, log_tail="", traceback=None).to_dict()
    line = json.dumps({"plan": plan.values, **_rounded(_packed(told))})
    cut_short = not path.read_bytes().endswith(b"\n")
    with path.open("a") as file:
        file.write("\n" * cut_short + line + "\n")


def _table(header: dict[str, Any]) -> Table:
    return Table(
        name=header["name"],
        hardware=Hardware.from_dict(header["hardware"]),
        facts=WorkloadFacts.from_dict(header["facts"]),
        protocol=Protocol(**header["protocol"]),
        how=header["how"],
        fix=tuple(header["fix"].items()),
    )


def _fields(protocol: Protocol) -> dict[str, float]:
    return {name: getattr(protocol, name) for name in Protocol.__slots__}


def _is_whole(line: str) -> bool:
    return line.endswith("}")


def _result(line: str) -> tuple[Plan, TrialResult]:
    values = json.loads(line)
    plan = Plan.of(values.pop("plan"))
    return plan, TrialResult.from_dict(_unpacked(values))


_WINDOW = ("steps", "samples", "seconds", "data_wait_s")


def _packed(result: dict[str, Any]) -> dict[str, Any]:
    """Write each window as a list: their names would be most of the file."""
    measurement = result["measurement"]
    if measurement is None:
        return result
    windows = [[window[name] for name in _WINDOW] for window in measurement["windows"]]
    return {**result, "measurement": {**measurement, "windows": windows}}


def _unpacked(result: dict[str, Any]) -> dict[str, Any]:
    measurement = result["measurement"]
    if measurement is None:
        return result
    windows = [dict(zip(_WINDOW, window, strict=True)) for window in measurement["windows"]]
    return {**result, "measurement": {**measurement, "windows": windows}}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value
