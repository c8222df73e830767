"""What single settings are worth on this machine: each beside the same plan without it.

    python benchmarks/levers.py --within 9m --seconds 4
    python benchmarks/levers.py --levers copy_ahead,allocator --list

A lever is measured on a workload of the zoo where it should matter, and on one where it should
not. In turn, each in fresh processes: the plan without it, then each of its values. A row of the
table is printed as soon as it is known, the most important levers first, so that a run that is cut
short keeps its rows. A measurement that takes longer than its limit is given up.
"""

import argparse
import dataclasses
import re
import time
from pathlib import Path

from autotune.agent.bench import Bench
from autotune.errors import AutotuneError
from autotune.search_space.plan import spell
from autotune.search_space.target import Target
from autotune.trials.request import Protocol

ZOO = Path(__file__).parent / "zoo"
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
LEAST_S = 20.0  # of the time left, for another measurement to begin
COLUMNS = ("lever", "workload", "setting", "samples/s", "95 % interval", "times", "peak GiB")
COLUMNS += ("first step s", "took s")

FUSED = {"precision": "bf16", "optimizer_impl": "fused"}
LOADED = {"workers": 4, "pin_memory": True}
BLOCKS = {"compile_mode": "default", "compile_scope": "block"}
WHOLE = {"compile_mode": "default", "compile_scope": "model"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A lever on a workload.

    Attributes:
        matters: whether it should make a difference there.
        base: the plan without it; knobs that the machine lacks are left out.
        settings: what is measured beside it, in turn.
    """

    lever: str
    workload: str
    matters: bool
    base: dict
    settings: tuple[dict, ...]


def values(lever, *names, **others):
    """Return a setting for each value of a lever, with other changes that it needs."""
    return tuple({lever: name, **others} for name in names)


CASES = (
    Case(
        lever="copy_ahead",
        workload="vit_augmented",
        matters=True,
        base=FUSED | {"workers": 15, "pin_memory": True, "batch_size": 256},
        settings=values("copy_ahead", "stream"),
    ),
    Case(
        lever="activation_offload",
        workload="large_lm",
        matters=True,
        base=FUSED | LOADED | {"batch_size": 16},
        settings=(
            {"activation_checkpointing": "full"},
            {"activation_offload": "host", "activation_checkpointing": "full"},
        ),
    ),
    Case(
        lever="activation_memory_budget",
        workload="large_lm",
        matters=True,
        base=FUSED | LOADED | BLOCKS | {"batch_size": 16},
        settings=(
            *values("activation_memory_budget", 0.5, 0.3),
            {"activation_checkpointing": "full"},
        ),
    ),
    Case(
        lever="allocator",
        workload="graph_network",
        matters=False,
        base=FUSED | LOADED,
        settings=values("allocator", "expandable"),
    ),
    Case(
        lever="parameter_offload",
        workload="large_lm",
        matters=True,
        base=FUSED | LOADED | {"batch_size": 16},
        settings=values("parameter_offload", "host"),
    ),
    Case(
        lever="precision",
        workload="large_lm",
        matters=True,
        base=FUSED | LOADED | BLOCKS | {"batch_size": 16},
        settings=values("precision", "fp8"),
    ),
    Case(
        lever="copy_ahead",
        workload="causal_lm",
        matters=False,
        base=FUSED | LOADED,
        settings=values("copy_ahead", "stream"),
    ),
    Case(
        lever="allocator",
        workload="speech_conformer",
        matters=True,
        base=FUSED | LOADED,
        settings=values("allocator", "expandable"),
    ),
    Case(
        lever="activation_memory_budget",
        workload="causal_lm",
        matters=False,
        base=FUSED | LOADED | BLOCKS,
        settings=values("activation_memory_budget", 0.7),
    ),
    Case(
        lever="activation_offload",
        workload="causal_lm",
        matters=False,
        base=FUSED | LOADED | {"activation_checkpointing": "full"},
        settings=values("activation_offload", "host"),
    ),
    Case(
        lever="precision",
        workload="causal_lm",
        matters=False,
        base=FUSED | LOADED | BLOCKS,
        settings=values("precision", "fp8"),
    ),
)
LEVERS = tuple(dict.fromkeys(case.lever for case in CASES))


def main():
    args = parse_args()
    cases = [case for case in CASES if case.lever in args.levers]
    if args.workloads is not None:
        cases = [case for case in cases if case.workload in args.workloads]
    if args.list:
        print(*(f"{case.lever} on {case.workload}" for case in cases), sep="\n")
        return
    protocol = Protocol(max_measure_s=args.seconds, max_warm_up_s=args.seconds)
    print_row(COLUMNS)
    print_row(["---"] * len(COLUMNS))
    with Bench(target_of(cases[0]), protocol=protocol, limit_s=args.limit) as bench:
        for case in cases:
            try:
                measure_case(case, bench, args.end)
            except AutotuneError as error:
                tell(case, "", one_line(error))


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--levers", type=names_among(LEVERS), default=LEVERS, metavar="A,B")
    parser.add_argument("--workloads", type=lambda text: text.split(","), metavar="A,B")
    parser.add_argument("--seconds", type=seconds, default=4.0, help="of measuring, at most")
    parser.add_argument("--limit", type=seconds, default=45.0, help="wall clock of one trial")
    parser.add_argument("--within", type=seconds, default=float("inf"), help="wall clock of all")
    parser.add_argument("--list", action="store_true", help="print the cases, and measure nothing")
    args = parser.parse_args()
    args.end = time.monotonic() + args.within
    return args


def names_among(known):
    """Return what reads names after commas, and refuses unknown ones."""

    def names(text):
        unknown = [name for name in text.split(",") if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"there is no lever {unknown[0]!r}; there are {', '.join(known)}"
            )
        return text.split(",")

    return names


def seconds(text):
    """Return the seconds of 90, 90s, 2m or 1h."""
    found = re.fullmatch(r"([\d.]+)([smh]?)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write 90s, 2m or 1h")
    return float(found[1]) * UNITS[found[2]]


def target_of(case):
    return Target(path=(ZOO / f"{case.workload}.py").resolve())


def measure_case(case, bench, end):
    """Measure the plan without the lever, then each setting of it, while there is time."""
    if time.monotonic() + LEAST_S > end:
        tell(case, "", "no time left")
        return
    subject = bench.subject(target_of(case), {})
    base = {
        k: v for k, v in case.base.items() if problem(bench, subject, {**needed(k), k: v}) is None
    }
    settings = [
        setting for setting in case.settings if is_possible(case, bench, subject, base, setting)
    ]
    without = None
    for setting in ({}, *settings) if settings else ():
        if time.monotonic() + LEAST_S > end:
            tell(case, words(setting), "no time left")
            continue
        throughput = measure(
            case, bench, bench.with_plan(subject, base | setting), base, setting, without
        )
        without = without or (None if setting else throughput)


def needed(knob):
    """Return the settings without which a knob of the base does not apply."""
    return WHOLE if knob == "compile_scope" else {}


def problem(bench, subject, values):
    """Return why a plan is not possible on this machine, None where it is."""
    try:
        bench.with_plan(subject, values)
    except AutotuneError as error:
        return one_line(error)
    return None


def is_possible(case, bench, subject, base, setting):
    """Whether a setting is possible beside the base; print a row with the reason if not."""
    why = problem(bench, subject, base | setting)
    if why is not None:
        tell(case, words(setting), why)
    return why is None


def measure(case, bench, subject, base, setting, without):
    """Measure one setting and print its row; return the throughput, None where it failed."""
    begin = time.monotonic()
    shown = words(setting) or f"without ({words(base)})"
    try:
        found = bench.measure(subject).measurement
    except AutotuneError as error:
        tell(case, shown, one_line(error))
        return None
    peak = found.memory_bytes
    print_row(
        [
            lever_of(case),
            case.workload,
            shown,
            f"{found.throughput:,.1f}",
            f"{found.throughput_low:,.1f} to {found.throughput_high:,.1f}",
            f"{found.throughput / without:.3f}" if without else "",
            f"{peak / 2**30:.2f}" if peak else "",
            f"{found.first_step_s:.1f}",
            f"{time.monotonic() - begin:.0f}",
        ]
    )
    return found.throughput


def lever_of(case):
    return case.lever if case.matters else f"{case.lever} (should not matter)"


def words(setting):
    return " ".join(f"{name}={spell(value)}" for name, value in setting.items())


def one_line(error):
    return str(error).splitlines()[0][:160]


def tell(case, setting, problem):
    print_row([lever_of(case), case.workload, setting, problem, *[""] * (len(COLUMNS) - 4)])


def print_row(cells):
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
