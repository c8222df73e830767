"""Links to a plan in each format that there is."""

import dash_mantine_components as dmc
from dash.development.base_component import Component

from autotune.dashboard.api import PREFIX
from autotune.dashboard.parts import outside
from autotune.export.formats import FORMATS


def plan_links(run_id: int, trial: int | None = None) -> Component:
    """Return the links to the winner's plan file, or to that of a trial."""
    which = "" if trial is None else f"&trial={trial}"
    name = "plan" if trial is None else f"trial-{trial}"
    return dmc.Group(
        [
            outside(
                f"{name}.{format_name}",
                f"{PREFIX}/runs/{run_id}/plan?format={format_name}{which}",
                download=f"{name}.{format_name}",
            )
            for format_name in FORMATS
        ]
    )
