"""Links that download a plan file in each format."""

import dash_mantine_components as dmc
from dash.development.base_component import Component

from autotune.dashboard.api import PREFIX
from autotune.dashboard.parts import server_link
from autotune.export.formats import FORMATS


def plan_links(run_id: int, trial: int | None = None) -> Component:
    """Return links to the plan file of the winner, or of `trial`, in each format."""
    which = "" if trial is None else f"&trial={trial}"
    name = "plan" if trial is None else f"trial-{trial}"
    return dmc.Group(
        [
            server_link(
                f"{name}.{format_name}",
                f"{PREFIX}/runs/{run_id}/plan?format={format_name}{which}",
                download=f"{name}.{format_name}",
            )
            for format_name in FORMATS
        ]
    )
