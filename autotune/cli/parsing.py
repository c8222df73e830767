"""Parses the values of options: durations, sizes, counts, `knob=value` pairs."""

import math
import os
import re
from pathlib import Path

from autotune.agent.objectives.least_memory import LeastMemory
from autotune.agent.objectives.objective import Objective, ObjectiveName
from autotune.agent.objectives.throughput import FASTEST
from autotune.agent.objectives.time_to_quality import TimeToQuality
from autotune.agent.objectives.time_to_train import TimeToTrain
from autotune.errors import UsageError
from autotune.search_space.knobs import Numerics
from autotune.search_space.space import Narrowing

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
_COUNT = re.compile(r"(\d+(?:[\d_,]*\d)?(?:\.\d+)?)\s*([kKMGB]?)")
# The power of 1000 that a letter after a count stands for.
_THOUSANDS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "B": 3}


def parse_size(text: str | None) -> int | None:
    """Return the bytes of a size such as `40GiB`, `512MiB` or `24GB`; None for None.

    Raises:
        UsageError: when it is no size, or less than a megabyte.
    """
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    size = 0
    if match is not None:
        power = " KMGT".index(match[2].upper() or " ")
        size = round(float(match[1]) * (1024 if match[3] else 1000) ** power)
    if size < 1000**2:
        raise UsageError(
            f"--max-memory {text!r} is no size of at least 1MB; write it like 40GiB or 512MiB"
        )
    return size


def parse_objective(
    name: ObjectiveName,
    train_samples: str | None = None,
    min_throughput: str | None = None,
    target: float | None = None,
) -> Objective:
    """Return the objective of `--objective` and the option that belongs to it.

    Raises:
        UsageError: when an option that the objective needs is missing, or one is given that it
            does not have.
    """
    is_time, is_memory = name is ObjectiveName.TIME_TO_TRAIN, name is ObjectiveName.MEMORY
    if is_time and train_samples is None:
        raise UsageError(
            "--objective time-to-train needs the number of samples that you will train on; add "
            "it, for example --train-samples 10M"
        )
    if is_memory and min_throughput is None:
        raise UsageError(
            "--objective memory needs the lowest throughput that you accept; add it in samples/s "
            "like --min-throughput 250, or as a share of the baseline's like --min-throughput 90%"
        )
    if train_samples is not None and not is_time:
        raise UsageError(
            _wrong_objective(f"--train-samples {train_samples}", "time-to-train", name)
        )
    if min_throughput is not None and not is_memory:
        raise UsageError(_wrong_objective(f"--min-throughput {min_throughput}", "memory", name))
    if name is ObjectiveName.TIME_TO_QUALITY or target is not None:
        return _time_to_quality(name, target)
    if train_samples is not None:
        return TimeToTrain(samples=parse_samples(train_samples))
    return FASTEST if min_throughput is None else parse_min_throughput(min_throughput)


def _time_to_quality(name: ObjectiveName, target: float | None) -> TimeToQuality:
    if target is None:
        raise UsageError(
            "--objective time-to-quality needs what evaluate(model) is to return at least; add "
            "it, for example --target 0.9"
        )
    if name is not ObjectiveName.TIME_TO_QUALITY:
        raise UsageError(_wrong_objective(f"--target {target:g}", "time-to-quality", name))
    if not math.isfinite(target):
        raise UsageError(f"--target {target} is no finite number; write it like 0.9")
    return TimeToQuality(target=target)


def _wrong_objective(option: str, owner: str, name: ObjectiveName) -> str:
    return (
        f"{option} has no meaning with --objective {name}; add --objective {owner}, "
        "or leave the option out"
    )


def parse_samples(text: str) -> int:
    """Return the number of samples in `50000`, `50k`, `10M` or `1.5B`.

    Raises:
        UsageError: when it is no number, or not positive.
    """
    match = _COUNT.fullmatch(text.strip())
    count = 0
    if match is not None:
        digits = match[1].replace("_", "").replace(",", "")
        count = round(float(digits) * 1000 ** _THOUSANDS[match[2]])
    if count <= 0:
        raise UsageError(
            f"--train-samples {text!r} is no positive number of samples; write it like 50000, "
            "50k or 10M"
        )
    return count


def parse_min_throughput(text: str) -> LeastMemory:
    """Return the memory objective with a least throughput of `250` samples/s or `90%`.

    Raises:
        UsageError: when it is neither a number nor a percentage, or not positive.
    """
    digits, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        speed = float(digits)
    except ValueError:
        speed = 0.0
    if not 0.0 < speed < math.inf:
        raise UsageError(
            f"--min-throughput {text!r} is no positive throughput; write it in samples/s like "
            "250, or as a share of the baseline's like 90%"
        )
    return LeastMemory(min_share=speed / 100) if percent else LeastMemory(min_throughput=speed)


def parse_narrowing(
    knobs: str | None, fix: list[str] | None, allow: list[str] | None, numerics: str
) -> Narrowing:
    """Return the restrictions of the space by `--knobs`, `--fix`, `--allow` and `--numerics`.

    Raises:
        UsageError: for a `--fix` without a value, or an unknown class of numerics.
    """
    classes = [c.value for c in Numerics if c is not Numerics.TRAINING]
    if numerics not in classes:
        raise UsageError(f"--numerics {numerics!r} is no class; use one of {', '.join(classes)}")
    return Narrowing(
        knobs=None if knobs is None else tuple(split(knobs)),
        fix=parse_fixed(fix),
        allow=tuple(word for text in allow or () for word in split(text)),
        numerics=Numerics(numerics),
    )


def parse_fixed(fix: list[str] | None) -> tuple[tuple[str, str], ...]:
    """Return the (knob, value) pairs of `--fix knob=value`, which may be given several times.

    Raises:
        UsageError: when one has no value.
    """
    return tuple(_pair(text) for text in fix or ())


def split(text: str) -> list[str]:
    """Return the items of a comma-separated list."""
    return [word.strip() for word in text.split(",") if word.strip()]


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise UsageError(f"--fix {text!r} has no value; write it like --fix batch_size=64")
    return name.strip(), value.strip()


def parse_share(option: str, text: str) -> float:
    """Return 0.05 for `5%` or `0.05`.

    Raises:
        UsageError: when it is no number, or not between 0 and 1.
    """
    try:
        number = float(text.strip().removesuffix("%"))
    except ValueError:
        number = 0.0
    share = number / 100 if text.strip().endswith("%") else number
    if not 0.0 < share < 1.0:
        raise UsageError(f"{option} {text!r} is no share between 0 and 1; write it like 5%")
    return share


def absolute(path: Path) -> Path:
    """Return the absolute path, without `..` where that is safe. Symbolic links are kept."""
    full = Path.cwd() / path
    short = Path(os.path.normpath(full))  # another file where `..` follows a link to a folder
    return short if short.exists() and full.exists() and short.samefile(full) else full
