"""Where the viewer is: the page's address, and their time zone."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Any, Self
from urllib.parse import parse_qs
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """An address within the dashboard.

    Attributes:
        path: such as `/runs/3`.
        query: what follows the question mark; the last value of each name.
        zone: the viewer's time zone; UTC when their browser names none that is known here.
    """

    path: str
    query: dict[str, str] = field(default_factory=dict)
    zone: tzinfo = UTC

    @classmethod
    def of(cls, told: dict[str, Any] | None) -> Self:
        """Read what the browser told: `path`, `search` and `zone`."""
        told = told or {}
        parsed = parse_qs(str(told.get("search") or "").removeprefix("?"))
        return cls(
            path=str(told.get("path") or "/"),
            query={name: values[-1] for name, values in parsed.items()},
            zone=_zone(str(told.get("zone"))),
        )

    def time(self, iso: str | None) -> str:
        """Return a time as ISO text in the viewer's zone; `-` for none."""
        if iso is None:
            return "-"
        return f"{datetime.fromisoformat(iso).astimezone(self.zone):%Y-%m-%d %H:%M:%S}"


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC
