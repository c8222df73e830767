"""The visit of a viewer: the address of the page, and their time zone."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Any, Self
from urllib.parse import parse_qs
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """The address of a page and the viewer's time zone.

    Attributes:
        path: the path, such as `/runs/3`.
        query: the parameters after the question mark; the last value of each name.
        zone: the time zone; UTC when the browser names none that this machine knows.
    """

    path: str
    query: dict[str, str] = field(default_factory=dict)
    zone: tzinfo = UTC

    @classmethod
    def of(cls, told: dict[str, Any] | None) -> Self:
        """Build from what `REPORT_VISIT` of the shell returns: `path`, `search` and `zone`."""
        told = told or {}
        parsed = parse_qs(str(told.get("search") or "").removeprefix("?"))
        return cls(
            path=str(told.get("path") or "/"),
            query={name: values[-1] for name, values in parsed.items()},
            zone=_zone(str(told.get("zone"))),
        )

    def time(self, iso: str | None) -> str:
        """Return an ISO time as `2026-01-31 23:59:59` in the viewer's zone; `-` for None."""
        if iso is None:
            return "-"
        return f"{datetime.fromisoformat(iso).astimezone(self.zone):%Y-%m-%d %H:%M:%S}"


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC
