import csv
import io
import json
import math
import os
import pty
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from autotune.cli.query import query
from autotune.cli.run import print_end
from autotune.cli.runs import runs
from autotune.cli.show import show
from autotune.cli.trials import trials
from autotune.errors import StoreError, UsageError
from autotune.search_space.bound import Bound
from autotune.search_space.plan import Plan, spell
from autotune.storage.figures import Interval, PlanFigures
from autotune.storage.records import NewRun, RunState, Winner
from autotune.storage.sql import open_store
from autotune.trials.diagnosis import Diagnosis, Finding, FindingKind, Shares
from autotune.trials.result import (
    Measurement,
    Outcome,
    Phase,
    Purpose,
    TrialResult,
    Window,
)

REPOSITORY = Path(__file__).parents[2]
BASELINE = Plan.of({"precision": "fp32", "workers": 0})
BF16 = Plan.of({"precision": "bf16", "workers": 0})
BIGGER = Plan.of({"precision": "fp16", "workers": 0})
LOADED = Plan.of({"precision": "bf16", "workers": 4, "prefetch": 2})

MEASURED = {
    "step_ms": 12.5,
    "step_ms_spread": 0.01,
    "data_wait_share": 0.25,
    "build_s": 0.5,
    "first_step_s": 61.0,
    "warm_up_s": 1.0,
    "measure_s": 2.0,
    "first_loss": 2.5,
    "settled": True,
    "windows": (Window(steps=10, samples=100, seconds=0.5, data_wait_s=0.1),) * 2,
}


def _ok(throughput, memory_gib, last_loss=1.5):
    measurement = Measurement(
        throughput=throughput,
        throughput_low=throughput * 0.99,
        throughput_high=throughput * 1.01,
        last_loss=last_loss,
        peak_reserved_overall_bytes=memory_gib * 2**30,
        **MEASURED,
    )
    return TrialResult(outcome=Outcome.OK, measurement=measurement, total_s=9.0, overhead_s=1.0)


FAILED = TrialResult(
    outcome=Outcome.OOM,
    error="tried to allocate [90 GiB]",
    traceback="model.py, line 3",
    phase=Phase.FIRST_STEP,
    requested_bytes=90 * 2**30,
    log_tail="[bold]not markup[/bold]\n",
)
SLOW = Diagnosis(
    bound=Bound.DATA,
    evidence=("of a step: waiting for batches 60%",),
    advice=("workers: more",),
    shares=Shares(data=0.6, forward=0.3, idle=0.1),
    flops_per_sample=1e9,
    matmul_flops_per_s=1e12,
    mfu=0.1,
    findings=(
        Finding(kind=FindingKind.PRINT, what="prints", advice="stop", file="/m.py", line=3),
    ),
    unknown={"copy": "no device"},
)
FAST = Diagnosis(
    bound=Bound.MEMORY_BANDWIDTH,
    evidence=("of a step: other kernels 60%",),
    shares=Shares(data=0.0, forward=1.0),
    mfu=0.21,
)
WINNER = Winner(
    plan=LOADED,
    kept_baseline=False,
    confirmed=True,
    speedup=Interval(ratio=2.1, low=2.05, high=2.15),
    own=PlanFigures(throughput=210.0, memory_bytes=3 * 2**30),
    baseline=PlanFigures(throughput=100.0, memory_bytes=4 * 2**30),
    how="3 fresh processes each.",
    changes={"precision": "fewer bits", "workers": "they load beside the step"},
    remarks=("Watch the learning rate.",),
)


@pytest.fixture
def file(tmp_path):
    """A store with a run named `mine`: four trials that ended, one in flight, a winner."""
    path = str(tmp_path / "runs.db")
    store = open_store(path)
    run = store.create_run(
        NewRun(
            key="key",
            name="mine",
            workload_path="/home/me/my model.py",
            workload_hash="abc",
            hardware={"device_name": "NVIDIA H200"},
            facts={},
            options={},
            baseline=BASELINE,
            budget_s=900.0,
            driver="host:1:1",
        )
    )
    tried = [
        (BASELINE, Purpose.BASELINE, replace(_ok(100.0, 4), diagnosis=SLOW)),
        (BF16, Purpose.PRESET, _ok(150.0, 2, last_loss=math.nan)),
        (LOADED, Purpose.CONFIRM, replace(_ok(210.0, 3), diagnosis=FAST)),
        (BIGGER, Purpose.LADDER, FAILED),
    ]
    for number, (plan, purpose, result) in enumerate(tried, start=1):
        store.start_trial(run.id, number, plan, purpose, "because", f"{number}.log")
        store.finish_trial(run.id, number, result, 60.0 * number)
    store.start_trial(run.id, 5, BF16, Purpose.SAMPLER, "to see", "5.log")
    store.finish_run(run.id, RunState.DONE, stop_reason="budget", used_s=300.0, winner=WINNER)
    store.close()
    return path


def _call(*args):
    """Run a command as the program would, and return its stdout."""
    app = typer.Typer()
    for command in (runs, trials, show, query):
        app.command(command.__name__)(command)
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    if result.exception is not None:
        raise result.exception
    return result.stdout


@pytest.fixture
def at_width(monkeypatch):
    """Type a command in a terminal that has so many columns; return its lines as they look."""

    def typed(columns, *args):
        leader, follower = pty.openpty()
        code = "import sys; from autotune.cli.main import main; main()"
        environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
        ran = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, args)], stdout=follower, env=environment
        )
        os.close(follower)
        printed = b""
        while chunk := _read(leader):
            printed += chunk
        os.close(leader)
        assert ran.wait() == 0
        plain = re.sub(r"\x1b\[[0-9;]*m", "", printed.decode())
        return [line.rstrip() for line in plain.splitlines()]

    return typed


def _read(terminal):
    """Return what stands there to be read; nothing once no process writes to it any more."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def _strict_json(text):
    def refuse(constant):
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refuse)


def _csv(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_runs_are_listed_with_what_they_concluded(file):
    """A line for each run: its name, both throughputs, and the speed-up with its interval."""
    (line,) = [line for line in _call("runs", "--storage", file).splitlines() if "mine" in line]
    words = "1 mine done my model.py 5 100 210 2.10x (2.05 to 2.15) 5m 00s"
    assert " ".join(line.split()).startswith(words)


def test_runs_as_json_and_csv_say_the_same(file):
    """Programs get the numbers unrounded, under the same names."""
    (run,) = _strict_json(_call("runs", "--storage", file, "--json"))
    (row,) = _csv(_call("runs", "--storage", file, "--csv"))
    assert run["winner"]["speedup"] == float(row["speedup"]) == 2.1
    assert run["name"] == row["name"] == "mine"
    assert run["winner"]["plan"] == LOADED.values
    assert run["winner"]["changes"]["precision"] == {
        "value": "bf16",
        "baseline": "fp32",
        "why": "fewer bits",
    }


def test_an_empty_store_has_no_runs(tmp_path):
    """Before the first run there is a sentence for people and an empty list for programs."""
    open_store(str(tmp_path / "runs.db")).close()
    assert "The store has no run yet" in _call("runs", "--storage", tmp_path / "runs.db")
    assert _strict_json(_call("runs", "--storage", tmp_path / "runs.db", "--json")) == []


@pytest.fixture
def concluded(file):
    """Store another winner of the run, and show the run."""

    def shown(**changes):
        store = open_store(file)
        store.finish_run(
            store.run("mine").id,
            RunState.DONE,
            stop_reason="the budget is used; not tried for lack of time: workers=8; --budget 9m",
            used_s=300.0,
            winner=replace(WINNER, **changes),
        )
        store.close()
        return " ".join(_call("show", "mine", "--storage", file).split())

    return shown


def test_a_winner_that_was_not_confirmed_is_called_so(concluded):
    """Measured in one process, it has a ratio and no interval."""
    out = concluded(confirmed=False, speedup=None)
    assert out.startswith("UNCERTAIN 2.10 times as fast as your baseline (interval not known)")


def test_a_training_time_stands_beside_the_throughput(concluded):
    """Where it was looked for: start-up and the whole of it, for baseline and winner."""
    out = concluded(
        own=replace(WINNER.own, start_s=12.0, train_s=3900.0),
        baseline=replace(WINNER.baseline, start_s=1.5, train_s=7800.0),
    )
    assert "start-up to train" in out
    assert "your baseline 100 4.00 GiB 1.5 s 2h 10m" in out
    assert "winner 210 3.00 GiB 12.0 s 1h 05m" in out


def test_what_the_reader_must_do_is_sorted_by_its_kind(concluded):
    """What the training must change, what to watch out for, and what had no time."""
    out = concluded(
        remarks=("the training changes: batch_size=64", "not confirmed: no time", "numerics: fine")
    )
    assert "your training must change - batch_size=64" in out
    assert "watch out - not confirmed: no time" in out
    assert "notes - numerics: fine" in out
    assert "not tried for lack of time - workers=8 - --budget 9m" in out
    assert "the search ended - the budget is used" in out


def test_trials_are_listed_with_what_they_change(file):
    """A line for each trial: the trial it is a change of, only that change, and how it ended."""
    heads, *lines = _call("trials", "mine", "--storage", file).splitlines()
    assert " ".join(heads.split()) == "# from samples/s times memory outcome what it changes"
    rows = [" ".join(line.split()) for line in lines]
    assert rows == [
        "1 - 100 1.00 4.00 GiB ok your own configuration",
        "2 1 150 1.50 2.00 GiB ok precision=bf16",
        "3 2 210 2.10 3.00 GiB winner workers=4",
        "4 2 - - - out of memory precision=fp16",
        "5 2 - - - in flight measured again",
    ]


@pytest.mark.parametrize("columns", [80, 100, 160])
def test_a_trial_is_one_line_of_whole_words_in_every_terminal(h200, columns, at_width):
    """Only how much of the change is shown depends on the width."""
    whole = _call("trials", "resnet50", "--storage", h200).splitlines()
    lines = at_width(columns, "trials", "resnet50", "--storage", h200)
    assert len(lines) == len(whole)
    assert all(len(line) <= columns for line in lines)
    words = {word for line in whole for word in line.split()}
    shortened = re.compile(r"\+\d+|\d+|changes|change")
    assert all(
        word in words or shortened.fullmatch(word) for line in lines for word in line.split()
    )


@pytest.mark.parametrize("columns", [80, 100, 160])
def test_rows_that_do_not_fit_the_terminal_are_printed_as_lines(h200, columns, at_width):
    """All columns of trials_wide have a name and a value; a narrow table stays a table."""
    sql = "SELECT * FROM trials_wide WHERE run = 'resnet50' ORDER BY number LIMIT 2"
    lines = at_width(columns, "query", sql, "--storage", h200)
    assert sum(line.split()[:1] == ["precision"] for line in lines) == 2
    assert ["pin_memory", "false"] in [line.split() for line in lines]
    narrow = at_width(columns, "query", "SELECT number, run FROM trials_wide", "--storage", h200)
    assert ["number", "run"] in [line.split() for line in narrow]


@pytest.mark.parametrize("columns", [80, 100, 160])
def test_a_stranger_reads_what_won_how_sure_why_and_what_next(h200, columns, at_width):
    """Nothing of it is cut in a narrow terminal."""
    text = " ".join(" ".join(at_width(columns, "show", "translation", "--storage", h200)).split())
    assert text.startswith("CONFIRMED 4.20 times as fast as your baseline (95 % interval 3.76 to")
    assert "rests on: a fresh process of the plan beside the baseline's first one" in text
    assert "batch_size=256 4.08 3.85 to 4.33 4.08" in text
    assert "each within noise" in text
    assert "your training must change - batch_size=256 instead of 16" in text
    assert "a trial was faster and was not measured again: trial 5 with 1,001 samples/s" in text
    assert "…" not in text


@pytest.mark.parametrize(
    "run", ["recommender", "resnet50", "diffusion", "translation", "imagenet"]
)
def test_no_setting_is_broken_in_a_narrow_terminal(h200, run, at_width):
    """Each setting of the winner stands whole in its line, as `--fix` takes it."""
    text = "\n".join(at_width(80, "show", run, "--storage", h200))
    view = _strict_json(_call("show", run, "--storage", h200, "--json"))
    shares = [share["settings"] for share in view["why"]["shares"]]
    settings = [f"{k}={spell(v)}" for share in shares for k, v in share.items()]
    assert all(setting in text.split() for setting in settings)
    assert "…" not in text


def test_the_page_shows_what_the_command_prints(h200, at_width):
    """The verdict in the docs is that of a real run, as a terminal of 100 columns shows it."""
    lines = at_width(100, "show", "resnet50", "--storage", h200)
    start = lines.index(next(line for line in lines if line.startswith("CONFIRMED")))
    shown = "\n".join(lines[start : lines.index("notes") - 1])
    assert f"```text\n{shown}\n```" in (REPOSITORY / "docs" / "answer.md").read_text()


def test_all_runs_fit_a_terminal(h200, at_width):
    """Columns are left out where they do not fit; the name and the speed-up stay."""
    for columns in (60, 80, 100, 160):
        lines = at_width(columns, "runs", "--storage", h200)
        (line,) = [line for line in lines if "resnet50" in line.split()]
        assert "12.18x (7.99 to 18.56)" in line
        assert max(map(len, lines)) <= columns


def test_chosen_columns_are_shown_in_their_order(file):
    """`--columns` takes columns of trials_wide, for people and programs."""
    args = ["trials", "mine", "--storage", file, "--columns", "throughput,number"]
    assert ["150", "2"] in [line.split() for line in _call(*args).splitlines()]
    assert _strict_json(_call(*args, "--json"))[1] == {"throughput": 150.0, "number": 2}
    assert list(_csv(_call(*args, "--csv"))[0]) == ["throughput", "number"]
    with pytest.raises(UsageError, match=r"--columns: no column 'nmber'; did you mean 'number'"):
        _call("trials", "mine", "--storage", file, "--columns", "nmber")


def test_lines_in_a_pipe_end_where_their_text_does(file):
    """Nobody wants blanks up to the end of the longest one, nor whole reasons in each line."""
    for command in (["trials", "mine"], ["show", "mine"]):
        lines = _call(*command, "--storage", file).splitlines()
        assert lines
        assert not any(line.endswith(" ") for line in lines)
        assert max(map(len, lines)) < 200


def test_trials_can_be_chosen_and_sorted(file):
    """`--where` and `--sort` work on the columns of trials_wide."""
    args = ["trials", "last", "--storage", file, "--json"]
    chosen = _strict_json(_call(*args, "--where", "precision = 'bf16'", "--sort", "throughput"))
    assert [trial["number"] for trial in chosen] == [3, 2, 5]
    turned = _strict_json(_call(*args, "--sort", "-number"))
    assert [trial["number"] for trial in turned] == [5, 4, 3, 2, 1]


def test_trials_as_json_hold_no_nan(file):
    """Unknown numbers are null, and a trial in flight has no outcome."""
    found = _strict_json(_call("trials", "mine", "--storage", file, "--json"))
    assert found[1]["measurement"]["last_loss"] is None
    assert found[2]["measurement"]["memory_bytes"] == 3 * 2**30
    assert found[2]["changes"]["workers"] == {"value": 4, "baseline": 0}
    assert "prefetch" not in found[2]["changes"]
    assert found[3]["measurement"] is None
    assert (found[4]["outcome"], found[4]["finished_at"]) == (None, None)


def test_trials_as_csv_have_a_column_per_knob(file):
    """A spreadsheet gets plan and measurement side by side."""
    rows = _csv(_call("trials", "mine", "--storage", file, "--csv"))
    assert [row["precision"] for row in rows] == ["fp32", "bf16", "bf16", "fp16", "bf16"]
    assert rows[2]["throughput"] == "210.0"
    assert rows[3]["throughput"] == ""


def test_a_run_is_shown_with_its_conclusion(file):
    """The verdict on top, then the figures, why, remarks, and facts about the run."""
    text = " ".join(_call("show", "mine", "--storage", file).split())
    verdict = "CONFIRMED 2.10 times as fast as your baseline (95 % interval 2.05 to 2.15)"
    assert text.startswith(f"{verdict} rests on: 3 fresh processes each")
    assert "your baseline 100 4.00 GiB" in text
    assert "winner 210 3.00 GiB" in text
    assert re.search(r"precision=bf16 1\.\d\d .* fewer bits", text)
    assert "workers=4 1.4" in text
    assert "Watch the learning rate." in text
    assert "trials 5: 3 ok, 1 out of memory, 1 in flight" in text
    assert "the search ended - budget" in text
    assert "objective the most samples per second" in text
    shown = _strict_json(_call("show", "mine", "--storage", file, "--json"))
    assert (shown["verdict"]["word"], shown["verdict"]["speedup"]) == ("CONFIRMED", 2.1)
    assert math.prod(share["factor"] for share in shown["why"]["shares"]) == pytest.approx(2.1)


def test_what_limits_baseline_and_winner_stands_side_by_side(file):
    """The bound, the parts of a step, the utilisation, and the user's own lines."""
    text = " ".join(_call("show", "mine", "--storage", file).split())
    assert "bound by data memory bandwidth" in text
    assert "waiting for data (%) 60.0 0.0" in text
    assert "idle device (%) 10.0 -" in text
    assert "model FLOPs utilisation (%) 10.0 21.0" in text
    assert "in your code, found in the baseline - print" in text
    shown = _strict_json(_call("show", "mine", "--storage", file, "--json"))["diagnoses"]
    assert shown["baseline"]["shares"]["data"] == 0.6
    assert shown["winner"]["bound"] == "memory_bandwidth"


