"""Finds graph breaks: where the compiler cannot take the forward pass as one graph, and why."""

import contextlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import torch

from autotune.search_space.knobs import is_compiled
from autotune.search_space.plan import Plan
from autotune.trials.applying.compiler import compile_model
from autotune.trials.applying.step import Step
from autotune.trials.diagnosis import Finding, FindingKind
from autotune.trials.feed import Feed
from autotune.trials.profiling.users_code import is_users_file

# What `TORCH_LOGS=graph_breaks` shows; torch's own tests hold it to this form.
_LOGGER = "torch._dynamo.symbolic_convert.__graph_breaks"
_MESSAGE = re.compile(
    r"Graph break.*? in user code at (?P<file>.+):(?P<line>\d+)\nGraph Break Reason: (?P<why>.*)",
    re.DOTALL,
)
_EXPLANATION = re.compile(r"^\s*Explanation: (.+)$", re.MULTILINE)
_COMPILED = Plan.of({"compile_mode": "default"})


def has_broken_graphs() -> bool:
    """Whether the compiler has met graph breaks in this process."""
    from torch._dynamo.utils import counters  # noqa: PLC0415  seconds that eager plans need not wait

    return bool(counters["graph_break"])


def graph_breaks(step: Step, feed: Feed, folder: Path) -> tuple[Finding, ...]:
    """Trace the forward pass anew, without generating code, and return its graph breaks.

    A plan that does not compile is treated as if it compiled the whole model. The step cannot be
    trained with afterwards.

    Args:
        step: of one rank.
        feed: its batches.
        folder: of the workload; a break in a library is reported at the library's own line.
    """
    if not is_compiled(step.plan):
        compile_model(step.model, _COMPILED)
    torch.compiler.reset()
    batch = step.move(feed.next())
    with _messages() as messages, torch.compiler.set_stance(force_backend="eager"):
        step.loss(batch)
    breaks = dict.fromkeys(found for text in messages if (found := _parsed(text)))
    return tuple(_finding(*found, folder) for found in breaks)


@contextlib.contextmanager
def _messages() -> Iterator[list[str]]:
    """Collect the compiler's messages about graph breaks, instead of showing them."""
    logger, handler = logging.getLogger(_LOGGER), _Collector()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield handler.texts
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message."""
        self.texts.append(record.getMessage())


def _parsed(text: str) -> tuple[str, int, str] | None:
    match = _MESSAGE.search(text)
    if match is None:
        return None
    explained = _EXPLANATION.search(match["why"])
    why = explained[1] if explained else match["why"].strip().splitlines()[0]
    return match["file"], int(match["line"]), why.strip()


def _finding(file: str, line: int, why: str, folder: Path) -> Finding:
    whose = "" if is_users_file(file, folder.resolve()) else ", in a library"
    return Finding(
        kind=FindingKind.GRAPH_BREAK,
        what=f"the compiler has to break its graph here{whose}: {why}",
        advice="what lies on both sides of it cannot be fused; move it out of forward",
        file=file,
        line=line,
    )
