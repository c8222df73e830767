"""The HTML document that every address answers with, before any script has run.

It holds the page's heading already, so that a viewer reads it while the scripts are on their way;
the style sheet hides it when the page itself is there.
"""

import hashlib
import re
from collections.abc import Callable
from html import escape
from importlib.resources import files
from typing import Any

from dash import Dash

ASSETS = files("autotune.dashboard") / "assets"
VERSION = "v"
"""The parameter of an asset's address that changes with its contents."""
# The script of a component library that is loaded late: some pages never need it.
LATE_SCRIPT = re.compile(r'<script src="([^"]*/dash_ag_grid/[^"]*)"></script>')
# Scripts of libraries that come with Dash and that no page uses.
UNUSED_SCRIPT = re.compile(r'<script src="[^"]*/dash_table/[^"]*"></script>')

# Dash fills in the names between the signs, `PageDocument` those in double braces.
INDEX = """<!DOCTYPE html>
<html lang="en">
  <head>
    {%metas%}
    <title>{%title%}</title>
    <link rel="icon" href="{{icon}}">
    <link rel="stylesheet" href="{{style}}">
    <meta name="grid-script" content="{{grid}}">
    {%css%}
  </head>
  <body>
    <div id="first" aria-hidden="true">
      <div class="bar"><div>autotune</div></div>
      <div><h1>{{heading}}</h1><p>Loading ...</p></div>
    </div>
    {%app_entry%}
    <footer>{%config%}{%scripts%}<script src="{{script}}"></script>{%renderer%}</footer>
  </body>
</html>
"""


class PageDocument(Dash):
    """A Dash application whose document names the page at its address.

    Args:
        title_of: returns the title of the page at a path.
        options: what Dash takes.
    """

    def __init__(self, *, title_of: Callable[[str], str], **options: Any) -> None:
        super().__init__(**options, index_string=INDEX, include_assets_files=False)
        self._title_of = title_of

    def interpolate_index(self, **kwargs: str) -> str:  # type: ignore[override]  # Dash names them
        """Return the document; Dash calls this with its parts."""
        title = self._title_of(str(self.backend.request_adapter().path))
        late = LATE_SCRIPT.search(kwargs["scripts"])
        for left_out in (LATE_SCRIPT, UNUSED_SCRIPT):
            kwargs["scripts"] = left_out.sub("", kwargs["scripts"])
        kwargs["title"] = escape(tab_title(title))
        document = super().interpolate_index(**kwargs)
        own = {
            "icon": asset("icon.svg"),
            "style": asset("style.css"),
            "script": asset("browser.js"),
            "grid": late[1] if late else "",
            "heading": escape(title),
        }
        for name, text in own.items():
            document = document.replace(f"{{{{{name}}}}}", text)
        return document


def tab_title(title: str) -> str:
    """Return the title of the browser's tab for a page's title."""
    return f"{title} · autotune" if title != "autotune" else title


def asset(name: str) -> str:
    """Return the address of a file of ours, which changes with the file's contents."""
    digest = hashlib.sha256((ASSETS / name).read_bytes()).hexdigest()[:12]
    return f"/assets/{name}?{VERSION}={digest}"
