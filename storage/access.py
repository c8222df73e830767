"""Who may use the search service, and what they did to it."""

import enum
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import select

from autotune.errors import NotFoundError, UsageError, nearest
from autotune.storage.database import Database
from autotune.storage.tables import AuditRow, TokenRow


class Role(enum.Enum):
    """What the holder of a token may do; each role includes those before it."""

    LOOK = "look"
    SUBMIT = "submit"
    ADMINISTER = "administer"

    def includes(self, other: "Role") -> bool:
        """Return whether who has this role may do what `other` allows."""
        order = list(Role)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A token as it is stored, without the token itself.

    Attributes:
        name: of its holder; jobs that come with it belong to this name.
        role: what it allows.
        max_devices: most devices that its running jobs hold together; None: no limit.
        max_hours: longest budget of its jobs, in hours; None: no limit.
        revoked_at: when it lost its force; None: it has it.
    """

    name: str
    role: Role
    max_devices: int | None
    max_hours: float | None
    created_at: datetime
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """What `who` did: an action, and what it was about."""

    at: datetime
    who: str
    action: str
    about: str


class Tokens:
    """The tokens of a store. Not thread-safe.

    Args:
        database: open; for reading alone where nothing is to be changed.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self,
        name: str,
        digest: str,
        role: Role,
        *,
        max_devices: int | None = None,
        max_hours: float | None = None,
    ) -> None:
        """Store a token by the digest of its text.

        Raises:
            UsageError: when the name is taken, also by a revoked token: jobs belong to names.
        """
        with self._database.writing() as session:
            if session.scalar(select(TokenRow.id).where(TokenRow.name == name)) is not None:
                raise UsageError(f"there is a token of the name {name!r} already; choose another")
            session.add(
                TokenRow(
                    name=name,
                    digest=digest,
                    role=role.value,
                    max_devices=max_devices,
                    max_hours=max_hours,
                    created_at=datetime.now(UTC),
                )
            )

    def all(self) -> list[TokenRecord]:
        """Return all tokens, oldest first, also revoked ones."""
        with self._database.reading() as session:
            return [_token(row) for row in session.scalars(select(TokenRow).order_by(TokenRow.id))]

    def find(self, digest: str) -> TokenRecord | None:
        """Return the token with this digest that is in force; None where there is none."""
        query = select(TokenRow).where(TokenRow.digest == digest, TokenRow.revoked_at.is_(None))
        with self._database.reading() as session:
            row = session.scalar(query)
            return None if row is None else _token(row)

    def revoke(self, name: str) -> None:
        """Take a token's force.

        Raises:
            NotFoundError: when there is none of that name, with the nearest one.
        """
        with self._database.writing() as session:
            row = session.scalar(select(TokenRow).where(TokenRow.name == name))
            if row is None:
                near = nearest(name, session.scalars(select(TokenRow.name)))
                raise NotFoundError(f"there is no token {name!r}{near}; `autotune token list`")
            row.revoked_at = row.revoked_at or datetime.now(UTC)


class Audit:
    """The record of who did what to the service. Not thread-safe.

    Args:
        database: open; for reading alone where nothing is to be added.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, who: str, action: str, about: str) -> None:
        """Keep what somebody did just now."""
        with self._database.writing() as session:
            session.add(audit_row(who, action, about))

    def latest(self, *, limit: int, offset: int = 0) -> list[AuditEntry]:
        """Return entries, newest first."""
        query = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit).offset(offset)
        with self._database.reading() as session:
            return [
                AuditEntry(at=row.at, who=row.who, action=row.action, about=row.about)
                for row in session.scalars(query)
            ]


def audit_row(who: str, action: str, about: str) -> AuditRow:
    """Return the row that keeps what somebody does just now."""
    return AuditRow(at=datetime.now(UTC), who=who, action=action, about=about)


def _token(row: TokenRow) -> TokenRecord:
    return TokenRecord(
        name=row.name,
        role=Role(row.role),
        max_devices=row.max_devices,
        max_hours=row.max_hours,
        created_at=row.created_at,
        revoked_at=row.revoked_at,
    )
