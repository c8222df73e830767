"""`autotune space MODEL`: each knob as it applies here, or why it is out."""

from pathlib import Path
from typing import Annotated, Any

import typer

from autotune.cli.output import AsJson, GpusPerTrial, print_json, print_lines
from autotune.cli.parsing import absolute, parse_narrowing
from autotune.search_space.plan import spell
from autotune.search_space.space import Space


def space(
    model: Annotated[Path, typer.Argument(help="The workload: your model.py.")],
    *,
    knobs: Annotated[str | None, typer.Option(help="Vary only these, by commas.")] = None,
    fix: Annotated[list[str] | None, typer.Option(help="Hold a knob: knob=value.")] = None,
    allow: Annotated[list[str] | None, typer.Option(help="Let in what is out.")] = None,
    numerics: Annotated[
        str, typer.Option(help="Widest change of the numbers: exact, rounding, precision.")
    ] = "precision",
    gpus_per_trial: GpusPerTrial = 1,
    as_json: AsJson = False,
) -> None:
    """Show what may vary for this workload on this machine, and why the rest may not."""
    from autotune.agent.session import look_at  # noqa: PLC0415  `--help` needs no ray

    narrowing = parse_narrowing(knobs, fix, allow, numerics)
    hardware, spaces = look_at(absolute(model), narrowing, num_ranks=gpus_per_trial)
    found = spaces.whole
    if as_json:
        print_json({"hardware": hardware.to_dict(), **describe(found)})
        return
    ranks = f", {found.num_ranks} in a trial" if found.num_ranks > 1 else ""
    print_lines(f"{model} on {hardware.num_devices} x {hardware.device_name}{ranks}")
    facts = found.facts
    blocks = f"{facts.num_blocks} blocks of {facts.block_class}" if facts.num_blocks else "none"
    print_lines(f"{facts.num_parameters:,} parameters; repeated blocks: {blocks}")
    for remark in facts.remarks:
        print_lines(f"note: {remark}")
    for name, values, reason in rows(found):
        print_lines(f"  {name:<24} {values}" + (f"   ({reason})" if reason else ""))
    print_lines(f"at most {found.size_bound():,} plans")


def rows(space: Space) -> list[tuple[str, str, str]]:
    """Return name, values and reason of each knob: those that vary first."""
    vary = [d for d in space.domains if d.varies]
    shown = [(d.knob.name, ", ".join(map(spell, d.values)), d.note) for d in vary]
    held = {d.knob.name: spell(d.values[0]) for d in space.domains if not d.varies}
    return shown + [(name, held.get(name, "out"), why) for name, why in space.out.items()]


def describe(space: Space) -> dict[str, Any]:
    """Return the space as plain JSON values."""
    return {
        "facts": space.facts.to_dict(),
        "num_ranks": space.num_ranks,
        "baseline": space.baseline.values,
        "knobs": {d.knob.name: list(d.values) for d in space.domains if d.varies},
        "out": dict(space.out),
        "size_bound": space.size_bound(),
    }
