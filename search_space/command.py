"""A command that trains, as the user types it, and how a plan changes its arguments."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from autotune.errors import PlanError
from autotune.search_space.plan import Plan

BATCH_FLAGS = (
    "--per_device_train_batch_size",
    "--per-device-train-batch-size",
    "--train_batch_size",
    "--train-batch-size",
    "--batch_size",
    "--batch-size",
    "--per_gpu_train_batch_size",
    "--micro_batch_size",
    "--micro-batch-size",
    "--batchSize",
    "--batchsize",
    "--train_bs",
    "--bsz",
    "--bs",
    "--batch",
    "-b",
    "-bs",
)
"""Names that scripts give to the samples of a batch; one is bound where the loader agrees."""
ACCUMULATION_FLAGS = (
    "--gradient_accumulation_steps",
    "--gradient-accumulation-steps",
    "--accumulate_grad_batches",
    "--accum_steps",
    "--accum-steps",
    "--grad_accum",
    "--grad-accum",
    "--grad_accum_steps",
    "--grad-accum-steps",
    "--gradient_accumulate_every",
    "--gradient_accumulation",
)
"""Names that scripts give to the backward passes of a step."""
OUTPUT_FLAGS = (
    "--output_dir",
    "--output-dir",
    "--logging_dir",
    "--log_dir",
    "--log-dir",
    "--save_dir",
    "--save-dir",
    "--default_root_dir",
)
"""Names that scripts give to folders which they write to."""
_MADE_LOADER = re.compile(r"DataLoader\(batch_size=(\d+), sampler=(\w+)\)")
_BINDABLE = ("batch_size", "accumulation")
_ARGUMENT = re.compile(r"[-+]{0,2}[A-Za-z_][\w.-]*")
_NOT_OF_TRAINING = re.compile("val|test")  # also in `eval`


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeLoader:
    """How a script makes a DataLoader; plans give their batch to those made as the training's is.

    Attributes:
        batch_size: that the script makes it with.
        sampler: the name of the class that draws its samples.
    """

    batch_size: int
    sampler: str

    def __str__(self) -> str:
        return f"DataLoader(batch_size={self.batch_size}, sampler={self.sampler})"

    @classmethod
    def parse(cls, text: str) -> "MadeLoader | None":
        """Return what `str` gave, None for any other text."""
        found = _MADE_LOADER.fullmatch(text)
        return found and cls(batch_size=int(found[1]), sampler=found[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command line that trains with PyTorch, run as it is.

    Attributes:
        argv: the program and its arguments.
        bindings: knobs that arguments of the command set, each with the argument's name; for the
            batch it may be a `MadeLoader` as text.
        output_flags: further arguments that name a folder to write to.
    """

    argv: tuple[str, ...]
    bindings: tuple[tuple[str, str], ...] = ()
    output_flags: tuple[str, ...] = ()

    @property
    def script(self) -> str:
        """The Python file or module that the command runs, else its program."""
        for position, word in enumerate(self.argv):
            if word == "-m" and position + 1 < len(self.argv):
                following = self.argv[position + 1 :]
                # A launcher is itself a module: `python -m torch.distributed.run train.py`.
                return next((w for w in following if w.endswith(".py")), following[0])
            if word.endswith(".py"):
                return word
        return self.argv[0]

    def flag_of(self, knob: str) -> str | None:
        """Return the argument that sets a knob, such as `--batch-size`; None where none does."""
        return dict(self.bindings).get(knob)

    @property
    def loaders(self) -> MadeLoader | None:
        """How the script makes the loaders that get a plan's batch; None: an argument sets it."""
        return MadeLoader.parse(self.flag_of("batch_size") or "")

    def batch_sizes(self, known: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the values of arguments with the names that scripts give to a batch.

        Args:
            known: values of arguments that the script has, beside those that are typed.
        """
        flags = (*BATCH_FLAGS, *self.named_like(BATCH_FLAGS, known=known))
        given = (self.value_of(flag) or str(known.get(flag, "")) for flag in flags)
        return tuple(int(text) for text in given if text.isdecimal())

    def bound(self, knob: str, flag: str) -> "Command":
        """Return the command with one more binding."""
        return replace(self, bindings=(*self.bindings, (knob, flag)))

    def value_of(self, flag: str) -> str | None:
        """Return the argument's value in the command line, None where it is not given."""
        for position, word in enumerate(self.argv):
            if word == flag and position + 1 < len(self.argv):
                return self.argv[position + 1]
            if word.startswith(f"{flag}="):
                return word.removeprefix(f"{flag}=")
        return None

    def runs(self, program: str) -> bool:
        """Whether a Python program with this `sys.argv[0]` gets the words of the command."""
        path = PurePath(program)
        module = (path.parent if path.stem == "__main__" else path.with_suffix("")).parts
        return any(
            PurePath(word).name == path.name or _is_module(word, module) for word in self.argv
        )

    def named_like(self, flags: Iterable[str], known: Iterable[str] = ()) -> Sequence[str]:
        """Return the arguments with one of these names at the end of a dotted one of their own.

        Args:
            flags: the names.
            known: arguments that the script has, beside those that are typed.
        """
        names = {flag.lstrip("-") for flag in flags if flag.startswith("--")}
        typed = (w.partition("=")[0] for w in self.argv if "=" in w or w.startswith("--"))
        found = (name for name in (*typed, *known) if _ARGUMENT.fullmatch(name))
        return [
            name
            for name in found
            if name.lstrip("-+").rpartition(".")[2] in names and not _NOT_OF_TRAINING.search(name)
        ]

    def under(self, plan: Plan) -> tuple[str, ...]:
        """Return the command line under a plan: with the values of the knobs that it binds."""
        argv = self.argv
        for knob, flag in self.bindings:
            if knob in plan and MadeLoader.parse(flag) is None:
                argv = _with_argument(argv, flag, str(plan[knob]))
        return argv

    def writing_below(self, folder: Path, argv: Sequence[str]) -> tuple[str, ...]:
        """Return `argv` with arguments that name output folders by absolute paths set to `folder`.

        Relative ones are in the folder of the trial already.
        """
        for flag in (*OUTPUT_FLAGS, *self.output_flags):
            given = replace(self, argv=tuple(argv)).value_of(flag)
            is_elsewhere = given is not None and PurePath(given).is_absolute()
            if is_elsewhere or (given is None and flag in self.output_flags):
                name = PurePath(given or "output").name or "output"
                argv = _with_argument(argv, flag, str(folder / name))
        return tuple(argv)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Command":
        """Build from the plain values of `dataclasses.asdict`."""
        return cls(
            argv=tuple(values["argv"]),
            bindings=tuple((knob, flag) for knob, flag in values["bindings"]),
            output_flags=tuple(values["output_flags"]),
        )


def parse_binding(text: str) -> tuple[str, str]:
    """Return the knob and the argument of `batch_size=--batch-size`.

    Raises:
        PlanError: when it has another form, or the knob cannot be bound.
    """
    knob, equals, flag = text.partition("=")
    if not equals or not _ARGUMENT.fullmatch(flag) or knob not in _BINDABLE:
        raise PlanError(
            f"--bind {text}: write KNOB=ARGUMENT of your command, such as batch_size=--batch-size "
            f"or batch_size=train.batch_size (knobs: {', '.join(_BINDABLE)})"
        )
    return knob, flag


def _is_module(word: str, module: Sequence[str]) -> bool:
    parts = word.split(".")
    return len(parts) <= len(module) and parts == list(module[-len(parts) :])


def _with_argument(argv: Sequence[str], flag: str, value: str) -> tuple[str, ...]:
    """Return the command line with an argument replaced, or added at its end.

    Parsers of long names take `NAME=VALUE`; some of them, as Hydra's, take nothing else.
    """
    words = list(argv)
    for position, word in enumerate(words):
        if word == flag and position + 1 < len(words):
            words[position + 1] = value
            return tuple(words)
        if word.startswith(f"{flag}="):
            words[position] = f"{flag}={value}"
            return tuple(words)
    is_short = flag.startswith("-") and not flag.startswith("--")
    return (*words, flag, value) if is_short else (*words, f"{flag}={value}")