def test_a_diagnosed_trial_is_shown_with_its_evidence(file):
    """What is unknown says why, and what to do names the knob."""
    text = " ".join(_call("show", "mine", "1", "--storage", file).split())
    assert "bound by data" in text
    assert "of a step: waiting for batches 60%" in text
    assert "copying to the device - no device" in text
    assert "workers: more" in text
    (found,) = _strict_json(_call("trials", "mine", "--storage", file, "--json"))[0]["diagnosis"][
        "findings"
    ]
    assert (found["file"], found["line"]) == ("/m.py", 3)


def test_values_are_shown_as_fix_takes_them(file):
    """A boolean is `true`, not Python's `True`, in tables and in a trial's changes."""
    store = open_store(file)
    run = store.run("mine")
    pinned = Plan.of({**BF16.values, "pin_memory": True})
    store.start_trial(run.id, 6, pinned, Purpose.SAMPLER, "because", "logs/6.log")
    store.finish_trial(run.id, 6, _ok(120.0, 3), used_s=90.0)
    store.close()
    listed = _call("trials", "mine", "--storage", file)
    listed += _call("trials", "mine", "--storage", file, "--csv")
    listed += _call("query", "SELECT number, pin_memory FROM trials_wide", "--storage", file)
    shown = _call("show", "mine", "6", "--storage", file)
    assert "pin_memory=true" in listed
    assert ["pin_memory", "-", "true"] in [line.split() for line in shown.splitlines()]
    assert "True" not in listed + shown


