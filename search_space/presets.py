"""The checklist that performance guides agree on, as far as a space has it."""

from collections.abc import Collection

from autotune.search_space.plan import Plan, Value
from autotune.search_space.space import Space

# For each knob the values to take, first choice first. Workers stop at four: each copies the
# parent's memory, and more of them help only where the loop still waits.
CHECKLIST: dict[str, tuple[Value, ...]] = {
    "compile_mode": ("default",),
    "precision": ("bf16", "fp16", "tf32"),
    "optimizer_impl": ("fused", "foreach"),
    "memory_format": ("channels_last",),
    "cudnn_benchmark": (True,),
    "pin_memory": (True,),
    "workers": (4, 2, 1),
}


def checklist(space: Space, skip: Collection[str] = ()) -> Plan:
    """Return the baseline with every item of the checklist that the space has, less `skip`."""
    chosen: dict[str, Value] = {}
    for name, choices in CHECKLIST.items():
        domain = space.by_name.get(name)
        if domain is None or not domain.varies or name in skip:
            continue
        fitting = [value for value in choices if value in domain.values]
        if fitting:
            chosen[name] = fitting[0]
    return space.adopt(Plan.of(chosen))
