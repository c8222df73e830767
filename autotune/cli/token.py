"""`autotune token`: says who may use a server, on the server's own machine."""

import enum
from contextlib import closing
from typing import Annotated

import typer

from autotune.cli.options import AsJson, Storage
from autotune.cli.output import print_fitting, print_json, print_lines
from autotune.errors import UsageError
from autotune.service.tokens import digest, new_token
from autotune.storage.access import Role, TokenRecord
from autotune.storage.sql import SqlStore, open_store

MAX_NAME = 100  # characters
LOCAL = "(here)"
"""Stands in the audit for whoever uses the store itself."""
COLUMNS = ("name", "role", "max devices", "max hours", "created", "revoked")


class Action(enum.StrEnum):
    """What to do with a token."""

    CREATE = "create"
    LIST = "list"
    REVOKE = "revoke"


def token(
    action: Annotated[Action, typer.Argument(help="What to do.", show_default=False)],
    name: Annotated[
        str | None,
        typer.Argument(help="Whose token it is; jobs belong to this name.", show_default=False),
    ] = None,
    *,
    role: Annotated[
        Role,
        typer.Option(
            help="What it allows: to look; to submit jobs and cancel one's own, too; to "
            "administer all jobs, too."
        ),
    ] = Role.SUBMIT,
    max_devices: Annotated[
        int | None,
        typer.Option(min=1, help="Most devices that its running jobs hold together."),
    ] = None,
    max_hours: Annotated[
        float | None, typer.Option(min=0.01, help="Longest budget of its jobs, in hours.")
    ] = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Create, list or revoke the tokens that a server's store knows."""
    with closing(open_store(storage, read_only=action is Action.LIST)) as store:
        if action is Action.LIST:
            _list(store, as_json=as_json)
        elif action is Action.CREATE:
            _create(store, _checked(name), role, max_devices, max_hours)
        else:
            store.tokens.revoke(_checked(name))
            store.audit.add(LOCAL, "revoke token", _checked(name))
            print_lines(f"revoked: {name}; a server knows within two seconds")


def _checked(name: str | None) -> str:
    if name is None or not name.isprintable() or not 0 < len(name) <= MAX_NAME or ":" in name:
        raise UsageError(
            f"the token's name is {name!r}; give one of 1 to {MAX_NAME} characters without colons"
        )
    return name


def _create(
    store: SqlStore, name: str, role: Role, max_devices: int | None, max_hours: float | None
) -> None:
    text = new_token()
    store.tokens.add(name, digest(text), role, max_devices=max_devices, max_hours=max_hours)
    store.audit.add(LOCAL, "create token", f"{name}, to {role.value}")
    print_lines(text)
    typer.echo(
        f"the token of {name}, to {role.value}; it is shown once. Keep it in "
        "~/.config/autotune/token with mode 600",
        err=True,
    )


def _list(store: SqlStore, *, as_json: bool) -> None:
    found = store.tokens.all()
    if as_json:
        print_json([_view(one) for one in found])
    elif found:
        print_fitting(COLUMNS, ([_cell(value) for value in _view(one).values()] for one in found))
    else:
        print_lines("no token yet; `autotune token create NAME` makes one")


def _view(record: TokenRecord) -> dict[str, object]:
    revoked_at = record.revoked_at
    return {
        "name": record.name,
        "role": record.role.value,
        "max_devices": record.max_devices,
        "max_hours": record.max_hours,
        "created_at": record.created_at.isoformat(timespec="seconds"),
        "revoked_at": None if revoked_at is None else revoked_at.isoformat(timespec="seconds"),
    }


def _cell(value: object) -> str:
    return "-" if value is None else str(value)
