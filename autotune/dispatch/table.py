"""Reads and writes tables of measured plans, which `ReplayRunner` replays on any machine.

A table is a file of JSON lines. The first line says of which workload and on which machine it was
recorded; each further line holds a plan and the result of its trial, in the order of measuring.
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

_DIGITS = 6  # significant digits of numbers in a file; measurements have fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The results of many plans of one workload on one machine.

    Attributes:
        name: of the workload.
        protocol: the measurement protocol of every trial.
        how: how it was recorded, in words.
        fix: the knobs that were held at one value, as `--fix` takes them.
        rows: plans with their results, in the order of measuring. Trials whose end does not depend
            on their plan (`infra`, `cancelled`) are left out.
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
        """The results of each plan, one for each process that measured it."""
        results: dict[Plan, tuple[TrialResult, ...]] = {}
        for plan, result in self.rows:
            results[plan] = (*results.get(plan, ()), result)
        return results

    @property
    def space(self) -> Space:
        """A space that holds just the recorded plans."""
        narrowing = replace(NAMED_IN_FULL, fix=self.fix)
        return build_space(self.facts, self.hardware, narrowing).only(self.results)


def read_table(path: Path) -> Table:
    """Return the table in a file, without a last line that a killed recording left incomplete.

    Raises:
        UsageError: when there is no such file, or its first line is no header.
    """
    try:
        head, *rows = path.read_text().splitlines()
        header = json.loads(head)
        table = _table(header)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"{path} is no recorded table: {error}; record it again") from error
    return replace(table, rows=tuple(map(_result, filter(_is_whole, rows))))


def start_table(path: Path, table: Table) -> None:
    """Write a new table's first line."""
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
    """Append a plan and its result, so that a killed recording loses only running trials."""
    values = replace(result, log_tail="", traceback=None).to_dict()
    line = json.dumps({"plan": plan.values, **_rounded(_packed(values))})
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


# The order of a window's fields in that list.
_WINDOW = ("steps", "samples", "seconds", "data_wait_s")


def _packed(result: dict[str, Any]) -> dict[str, Any]:
    """Return the result with each window as a list, as field names would fill most of the file."""
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