def test_the_front_holds_what_nothing_beats(file):
    """A slower trial is on the front only if it needs less memory."""
    shown = _strict_json(_call("show", "mine", "--storage", file, "--json"))
    assert [trial["number"] for trial in shown["front"]] == [3, 2]
    assert [trial["is_winner"] for trial in shown["front"]] == [True, False]
    assert shown["run"]["objective"] == {"name": "throughput"}
    text = _call("show", "mine", "--storage", file)
    front = " ".join(text.partition("no other trial is faster with less memory")[2].split())
    assert "3 2 210 2.10 3.00 GiB winner" in front
    assert "2 1 150 1.50 2.00 GiB ok" in front
    assert shown["outcomes"] == {"ok": 3, "oom": 1, "in flight": 1}
    assert shown["run"]["winner"]["confirmed"] is True


def test_a_failed_trial_is_shown_with_what_the_user_needs(file):
    """The error, the traceback, the end of the log as it was printed, and how to try again."""
    text = _call("show", "mine", "4", "--storage", file)
    assert "tried to allocate [90 GiB] (in first_step)" in text
    assert "90.00 GiB" in text
    assert "model.py, line 3" in text
    assert "[bold]not markup[/bold]" in text
    assert f"autotune export mine --trial 4 -o trial-4.yaml --storage {file}" in text
    assert "autotune measure '/home/me/my model.py' --plan trial-4.yaml" in text


