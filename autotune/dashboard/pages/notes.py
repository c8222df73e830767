"""The section in which people write notes and tags on a run or a trial."""

from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, no_update
from dash.development.base_component import Component

from autotune.dashboard import parts
from autotune.dashboard.callbacks import callback_in_thread
from autotune.dashboard.source import Source
from autotune.errors import UsageError
from autotune.storage.notes import WHOLE_RUN, Note

MAX_LETTERS = 10_000  # of a note
MAX_TAGS = 20
MAX_TAG_LETTERS = 50


def notes_section(note: Note, run_id: int, number: int = WHOLE_RUN) -> Component:
    """Return the section, with what was written before."""
    return parts.section(
        "Notes",
        dcc.Store(id="note-of", data={"run": run_id, "number": number}),
        dmc.Stack(
            [
                dmc.Textarea(
                    id="note-text",
                    label="Note",
                    value=note.text,
                    autosize=True,
                    minRows=2,
                ),
                dmc.TagsInput(
                    id="note-tags",
                    label="Tags",
                    value=list(note.tags),
                    maxTags=MAX_TAGS,
                    placeholder="Enter adds one",
                ),
                dmc.Group(
                    [dmc.Button("Save", id="note-save", size="xs"), dmc.Text(id="note-kept")]
                ),
            ],
            gap="sm",
        ),
    )


def tags(note: Note | None) -> list[Component]:
    """Return a badge for each tag."""
    return [
        dmc.Badge(tag, variant="outline", color="gray", className="tag", miw="max-content")
        for tag in (note.tags if note else ())
    ]


def add_callbacks(app: Dash, source: Source) -> None:
    """Add the callback that keeps a note."""

    def keep(clicks: int | None, text: str, named: list[str], of: dict[str, int]) -> Any:
        if not clicks:
            return no_update
        note = Note(text=text.strip(), tags=tuple(named or ()))
        _check(note)
        with source.store_to_write() as store:
            store.run(str(of["run"]))
            store.notes.keep(note, of["run"], of["number"])
        return "Saved."

    callback_in_thread(
        app,
        Output("note-kept", "children"),
        Input("note-save", "n_clicks"),
        State("note-text", "value"),
        State("note-tags", "value"),
        State("note-of", "data"),
        prevent_initial_call=True,
    )(keep)


def _check(note: Note) -> None:
    """Refuse what the form does not let through, but another program may send."""
    if len(note.text) > MAX_LETTERS:
        raise UsageError(f"a note of {len(note.text)} letters is too long; {MAX_LETTERS} fit")
    if len(note.tags) > MAX_TAGS or any(len(tag) > MAX_TAG_LETTERS for tag in note.tags):
        raise UsageError(
            f"{len(note.tags)} tags; up to {MAX_TAGS} of {MAX_TAG_LETTERS} letters each fit"
        )
