"""What a run that goes on is doing: its result so far, its trials, its devices, its time left."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import dash_mantine_components as dmc
from dash.development.base_component import Component

from autotune.dashboard import parts
from autotune.dashboard.devices import DeviceUse, devices_now
from autotune.report.as_json import trial_view
from autotune.report.words import UNKNOWN, changes_text, duration, gib, kind, samples
from autotune.storage.driver import lives
from autotune.storage.records import RunRecord, RunState, TrialRecord
from autotune.storage.sql import SqlStore
from autotune.trials.result import Purpose

# What a run does while it has trials of a purpose, the first that applies.
PHASES = (
    (Purpose.QUALITY, "training the best to the target"),
    (Purpose.CONFIRM, "measuring the best again in fresh processes"),
    (Purpose.NUMERICS, "checking the numerics of the best"),
    (Purpose.ABLATE, "finding out what each setting is worth"),
    (Purpose.BASELINE, "measuring your own configuration"),
)
SEARCHING, THINKING = "searching", "choosing what to try next"


@dataclass(frozen=True, slots=True, kw_only=True)
class SoFar:
    """The result of a run so far; throughputs in samples per second, None where unknown."""

    baseline: float | None
    best: float | None

    @property
    def speedup(self) -> float | None:
        """The best over the baseline."""
        return self.best / self.baseline if self.best and self.baseline else None


def so_far(store: SqlStore, run: RunRecord) -> SoFar:
    """Return what the trials gave that have ended."""
    ran = [trial.result for trial in store.trials_for(run.id, [Purpose.BASELINE])]
    speeds = [result.measurement.throughput for result in ran if result and result.measurement]
    best = store.statistics(run).best_so_far()
    return SoFar(
        baseline=speeds[0] if speeds else None, best=best[-1].throughput if best else None
    )


def live(store: SqlStore, run: RunRecord) -> Component | None:
    """Return what a running run does; None for one that does not run."""
    if run.state is not RunState.RUNNING:
        return None
    running = store.in_flight(run.id)
    found = so_far(store, run)
    return dmc.Box(
        [
            dmc.SimpleGrid(
                [
                    parts.tile("Baseline", samples(found.baseline), "samples/s"),
                    parts.tile("Best so far", samples(found.best), "samples/s, measured once"),
                    parts.tile("Speed-up so far", speedup_words(found.speedup), "not confirmed"),
                    parts.tile("Time left", _time_left(store, run), "at most"),
                ],
                cols={"base": 2, "md": 4},
                mb="sm",
            ),
            dmc.Text(f"Now {phase_of(running)}.", fw=600),
            *(_trial(run, trial) for trial in running),
            _devices(devices_now()) if lives(run.new.driver) else None,
        ],
        mb="md",
    )


def speedup_words(speedup: float | None) -> str:
    """Return a speed-up as `2.41x`."""
    return UNKNOWN if speedup is None else f"{speedup:.2f}x"


def phase_of(running: Sequence[TrialRecord]) -> str:
    """Return what a run does that has these trials in flight."""
    purposes = {trial.purpose for trial in running}
    for purpose, words in PHASES:
        if purpose in purposes:
            return words
    return SEARCHING if running else THINKING


def _trial(run: RunRecord, trial: TrialRecord) -> Component:
    changes = changes_text(trial_view(trial, run.new.baseline))
    since = duration((datetime.now(UTC) - trial.started_at).total_seconds())
    return dmc.Group(
        [
            dmc.Loader(size="xs"),
            parts.link(f"Trial {trial.number}", f"/runs/{run.id}/trials/{trial.number}"),
            dmc.Text(f"{kind(trial.purpose.value)}, for {since}: {changes}", size="sm"),
        ],
        gap="xs",
    )


def _time_left(store: SqlStore, run: RunRecord) -> str:
    """Return the rest of the budget; what was used is stored when a trial ends."""
    last = store.statistics(run).last_end() or run.created_at
    since = (datetime.now(UTC) - last).total_seconds()
    return duration(max(run.new.budget_s - run.used_s - since, 0.0))


def _devices(devices: Sequence[DeviceUse]) -> Component | None:
    if not devices:
        return None
    return dmc.SimpleGrid(
        [_device(device) for device in devices], cols={"base": 1, "md": 2}, mt="sm"
    )


def _device(device: DeviceUse) -> Component:
    busy = device.utilisation
    memory = device.used_bytes / device.total_bytes
    of = f"{gib(device.used_bytes)} of {gib(device.total_bytes)} GiB"
    bars = [] if busy is None else [_bar("busy", busy, f"{100 * busy:.0f} %")]
    return dmc.Paper(
        [dmc.Text(device.name, fw=600, size="sm"), *bars, _bar("memory", memory, of)],
        withBorder=True,
        p="sm",
    )


def _bar(name: str, share: float, words: str) -> Component:
    return dmc.Box(
        [
            dmc.Text(f"{name}: {words}", size="sm"),
            dmc.Progress(value=round(100 * share, 1), **{"aria-label": name}),
        ]
    )
