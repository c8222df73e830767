"""Measures how fast the dashboard's pages and API are over a store of 100 000 trials.

It makes such a store once (one run has half of the trials, others have 1 000 each), serves it with
`autotune dashboard`, and measures in headless Chromium and over HTTP. The stored plans and numbers
are made up; only the times are results.

    python benchmarks/dashboard_speed.py [--trials 100000] [--store /tmp/big.db] [--repeats 5]

Needs `pip install 'torch-autotune[dev]'` and a Chromium (apt-get install chromium).
"""

import argparse
import itertools
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright
from sqlalchemy import insert

from autotune.search_space.plan import Plan
from autotune.storage.database import Database
from autotune.storage.location import locate
from autotune.storage.records import NewRun, RunState
from autotune.storage.sql import open_store
from autotune.storage.tables import TrialRow, WindowRow
from autotune.storage.wide import remember_knobs
from autotune.trials.result import Purpose

CHOICES: dict[str, tuple[Any, ...]] = {
    "compile_mode": ("off", "default", "reduce-overhead", "max-autotune"),
    "precision": ("fp32", "tf32", "bf16", "fp16"),
    "batch_size": (16, 32, 64, 96, 128),
    "workers": (0, 1, 2, 4, 8),
    "prefetch": (2, 4, 8),
    "pin_memory": (False, True),
    "activation_checkpointing": ("none", "selective", "every-4", "every-2", "full"),
    "optimizer_impl": ("default", "foreach", "fused"),
    "memory_format": ("contiguous", "channels_last"),
    "cudnn_benchmark": (False, True),
}
SMALL_RUN = 1000  # trials of each run but the first
AT_ONCE = 5000  # rows of an insert
# Runs in the browser, and notes when the page's headline is painted, in ms since the navigation.
NOTE_HEADLINE = """
new MutationObserver((_, observer) => {
  if (!document.querySelector('main h1')) return;
  observer.disconnect();
  requestAnimationFrame(() => setTimeout(() => { window.headlineAt = performance.now(); }));
}).observe(document, { childList: true, subtree: true });
"""
LOG_TAIL = "step 100: loss 2.31\n" * 60


def make_store(file: Path, num_trials: int) -> None:
    """Write a store with so many trials to a file."""
    store = open_store(str(file))
    sizes = [num_trials // 2] + [SMALL_RUN] * (num_trials // 2 // SMALL_RUN)
    runs = [store.create_run(_new_run(i)) for i in range(len(sizes))]
    store.close()
    database = Database(locate(str(file)))
    dice = random.Random(1)  # noqa: S311 - no secret
    for run, size in zip(runs, sizes, strict=True):
        for first in range(1, size + 1, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, size + 1))
            with database.writing() as session:
                session.execute(insert(TrialRow), [_trial(run.id, n, dice) for n in numbers])
                session.execute(
                    insert(WindowRow), [w for n in numbers for w in _windows(run.id, n)]
                )
    with database.writing() as session:
        for _ in range(50):
            remember_knobs(session, Plan.of(_plan(dice)))
    database.close()
    store = open_store(str(file))
    for run in runs[:-1]:  # the last one goes on
        store.finish_run(run.id, RunState.DONE, stop_reason="made up", used_s=7e3, winner=None)
    store.close()


def _new_run(number: int) -> NewRun:
    return NewRun(
        key=str(number),
        name=None,
        workload_path="/home/me/model.py",
        workload_hash="0",
        hardware={"device_name": "made up", "num_devices": 1},
        facts={},
        options={},
        baseline=Plan.of({knob: values[0] for knob, values in CHOICES.items()}),
        budget_s=7200.0,
        driver="nowhere:1:1",
    )


def _plan(dice: random.Random) -> dict[str, Any]:
    return {knob: dice.choice(values) for knob, values in CHOICES.items()}


def _trial(run_id: int, number: int, dice: random.Random) -> dict[str, Any]:
    plan = _plan(dice)
    ok = dice.random() < 0.9
    speed = 50.0 * (1 + CHOICES["precision"].index(plan["precision"])) * dice.uniform(0.8, 1.2)
    begin = datetime.now(UTC) + timedelta(seconds=number)
    return {
        "run_id": run_id,
        "number": number,
        "plan": plan,
        "purpose": "sampler",
        "reason": f"sampled from what {number} trials showed",
        "num_ranks": 1,
        "started_at": begin,
        "finished_at": begin + timedelta(seconds=1),
        "log_path": f"logs/trial-{number}.log",
        "outcome": "ok" if ok else "oom",
        "phase": "measure",
        "error": None if ok else "CUDA out of memory. Tried to allocate 2.00 GiB",
        "overhead_s": 0.4,
        "total_s": dice.uniform(3, 60),
        "throughput": speed if ok else None,
        "throughput_low": speed * 0.99 if ok else None,
        "throughput_high": speed * 1.01 if ok else None,
        "step_ms": 1000.0 / speed if ok else None,
        "data_wait_share": dice.random() / 5 if ok else None,
        "peak_reserved_overall_bytes": int(dice.uniform(1, 80) * 2**30) if ok else None,
        # The fields that every `Measurement` has.
        **dict.fromkeys(("step_ms_spread", "build_s", "first_step_s"), 0.01 if ok else None),
        **dict.fromkeys(("warm_up_s", "measure_s", "first_loss"), 1.0 if ok else None),
        **dict.fromkeys(("last_loss",), 1.0 if ok else None),
        **dict.fromkeys(("settled", "raced"), False if ok else None),
        "log_tail": LOG_TAIL,
    }


