"""What was typed: when, and what stands behind `--`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from autotune.cli.parsing import absolute
from autotune.errors import UsageError
from autotune.search_space.command import Command, parse_binding
from autotune.search_space.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """A typed command line.

    Attributes:
        started_at: when its budget began, on `time.monotonic()`.
        behind: the words behind `--`; None: there is no `--`.
    """

    started_at: float
    behind: tuple[str, ...] | None

    def target(
        self,
        model: Path | None,
        bind: Sequence[str] | None = None,
        output_flags: Sequence[str] | None = None,
    ) -> Target:
        """Return what to tune: MODEL with the words behind `--` as arguments, or the command.

        Raises:
            UsageError: when there is neither; when options for a command stand beside a MODEL.
            PlanError: for a binding that cannot be read.
        """
        if model is not None:
            if bind or output_flags:
                raise UsageError("--bind and --output-flag are for `-- COMMAND`, not for a MODEL")
            return Target(path=absolute(model), arguments=self.behind or ())
        command = Command(
            argv=self.command(),
            bindings=tuple(map(parse_binding, bind or ())),
            output_flags=tuple(output_flags or ()),
        )
        return Target(path=Path.cwd() / command.script, command=command)

    def command(self) -> tuple[str, ...]:
        """Return the command behind `--`.

        Raises:
            UsageError: when there is none.
        """
        if not self.behind:
            raise UsageError(
                "nothing to run: give your model.py, or `-- COMMAND`, such as "
                "`-- python train.py --epochs 3`"
            )
        return self.behind


def invocation_of(context: typer.Context) -> Invocation:
    """Return what was typed."""
    invocation: Invocation = context.obj
    return invocation


def split(words: Sequence[str]) -> tuple[list[str], tuple[str, ...] | None]:
    """Return the words before the first `--`, and those behind it; None where there is none."""
    if "--" not in words:
        return list(words), None
    position = list(words).index("--")
    return list(words[:position]), tuple(words[position + 1 :])