def test_a_trial_whose_plan_may_not_win_says_why(file):
    """It was faster than the baseline, and ran out of memory when it was measured again."""
    store = open_store(file)
    run = store.run("mine")
    for number, result in ((6, _ok(300.0, 3)), (7, FAILED)):
        purpose = Purpose.PRESET if number == 6 else Purpose.CONFIRM
        store.start_trial(run.id, number, BIGGER, purpose, "because", "6.log")
        store.finish_trial(run.id, number, result, used_s=90.0)
    store.close()
    shown = " ".join(_call("show", "mine", "6", "--storage", file).split())
    assert "may not win out of memory when it ran again (tried to allocate [90 GiB])" in shown
    (line,) = [
        line
        for line in _call("trials", "mine", "--storage", file).splitlines()
        if line.split()[0] == "6"
    ]
    assert "may not win" in line


def test_a_measured_trial_is_shown_with_its_windows(file):
    """The steady state, the phases and the raw series."""
    text = " ".join(_call("show", "mine", "3", "--storage", file).split())
    assert "throughput 210 samples/s (207.9 to 212.1)" in text
    assert "first step 1m 01s" in text
    assert "windows 2 with 20 steps in 2.0 s, 200 to 200 samples/s, settled" in text
    detail = _strict_json(_call("show", "mine", "3", "--storage", file, "--json"))
    assert [window["throughput"] for window in detail["windows"]] == [200.0, 200.0]
    assert detail["measure_again"][1].endswith("--plan trial-3.yaml")