def _windows(run_id: int, number: int) -> Iterator[dict[str, Any]]:
    for position in range(5):
        yield {
            "run_id": run_id,
            "number": number,
            "position": position,
            "steps": 10,
            "samples": 320,
            "seconds": 0.25,
            "data_wait_s": 0.01,
        }


@contextmanager
def served(file: Path) -> Iterator[str]:
    """Serve the store by `autotune dashboard`, and yield the address."""
    command = [sys.executable, "-m", "autotune", "dashboard", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--storage", str(file)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split(" at ")[1].strip().rstrip("/")
    finally:
        process.terminate()
        process.wait()


def timed(repeats: int, action: Any) -> list[float]:
    """Return the seconds of each call, after one call that is not counted."""
    action()
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begin)
    return seconds


def get(address: str) -> None:
    """Request an address of the API, and read the whole response."""
    with urllib.request.urlopen(address) as answer:  # noqa: S310  our own server
        json.load(answer)


def open_page(page: Page, address: str, content: str) -> None:
    """Open a page in a browser with an empty cache, and wait for its content."""
    page.context.clear_cookies()
    page.goto(address)
    page.wait_for_selector(content)


def measure_pages(address: str, file: Path, repeats: int) -> list[tuple[str, float, list[float]]]:
    """Return (action, its limit in seconds, the measured seconds) for each action on pages."""
    pages = {
        "runs": "/",
        "run of half of all trials": "/runs/1",
        "run of 1 000 trials": "/runs/2",
        "trial": "/runs/1/trials/77",
        "compare": "/compare?trials=1.77,1.78,2.5",
        "query": "/query",
    }
    rows = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for name, path in pages.items():
            seconds = [_first_content(browser, address + path) for _ in range(repeats + 1)][1:]
            rows.append((f"first content, {name}", 1.0, seconds))
        page = browser.new_page()
        rows += _measure_table(page, address, repeats)
        rows.append(_measure_news(page, address, file, repeats))
        browser.close()
    return rows


def _first_content(browser: Browser, address: str) -> float:
    """Return the seconds until the headline is painted, in a browser with an empty profile."""
    context = browser.new_context()
    page = context.new_page()
    page.add_init_script(NOTE_HEADLINE)
    page.goto(address)
    milliseconds = page.wait_for_function("() => window.headlineAt").json_value()
    context.close()
    return float(milliseconds) / 1e3


def _measure_table(page: Page, address: str, repeats: int) -> list[tuple[str, float, list[float]]]:
    """Measure paging and filtering of the largest run's table, from click to visible rows."""
    open_page(page, f"{address}/runs/1", ".ag-row a")
    header = page.get_by_role("columnheader", name="Samples/s")

    limits = itertools.count(1.0)
    rows = itertools.cycle(range(500, 40_000, 3_700))

    def answered(act: Any) -> None:
        with page.expect_response(lambda answer: "_dash-update-component" in answer.url):
            act()
        page.wait_for_selector(".ag-row a")

    def scroll() -> None:
        page.evaluate(f"dash_ag_grid.getApi('trials').ensureIndexVisible({next(rows)})")

    def narrow() -> None:
        value = next(limits)
        model = {"throughput": {"filterType": "number", "type": "greaterThanOrEqual"}}
        model["throughput"]["filter"] = value  # type: ignore[assignment]
        page.evaluate(f"dash_ag_grid.getApi('trials').setFilterModel({json.dumps(model)})")

    return [
        ("table, another page", 0.3, timed(repeats, lambda: answered(scroll))),
        ("table, filter by throughput", 0.3, timed(repeats, lambda: answered(narrow))),
        ("table, sort by throughput", 0.3, timed(repeats, lambda: answered(header.click))),
    ]


def _measure_news(
    page: Page, address: str, file: Path, repeats: int
) -> tuple[str, float, list[float]]:
    """Measure how soon the page of a running run shows a trial that has just begun."""
    store = open_store(str(file))
    run = store.run("last")
    open_page(page, f"{address}/runs/{run.id}", ".ag-row a")
    shown = "dash_ag_grid.getApi('trials').getDisplayedRowCount()"

    def begin_trial() -> None:
        number = store.run("last").num_trials + 1
        store.start_trial(run.id, number, run.new.baseline, Purpose.SAMPLER, "news", "")
        page.wait_for_function(f"count => {shown} == count", arg=number)

    seconds = timed(repeats, begin_trial)
    store.close()
    return "a new trial shows by itself", 3.0, seconds


def main() -> None:
    """Measure all, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = options.store or Path(folder) / "big.db"
        if not file.exists():
            make_store(file, options.trials)
        with served(file) as address:
            api = f"{address}/api/v1"
            rows = [
                (
                    "API, first page of runs",
                    0.1,
                    timed(options.repeats, lambda: get(f"{api}/runs")),
                ),
                (
                    "API, first page of trials",
                    0.1,
                    timed(options.repeats, lambda: get(f"{api}/runs/1/trials")),
                ),
                ("API, a run", 1.0, timed(options.repeats, lambda: get(f"{api}/runs/1"))),
                *measure_pages(address, file, options.repeats),
            ]
    print(f"{'what':45}  limit (ms)  median (ms)  worst (ms)")
    for name, limit, seconds in rows:
        median, worst = statistics.median(seconds) * 1e3, max(seconds) * 1e3
        print(f"{name:45}  {limit * 1e3:10.0f}  {median:11.0f}  {worst:10.0f}")


if __name__ == "__main__":
    main()
