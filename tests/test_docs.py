"""What README.md, CONTRIBUTING.md and docs/ say: their snippets run, their names exist.

A snippet's lines run unless a mark before its fence says why not:
<!-- not run `start of the lines`: the reason -->
"""

import ast
import re
import shlex
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
import typer

import autotune
from autotune.cli.invocation import split
from autotune.cli.main import app
from autotune.search_space.plan import Plan
from autotune.storage.figures import Interval, PlanFigures
from autotune.storage.records import NewRun, RunState, Winner
from autotune.storage.sql import open_store
from autotune.trials.result import Measurement, Outcome, Purpose, TrialResult
from autotune.trials.workload import load_workload
from tests.trials.conftest import TINY

REPOSITORY = Path(__file__).parents[1]
PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]
FENCE = re.compile(r"((?:^<!-- .*? -->\n)*)^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"<!-- not run `([^`]+)`: (.+?) -->")
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
MESSAGES = re.findall(
    r"^### `(.+)`$", (REPOSITORY / "docs" / "troubleshooting.md").read_text(), re.MULTILINE
)

COMMANDS = typer.main.get_command(app).commands
BASELINE = Plan.of({"precision": "fp32", "workers": 0})
FASTER = Plan.of({"precision": "fp32", "workers": 0, "optimizer_impl": "foreach"})


@dataclass(frozen=True, kw_only=True)
class Snippet:
    """What stands between two fences."""

    place: str
    language: str
    text: str
    marks: tuple[tuple[str, str], ...]

    @cached_property
    def typed(self):
        """The words of each command line."""
        lines = [line[2:] for line in self.text.splitlines() if line.startswith("$ ")]
        return [shlex.split(line, comments=True) for line in lines]

    @property
    def run(self):
        """The command lines that no mark keeps from being run."""
        starts = tuple(start for start, _ in self.marks)
        return [words for words in self.typed if not shlex.join(words).startswith(starts)]


def snippets(*languages, where=lambda snippet: True):
    """Make a test's parameters of the snippets in these languages, named after their places."""
    found = [snippet for page in PAGES for snippet in read(page)]
    chosen = [snippet for snippet in found if snippet.language in languages and where(snippet)]
    return pytest.mark.parametrize("snippet", chosen, ids=lambda snippet: snippet.place)


def read(page):
    text = page.read_text()
    for match in FENCE.finditer(text):
        marks, language, code = match.groups()
        number = text.count("\n", 0, match.start(2)) + 1
        yield Snippet(
            place=f"{page.relative_to(REPOSITORY)}:{number}",
            language=language,
            text=code,
            marks=tuple(MARK.findall(marks)),
        )


def inline_code():
    """Return the words of each piece of code inside the pages' sentences."""
    texts = [FENCE.sub("", page.read_text()) for page in PAGES]
    return [code.split() for text in texts for code in INLINE.findall(text)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder that the pages speak of: a workload, a store with a finished run, its plan."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(TINY)
    (tmp_path / "plan.yaml").write_text("plan: {precision: fp32, optimizer_impl: foreach}\n")
    fill_store()
    return tmp_path


def fill_store():
    store = open_store(None)
    run = store.create_run(
        NewRun(
            key="key",
            name=None,
            workload_path="model.py",
            workload_hash="hash",
            hardware={"device_name": "cpu"},
            facts={},
            options={},
            baseline=BASELINE,
            budget_s=900.0,
            driver="host:1:1",
        )
    )
    for number in range(1, 8):
        plan, purpose = (BASELINE, Purpose.BASELINE) if number == 1 else (FASTER, Purpose.CONFIRM)
        store.start_trial(run.id, number, plan, purpose, "because", f"{number}.log")
        store.finish_trial(run.id, number, measured(100.0 + number), 10.0 * number)
    store.finish_run(run.id, RunState.DONE, stop_reason="budget", used_s=70.0, winner=WINNER)
    store.close()


def measured(throughput):
    measurement = Measurement(
        throughput=throughput,
        throughput_low=throughput * 0.99,
        throughput_high=throughput * 1.01,
        step_ms=10.0,
        step_ms_spread=0.01,
        data_wait_share=0.0,
        build_s=0.5,
        first_step_s=0.5,
        warm_up_s=0.5,
        measure_s=2.0,
        first_loss=2.0,
        last_loss=1.0,
        settled=True,
    )
    return TrialResult(outcome=Outcome.OK, measurement=measurement, total_s=5.0)


WINNER = Winner(
    plan=FASTER,
    kept_baseline=False,
    confirmed=True,
    speedup=Interval(ratio=1.06, low=1.05, high=1.07),
    own=PlanFigures(throughput=107.0),
    baseline=PlanFigures(throughput=101.0),
    how="two rounds",
)


@snippets("console", where=lambda snippet: snippet.run)
def test_commands_run(snippet, folder, type_command, quick_trials):
    """Each command line does its work, in the order of the page, and complains about nothing."""
    for program, *words in snippet.run:
        assert program == "autotune", "only autotune's commands can be run here; mark the others"
        status, _, err = type_command(program, *words)
        assert status == 0, err


@snippets("console")
def test_marks_are_needed(snippet):
    """A mark speaks of lines that are there; one that was left behind would hide nothing."""
    for start, reason in snippet.marks:
        assert any(shlex.join(words).startswith(start) for words in snippet.typed), start
        assert reason


@snippets("console")
def test_command_lines_are_understood(snippet):
    """Each command, option and value of a command line exists, run here or not."""
    for program, *words in snippet.typed:
        if program == "autotune":
            ours, _ = split(words)  # what stands behind `--` is a command of the user's
            COMMANDS[ours[0]].make_context(ours[0], ours[1:])
        elif program == "make":
            assert words[0] in targets()


def targets():
    return re.findall(r"^(\w+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)


def test_what_sentences_name_exists():
    """Commands, options and make's targets inside sentences are real ones."""
    for program, *words in inline_code():
        if program == "autotune" and words:
            ours, _ = split(words)
            assert ours[0] in COMMANDS
            assert option_names(ours) <= options_of(ours[0])
        elif program == "make" and words:
            assert words[0] in targets()
        elif program.startswith("--") and program != "--":
            assert {program} <= {name for command in COMMANDS for name in options_of(command)}


def option_names(words):
    return {word.partition("=")[0] for word in words if word.startswith("-")}


def options_of(command):
    return {name for parameter in COMMANDS[command].params for name in parameter.opts} | {"--help"}


def test_every_command_is_in_the_docs():
    """Nobody has to guess that a command is there."""
    page = (REPOSITORY / "docs" / "commands.md").read_text()
    assert re.findall(r"^\| `autotune (\w+)`", page, re.MULTILINE) == list(COMMANDS)


def test_the_readme_is_short():
    """Whoever opens the repository sees all of it; the rest is in docs/."""
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 120


@pytest.fixture(scope="module")
def texts_of_the_program():
    """The texts in autotune's code, with `…` where a value is put in."""
    roots = ("autotune", "search_space", "storage", "trials")
    files = [path for root in roots for path in (REPOSITORY / root).rglob("*.py")]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text()))]
    return "\n".join(filter(None, map(text_of, nodes)))


def text_of(node):
    if isinstance(node, ast.JoinedStr):
        return "".join(p.value if isinstance(p, ast.Constant) else "…" for p in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


@pytest.mark.parametrize("message", MESSAGES)
def test_messages_are_the_programs_own(message, texts_of_the_program):
    """Whoever looks for a message finds it: the program says it in these words."""
    words = r"[^\n]*".join(re.escape(part) for part in message.split("…"))
    assert re.search(words, texts_of_the_program)


@snippets("python")
def test_python_runs(snippet, folder):
    """Python beside a workload and its plan runs as it stands; a model.py keeps the contract."""
    if "def build_model" not in snippet.text:
        exec(compile(snippet.text, snippet.place, "exec"), users_training())
        return
    imports = "from torch import Tensor, nn\nfrom torch.utils.data import Dataset\n"
    (folder / "contract.py").write_text(imports + snippet.text)
    load_workload(folder / "contract.py")


def users_training():
    """Return what a training of the reader's own has by name."""
    import torch

    model = torch.nn.Linear(4, 2)
    data = torch.utils.data.TensorDataset(torch.randn(8, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    return {
        "model": model,
        "optimizer": optimizer,
        "loader": torch.utils.data.DataLoader(data, batch_size=2),
    }


@snippets("yaml", "json", "toml")
def test_plan_files_load(snippet, folder):
    """A plan file of the pages is a plan file."""
    path = folder / f"shown.{snippet.language}"
    path.write_text(snippet.text)
    assert autotune.load_plan(path).values


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    """Every relative link is to a file or folder of the repository."""
    broken = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert broken == []
