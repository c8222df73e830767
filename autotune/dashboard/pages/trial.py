"""The page of one trial."""

from collections.abc import Iterator
from typing import Any

import dash_mantine_components as dmc
from dash.development.base_component import Component

from autotune.dashboard import charts, parts
from autotune.dashboard.api import PREFIX
from autotune.dashboard.pages.notes import notes_section, tags
from autotune.dashboard.pages.plan_section import plan_section
from autotune.dashboard.source import Source
from autotune.dashboard.trial_files import log_of, trace_of
from autotune.dashboard.visit import Visit
from autotune.report import diagnosis as diagnosis_text
from autotune.report.reading import read_trial
from autotune.report.words import (
    cell,
    changes_text,
    duration,
    gib,
    kind,
    numerics,
    other_work,
    percent,
    quality_words,
    samples,
    size,
    windows_measured,
)
from autotune.storage.records import TrialRecord
from autotune.storage.statistics import IN_FLIGHT


def page(source: Source, visit: Visit, run: str, number: str) -> Component:
    """Return the page of trial `number`."""
    with source.store() as store:
        record = store.run(run)
        trial = read_trial(store, record, int(number))
        plan = plan_section(store, record, int(number), visit)
        stored = store.trial(record, int(number))
        note = store.notes.of(record.id, int(number))
        before, after = store.statistics(record).neighbours(int(number))
    measured = trial["measurement"]
    return dmc.Box(
        [
            parts.title(
                f"Trial {number}",
                parts.badge(trial["outcome"] or IN_FLIGHT),
                parts.link(record.name, f"/runs/{record.id}"),
                *tags(note),
                _neighbour("Previous trial", record.id, before),
                _neighbour("Next trial", record.id, after),
            ),
            _error(trial),
            dmc.SimpleGrid(
                [
                    parts.section("What and why", parts.facts(_facts(trial, visit))),
                    parts.section("Measured", _measured(measured, trial["windows"])),
                ],
                cols={"base": 1, "md": 2},
            ),
            _windows(trial["windows"]),
            _diagnosis(trial["diagnosis"]),
            parts.section("Plan", plan),
            parts.section("Measure it again", parts.commands(trial["measure_again"])),
            _log(trial, _files(record.id, stored, source.url)),
            notes_section(note, record.id, int(number)),
        ]
    )


def title(source: Source, run: str, number: str) -> str:
    """Return the trial's number with the name of its run."""
    with source.store() as store:
        return f"Trial {number} of {store.run(run).name}"


def _facts(trial: dict[str, Any], visit: Visit) -> Iterator[tuple[str, parts.Child]]:
    yield "Purpose", kind(trial["purpose"])
    yield "Reason", trial["reason"]
    yield "Changes", changes_text(trial)
    yield "Ranks", str(trial["num_ranks"])
    yield "Started", visit.time(trial["started_at"])
    yield "Ended", visit.time(trial["finished_at"])
    yield "Took", f"{duration(trial['total_s'])}, {duration(trial['overhead_s'])} of it overhead"
    if trial["quality"] is not None:
        yield "Training", quality_words(trial["quality"])
    if trial["numerics"] is not None:
        yield "Numerics", numerics(trial["numerics"])
    if trial["requested_bytes"] is not None:
        yield "Asked for", size(trial["requested_bytes"])
    yield "Log", cell(trial["log_path"])


def _measured(measured: dict[str, Any] | None, windows: list[dict[str, Any]]) -> Component:
    if measured is None:
        return parts.placeholder("Nothing was measured.")
    low, high = samples(measured["throughput_low"]), samples(measured["throughput_high"])
    known: list[tuple[str, parts.Child]] = [
        ("Throughput", f"{samples(measured['throughput'])} samples/s ({low} to {high}, 95 %)"),
        ("Windows", windows_measured(measured, windows)),
        (
            "Step time",
            f"{cell(measured['step_ms'])} ms, spread {percent(measured['step_ms_spread'])} %",
        ),
        ("Waiting for data (%)", percent(measured["data_wait_share"])),
        ("Validation, saving", other_work(measured["other_work_share"])),
        ("Peak memory (GiB)", gib(measured["memory_bytes"])),
        ("... allocated after warm-up", gib(measured["peak_allocated_bytes"])),
        ("... reserved after warm-up", gib(measured["peak_reserved_bytes"])),
        ("... of samples whose longest were a batch", cell(measured["longest_batch_of"])),
        ("Functions left uncompiled", cell(measured["recompile_limit_hits"])),
        ("Allocator retries", cell(measured["alloc_retries"])),
        ("Exposed communication (%)", percent(measured["exposed_comm_share"])),
        ("Build", duration(measured["build_s"])),
        ("First step", duration(measured["first_step_s"])),
        ("Warm-up", duration(measured["warm_up_s"])),
        ("Loss", f"{cell(measured['first_loss'])} to {cell(measured['last_loss'])}"),
    ]
    return parts.facts(known)


def _windows(windows: list[dict[str, Any]]) -> Component | None:
    if not windows:
        return None
    about = "A window is a stretch of steps timed as one, synchronised at both ends."
    return parts.section("Windows", charts.windows(windows), about=about)


def _diagnosis(diagnosis: dict[str, Any] | None) -> Component | None:
    if diagnosis is None:
        return None
    rows = [
        [
            words,
            percent(diagnosis["shares"][name]),
            diagnosis_text.source_of_share(name, diagnosis),
        ]
        for name, words in diagnosis_text.SHARES.items()
    ]
    columns = ("Of a step", "Share (%)", "How it is known")
    told = (
        ("What to do", diagnosis["advice"]),
        ("In your code", diagnosis_text.findings(diagnosis)),
    )
    return parts.section(
        "What limits the step",
        parts.facts(diagnosis_text.facts(diagnosis)),
        parts.table(columns, rows, columns[1:2]),
        *(parts.facts([(heading, parts.lines(texts))]) for heading, texts in told if texts),
    )


def _error(trial: dict[str, Any]) -> Component | None:
    if trial["error"] is None:
        return None
    return parts.alert(trial["error"], f"Ended as {trial['outcome']}, in phase {trial['phase']}")


def _neighbour(words: str, run_id: int, number: int | None) -> Component | None:
    return parts.link(words, f"/runs/{run_id}/trials/{number}") if number is not None else None


def _files(run_id: int, trial: TrialRecord, url: str | None) -> list[Component]:
    """Return links to the trial's log and trace, as far as they are on this machine."""
    at = f"{PREFIX}/runs/{run_id}/trials/{trial.number}"
    links = []
    if (log := log_of(trial, url)) is not None:
        links.append(parts.server_link("Look at the whole log", f"{at}/log"))
        links.append(parts.server_link("Download it", f"{at}/log?download=true", log.name))
    if (trace := trace_of(trial, url)) is not None:
        links.append(parts.server_link("Download the trace", f"{at}/trace", trace.name))
    return links


def _log(trial: dict[str, Any], links: list[Component]) -> Component:
    texts = (("Traceback", trial["traceback"]), ("End of the log", trial["log_tail"]))
    shown = [parts.section(heading, parts.text_block(text)) for heading, text in texts if text]
    files = parts.section("Log and trace", dmc.Group(links)) if links else None
    return dmc.Box([*shown, files])
