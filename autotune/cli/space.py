"""`autotune space MODEL`: lists each knob's values here, or why the knob is left out."""

from typing import Any

import typer

from autotune.cli.invocation import invocation_of
from autotune.cli.options import (
    Allow,
    AsJson,
    Bind,
    Fix,
    GpusPerTrial,
    Knobs,
    Model,
    OutputFlag,
    WidestNumerics,
)
from autotune.cli.output import print_json, print_lines
from autotune.cli.parsing import parse_narrowing
from autotune.search_space.plan import spell
from autotune.search_space.space import Space


def space(
    context: typer.Context,
    model: Model = None,
    *,
    bind: Bind = None,
    output_flag: OutputFlag = None,
    knobs: Knobs = None,
    fix: Fix = None,
    allow: Allow = None,
    numerics: WidestNumerics = "precision",
    gpus_per_trial: GpusPerTrial = 1,
    as_json: AsJson = False,
) -> None:
    """Show the knobs that may vary here, for MODEL or `-- COMMAND`, and why the others may not."""
    from autotune.agent.session import look_at  # noqa: PLC0415  `--help` needs no ray

    invocation = invocation_of(context)
    target = invocation.target(model, bind, output_flag)
    narrowing = parse_narrowing(knobs, fix, allow, numerics)
    hardware, spaces = look_at(target, narrowing, num_ranks=gpus_per_trial)
    found = spaces.whole
    if as_json:
        print_json({"hardware": hardware.to_dict(), **space_document(found)})
        return
    ranks = f", {found.num_ranks} in a trial" if found.num_ranks > 1 else ""
    print_lines(f"{target.path.name} on {hardware.num_devices} x {hardware.device_name}{ranks}")
    facts = found.facts
    blocks = f"{facts.num_blocks} blocks of {facts.block_class}" if facts.num_blocks else "none"
    print_lines(f"{facts.num_parameters:,} parameters; repeated blocks: {blocks}")
    for remark in facts.remarks:
        print_lines(f"note: {remark}")
    for name, values, reason in knob_rows(found):
        print_lines(f"  {name:<24} {values}" + (f"   ({reason})" if reason else ""))
    print_lines(f"at most {found.size_bound():,} plans")


def knob_rows(space: Space) -> list[tuple[str, str, str]]:
    """Return (name, values, remark) of each knob: first those that vary.

    A knob that does not vary has its only value, or `out`, and the reason.
    """
    varying = [d for d in space.domains if d.varies]
    shown = [(d.knob.name, ", ".join(map(spell, d.values)), d.note) for d in varying]
    held = {d.knob.name: spell(d.values[0]) for d in space.domains if not d.varies}
    return shown + [(name, held.get(name, "out"), why) for name, why in space.out.items()]


def space_document(space: Space) -> dict[str, Any]:
    """Return the space as a JSON document."""
    return {
        "facts": space.facts.to_dict(),
        "num_ranks": space.num_ranks,
        "baseline": space.baseline.values,
        "knobs": {d.knob.name: list(d.values) for d in space.domains if d.varies},
        "out": dict(space.out),
        "size_bound": space.size_bound(),
    }
