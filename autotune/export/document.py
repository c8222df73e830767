"""Turns the contents of a plan file into a document of plain values, and back with checks."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from autotune.agent.objectives.objective import ObjectiveName
from autotune.agent.objectives.stored import objective_from
from autotune.errors import PlanError, nearest
from autotune.export.contents import PlanFile
from autotune.export.values import checked_plan, split_plan
from autotune.search_space.command import Command
from autotune.search_space.plan import SCHEMA_VERSION, Plan
from autotune.storage.figures import (
    Interval,
    PlanFigures,
    speedup_from_dict,
    speedup_to_dict,
)

SECTIONS = (
    "schema_version",
    "ranks",
    "plan",
    "user_knobs",
    "objective",
    "result",
    "baseline",
    "changes",
    "remarks",
    "workload",
    "hardware",
    "versions",
)
_FIGURES = tuple(field.name for field in fields(PlanFigures))
_SPEEDUP = tuple(speedup_to_dict(None))


def to_document(file: PlanFile) -> dict[str, Any]:
    """Return the document with the sections in the order of `SECTIONS`, without empty ones."""
    return _without_unknown(
        {
            "schema_version": SCHEMA_VERSION,
            "ranks": file.ranks,
            **_plan_sections(file.plan),
            "objective": dict(file.objective),
            "result": {
                **file.own.to_dict(),
                **speedup_to_dict(file.speedup),
                "confirmed": file.confirmed,
                "verdict": file.verdict,
                "how": file.how,
            },
            "baseline": {
                **(_plan_sections(file.baseline) if file.baseline else {}),
                **file.baseline_figures.to_dict(),
            },
            "changes": dict(file.changes),
            "remarks": list(file.remarks),
            "workload": {
                "path": file.workload_path,
                "hash": file.workload_hash,
                **_command_section(file.command),
            },
            "hardware": dict(file.hardware),
            "versions": dict(file.versions),
        }
    )


def from_document(document: Any) -> PlanFile:
    """Return the contents of a document, in which all sections but `plan` may be missing.

    Raises:
        PlanError: for another schema version, or an unknown section, knob or value.
    """
    sections = _sections(document)
    result, baseline = _mapping(sections, "result"), _mapping(sections, "baseline")
    workload = _mapping(sections, "workload")
    return PlanFile(
        plan=checked_plan(_mapping(sections, "plan"), _mapping(sections, "user_knobs")),
        ranks=_ranks(sections),
        own=_figures(result),
        speedup=_speedup(result),
        confirmed=result.get("confirmed") is True,
        how=result.get("how"),
        verdict=result.get("verdict"),
        baseline=_baseline(baseline),
        baseline_figures=_figures(baseline),
        changes=_mapping(sections, "changes"),
        remarks=tuple(sections.get("remarks") or ()),
        objective=_objective(sections),
        workload_path=workload.get("path"),
        workload_hash=workload.get("hash"),
        command=_command(workload),
        hardware=_mapping(sections, "hardware"),
        versions=_mapping(sections, "versions"),
    )


def _command_section(command: Command | None) -> dict[str, Any]:
    if command is None:
        return {}
    return {
        "command": list(command.argv),
        "bindings": dict(command.bindings),
        "output_flags": list(command.output_flags),
    }


def _command(workload: Mapping[str, Any]) -> Command | None:
    argv = workload.get("command")
    if argv is None:
        return None
    if not isinstance(argv, list) or not argv:
        raise PlanError(f"command is {argv!r}; write the words of the command line as a list")
    return Command(
        argv=tuple(map(str, argv)),
        bindings=tuple((str(k), str(v)) for k, v in _mapping(workload, "bindings").items()),
        output_flags=tuple(map(str, workload.get("output_flags") or ())),
    )


def _plan_sections(plan: Plan) -> dict[str, Any]:
    known, own = split_plan(plan)
    return {"plan": known, "user_knobs": own or None}


def _without_unknown(values: Mapping[str, Any]) -> dict[str, Any]:
    plain = {
        name: _without_unknown(value) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if value is not None
    }
    return {
        name: value for name, value in plain.items() if name == "plan" or value not in ({}, [])
    }


def _sections(document: Any) -> dict[str, Any]:
    if not isinstance(document, dict) or "plan" not in document:
        raise PlanError(
            "it has no `plan:` section; write `plan:` and below it one `knob: value` per line"
        )
    _check_version(document.get("schema_version", SCHEMA_VERSION))
    for name in document:
        if name not in SECTIONS:
            listed = ", ".join(SECTIONS)
            raise PlanError(f"unknown section {name!r}{nearest(name, SECTIONS)} ({listed})")
    return document


def _check_version(version: Any) -> None:
    if version == SCHEMA_VERSION:
        return
    newer = isinstance(version, int) and version > SCHEMA_VERSION
    cure = "upgrade autotune to read it" if newer else "leave schema_version out"
    raise PlanError(
        f"it has schema_version {version!r}, this autotune reads {SCHEMA_VERSION}; {cure}"
    )


def _mapping(sections: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = sections.get(name) or {}
    if not isinstance(section, dict):
        raise PlanError(f"{name} is {section!r}; write one `name: value` per line below `{name}:`")
    return section


def _baseline(section: Mapping[str, Any]) -> Plan | None:
    if "plan" not in section:
        return None
    return checked_plan(_mapping(section, "plan"), _mapping(section, "user_knobs"))


def _objective(sections: Mapping[str, Any]) -> dict[str, Any]:
    values = _mapping(sections, "objective")
    try:
        objective_from(values)
    except (KeyError, ValueError) as error:
        listed = ", ".join(ObjectiveName)
        raise PlanError(
            f"objective is {values!r}; leave it out, or give its name ({listed}) and what it needs"
        ) from error
    return values


def _number(section: Mapping[str, Any], name: str) -> float | None:
    value = section.get(name)
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise PlanError(f"{name} is {value!r}; it must be a number, or left out when unknown")


def _ranks(sections: Mapping[str, Any]) -> int | None:
    ranks = sections.get("ranks")
    if ranks is None or (type(ranks) is int and ranks > 0):
        return ranks
    raise PlanError(f"ranks is {ranks!r}; it must be a positive integer, or left out when unknown")


def _figures(section: Mapping[str, Any]) -> PlanFigures:
    figures = PlanFigures.from_dict({name: _number(section, name) for name in _FIGURES})
    memory = figures.memory_bytes
    return figures if memory is None else replace(figures, memory_bytes=int(memory))


def _speedup(section: Mapping[str, Any]) -> Interval | None:
    return speedup_from_dict({name: _number(section, name) for name in _SPEEDUP})