def test_an_unknown_trial_is_refused(file):
    """A number that the run does not have names the command that lists them."""
    with pytest.raises(UsageError, match=r"no trial 77.*`autotune trials mine` lists them"):
        _call("show", "mine", "77", "--storage", file)


def test_sql_is_answered_as_table_json_and_csv(file):
    """One question, three forms."""
    sql = "SELECT precision, max(throughput) AS best FROM trials_wide GROUP BY 1 ORDER BY 2"
    assert "bf16" in _call("query", sql, "--storage", file)
    assert _strict_json(_call("query", sql, "--storage", file, "--json")) == [
        {"precision": "fp16", "best": None},
        {"precision": "fp32", "best": 100.0},
        {"precision": "bf16", "best": 210.0},
    ]
    assert _csv(_call("query", sql, "--storage", file, "--csv"))[2]["best"] == "210.0"


def test_a_cut_answer_says_so_beside_the_results(file):
    """It is told on stderr, not among the results."""
    code = "import sys; from autotune.cli.query import query; query(sys.argv[1], "
    code += "storage=sys.argv[2], max_rows=1, as_csv=True)"
    command = [sys.executable, "-c", code, "SELECT number FROM trials", file]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == "number\n1\n"
    assert ran.stderr == "only the first 1 rows are shown; see --max-rows\n"


def test_two_forms_at_once_are_refused(file):
    """`--json --csv` cannot both be had."""
    with pytest.raises(UsageError, match="--json and --csv exclude each other"):
        _call("runs", "--storage", file, "--json", "--csv")


@pytest.mark.parametrize("args", [["runs"], ["trials", "x"], ["show", "x"], ["query", "SELECT 1"]])
def test_reading_commands_make_no_store(tmp_path, args):
    """A store that is not there stays away, and the message names the command that makes one."""
    with pytest.raises(StoreError, match=r"there is no store .*`autotune run MODEL` creates one"):
        _call(*args, "--storage", tmp_path / "none.db")
    assert list(tmp_path.iterdir()) == []


def test_reading_commands_import_neither_torch_nor_ray():
    """Looking at results is quick, and works where neither is installed."""
    code = (
        "import sys; from autotune.cli import query, runs, show, trials;"
        "print({'torch', 'ray', 'optuna', 'alembic', 'psycopg'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"


def test_the_commands_after_a_run_work_when_typed(tmp_path, file, capsys):
    """They name the store that the run had, and paths as a shell reads them."""
    url = f"sqlite:///{tmp_path}/my runs.db"
    (tmp_path / "runs.db").rename(tmp_path / "my runs.db")
    store = open_store(url)
    run = store.run("last")
    print_end(run, store.trials(run.id), Path("my plan.yaml"), url)
    print_end(run, store.trials(run.id), Path("plan.yaml"), None)
    store.close()
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    shows, measures = (
        [shlex.split(line)[1:] for line in lines if line.startswith(f"autotune {command}")]
        for command in ("show", "measure")
    )
    assert "mine (done)" in _call(*shows[0])
    assert shows[1] == ["show", "mine"]
    assert measures[0] == ["measure", "/home/me/my model.py", "--plan", "my plan.yaml"]
