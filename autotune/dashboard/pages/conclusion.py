"""The top of a run's page: its result so far, or its conclusion."""

from typing import Any

import dash_mantine_components as dmc
from dash.development.base_component import Component

from autotune.dashboard import parts
from autotune.report.words import (
    UNKNOWN,
    cell,
    duration,
    gib,
    knob_value,
    samples,
    speedup,
    verdict,
)
from autotune.storage.statistics import Point


def headline(run: dict[str, Any], best: Point | None) -> Component:
    """Return tiles with baseline, winner, speed-up and memory, or with the best so far."""
    winner = run["winner"]
    if winner is None:
        return _so_far(best)
    tiles = [
        _tile("Baseline", samples(winner["baseline_throughput"]), "samples/s"),
        _tile("Winner", samples(winner["throughput"]), "samples/s"),
        _tile("Speed-up", _times(winner), _interval(winner)),
        _tile(
            "Peak memory",
            gib(winner["memory_bytes"]),
            f"GiB; baseline {gib(winner['baseline_memory_bytes'])} GiB",
        ),
    ]
    if winner["train_s"] is not None:
        tiles.append(_time_to_train(winner))
    remarks = [dmc.Text(remark, fw=600, size="sm") for remark in winner["remarks"]]
    return dmc.Box([_tiles(tiles), dmc.Text(verdict(winner), size="sm"), *remarks], mb="md")


def _time_to_train(winner: dict[str, Any]) -> Component:
    ours, theirs = duration(winner["train_s"]), duration(winner["baseline_train_s"])
    starts = f"start-up {duration(winner['start_s'])}, {duration(winner['baseline_start_s'])}"
    return _tile("Time to train", ours, f"baseline {theirs}; {starts}")


def _so_far(best: Point | None) -> Component:
    if best is None:
        return parts.placeholder("No trial has been measured yet.")
    return _tiles([_tile("Best so far", samples(best.throughput), "samples/s, measured once")])


def _tiles(tiles: list[Component]) -> Component:
    return dmc.SimpleGrid(tiles, cols={"base": 2, "md": 4}, mb="sm")


def _tile(name: str, value: str, unit: str) -> Component:
    return dmc.Paper(
        [
            dmc.Text(name, size="sm", c="dimmed"),
            dmc.Text(value, size="xl", fw=700),
            dmc.Text(unit, size="xs", c="dimmed"),
        ],
        withBorder=True,
        p="sm",
    )


def _times(winner: dict[str, Any]) -> str:
    return UNKNOWN if winner["speedup"] is None else f"{winner['speedup']:.2f}x"


def _interval(winner: dict[str, Any]) -> str:
    if winner["speedup_low"] is None:
        return "not confirmed"
    return f"95 % interval {speedup(winner).partition('(')[2].rstrip(')')}"


def changes(winner: dict[str, Any] | None) -> Component | None:
    """Return a table of the knobs that the winner changes, and why."""
    if winner is None or not winner["changes"]:
        return None
    rows = [
        [knob, knob_value(change["baseline"]), knob_value(change["value"]), cell(change["why"])]
        for knob, change in winner["changes"].items()
    ]
    return parts.section("What changed", parts.table(("Knob", "Baseline", "Winner", "Why"), rows))
