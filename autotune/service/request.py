"""What a job is asked to do: the workload, the options of `autotune run`, and where it runs."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import PurePosixPath
from typing import Any, Self

from autotune.agent.request import parse_budget
from autotune.errors import UsageError, nearest

OPTIONS: dict[str, type] = {
    "objective": str,
    "train_samples": str,
    "min_throughput": str,
    "target": float,
    "trials": int,
    "gpus_per_trial": int,
    "knobs": str,
    "fix": list,
    "allow": list,
    "numerics": str,
    "max_memory": str,
    "seed": int,
    "bind": list,
    "output_flag": list,
}
"""The options of `autotune run` that a job may have, with `_` for `-`; a list may be repeated."""
PRIORITIES = range(-10, 11)
MAX_NAME = 100  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What a job is asked to do.

    Attributes:
        model: the path of model.py inside of the workload's folder; None: there is a `command`.
        command: any command that trains, typed in the workload's folder.
        arguments: what `sys.argv` of `model` holds.
        folder: the workload's folder, as the server sees it; None: an archive comes along.
        budget: of the run, such as `2h`.
        options: of `autotune run`, by their names in `OPTIONS`.
        python: the interpreter to run with, as the server sees it; None: the server's choice.
        name: for people.
        priority: jobs of a larger one start first.
        devices: how many the job holds; None: as many as a trial needs.
        key: chosen by the sender; a job that is sent again with its key is not queued twice.
    """

    model: str | None = None
    command: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    folder: str | None = None
    budget: str = "15m"
    options: dict[str, Any] = field(default_factory=dict)
    python: str | None = None
    name: str | None = None
    priority: int = 0
    devices: int | None = None
    key: str | None = None

    @classmethod
    def from_dict(cls, document: Any) -> Self:
        """Build from JSON.

        Raises:
            UsageError: when something is missing, unknown or of the wrong type.
        """
        if not isinstance(document, dict):
            raise UsageError('a job is a JSON object, such as {"model": "model.py"}')
        names = [one.name for one in fields(cls)]
        for name in document:
            if name not in names:
                raise UsageError(f"a job has no field {name!r}{nearest(name, names)}")
        words = {name: _words(name, document.get(name)) for name in ("command", "arguments")}
        request = cls(**{**document, **words, "options": document.get("options") or {}})
        request.check()
        return request

    def to_dict(self) -> dict[str, Any]:
        """Return the same as JSON."""
        return {**asdict(self), "command": list(self.command), "arguments": list(self.arguments)}

    @property
    def budget_s(self) -> float:
        """The budget in seconds."""
        return parse_budget(self.budget)

    def check(self) -> None:
        """Check all that can be checked without the workload.

        Raises:
            UsageError: for the first thing that is wrong.
        """
        for name in ("model", "folder", "python", "name", "key"):
            _check_type(name, getattr(self, name), str)
        for name in ("priority", "devices"):
            _check_type(name, getattr(self, name), int)
        _check_type("budget", self.budget, str)
        _ = self.budget_s
        self._check_workload()
        self._check_places()
        if self.priority not in PRIORITIES:
            raise UsageError(
                f"priority {self.priority} is out of range; use {PRIORITIES[0]} (last) to "
                f"{PRIORITIES[-1]} (first)"
            )
        if self.devices is not None and self.devices < 1:
            raise UsageError(f"a job of {self.devices} devices cannot run; use 1 or more")
        if self.name is not None and not 0 < len(self.name) <= MAX_NAME:
            raise UsageError(f"a name has 1 to {MAX_NAME} characters, not {len(self.name)}")
        check_options(self.options)

    def _check_workload(self) -> None:
        if (self.model is None) == (not self.command):
            raise UsageError("a job has a `model`, such as model.py, or a `command`: one of both")
        if self.model is not None:
            path = PurePosixPath(self.model)
            if path.is_absolute() or ".." in path.parts or path.suffix != ".py":
                raise UsageError(
                    f"model {self.model!r} is no Python file inside of the workload's folder; "
                    "name it from there, such as model.py"
                )

    def _check_places(self) -> None:
        for name in ("folder", "python"):
            place = getattr(self, name)
            if place is not None and not os.path.isabs(place):  # noqa: PTH117  a path of the server's
                raise UsageError(f"{name} {place!r} is no absolute path of the server's")

    def run_words(self) -> list[str]:
        """Return the command line of this job's run, without `autotune run` itself.

        Values stand behind `=`, so that none is taken for an option.
        """
        options = [f"--budget={self.budget}"]
        for name, value in self.options.items():
            flag = f"--{name.replace('_', '-')}"
            values = value if isinstance(value, list) else [value]
            options += [f"{flag}={one}" for one in values]
        # `./` keeps a file whose name begins with a dash from being an option.
        model = [] if self.model is None else [f"./{self.model}"]
        behind = self.command or self.arguments
        return [*model, *options, *(["--", *behind] if behind else [])]


def check_options(options: Mapping[str, Any]) -> None:
    """Check names and types of the options of `autotune run`.

    Raises:
        UsageError: for the first that is unknown or of the wrong type.
    """
    if not isinstance(options, dict):
        raise UsageError('`options` is a JSON object, such as {"numerics": "exact"}')
    for name, value in options.items():
        if name not in OPTIONS:
            raise UsageError(f"a job has no option {name!r}{nearest(name, OPTIONS)}")
        if OPTIONS[name] is list:
            _words(name, value)
        else:
            _check_type(name, value, OPTIONS[name])


def _words(name: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
        raise UsageError(f"{name}={value!r} is no list of words")
    for word in value:
        _check_type(name, word, str)
    return tuple(value)


def _check_type(name: str, value: Any, wanted: type) -> None:
    if value is None:
        return
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise UsageError(f"{name}={value!r} is no {wanted.__name__}")
    if isinstance(value, str) and "\0" in value:
        raise UsageError(f"{name} has a NUL character, which no path or argument can have")
