"""Values as text, and the columns of lists. PURE, but for the encoding of stdout.

Names, reasons and errors come from end users, so each text passes through ``escape``.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from celery_dynbeat.common.text import escape, format_distance, format_duration

_UTC = ZoneInfo("UTC")


def plain(value: Any) -> str:
    """Return ``value`` for a program: instants in UTC, durations in seconds, None as ""."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.15g}"
    if isinstance(value, (list, tuple, Mapping)):
        return escape(json.dumps(value, ensure_ascii=False)) if value else ""
    return escape(str(value))


def readable(value: Any, zone: ZoneInfo = _UTC) -> str:
    """Return ``value`` for a person: instants on the clock of ``zone``, durations in units."""
    if isinstance(value, datetime):
        return local_time(value, zone)
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value):
        return escape(", ".join(value))
    return plain(value)


def local_time(instant: datetime, zone: ZoneInfo) -> str:
    """Return ``2026-11-22 18:00:00`` on the clock of ``zone``."""
    return instant.astimezone(zone).replace(tzinfo=None, microsecond=0).isoformat(" ")


def both_times(instant: datetime, zone: ZoneInfo, *, now: datetime) -> str:
    """Return the time in ``zone`` with its offset, in UTC, and how far it is from ``now``."""
    utc = f"{local_time(instant, ZoneInfo('UTC'))} UTC"
    if zone.key != "UTC":
        utc = f"{instant.astimezone(zone).replace(microsecond=0).isoformat(' ')} ({utc})"
    return f"{utc}, {format_distance(instant, now=now)}"


def encodable(text: str) -> str:
    """Return ``text`` with escapes for characters that the encoding of stdout does not have."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


@dataclass(frozen=True, slots=True)
class Column:
    """A column that shows the attribute ``name`` of each item, or the result of ``get`` for it.

    A table gives the column at least ``width`` characters. It leaves ``optional`` columns out if
    they do not fit, the last one first. ``style`` returns the style of rich for a value. ``words``
    maps texts to the words that a table shows instead.
    """

    name: str
    get: Callable[[Any], Any] | None = None
    width: int = 8
    style: Callable[[Any], str] | None = None
    is_time: bool = False
    optional: bool = False
    words: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The name in words."""
        return self.name.replace("_", " ")

    def value(self, item: Any) -> Any:
        """Return the value of ``item``."""
        return getattr(item, self.name) if self.get is None else self.get(item)


def time_column(
    name: str, get: Callable[[Any], Any] | None = None, *, optional: bool = False
) -> Column:
    """Return a column of instants."""
    return Column(name, get, width=19, is_time=True, optional=optional)


def _owner(item: Any) -> str:
    return EVERYTHING if item.owner is None else str(item.owner)


#: Piped output shows this for all owners, which are None in the API.
EVERYTHING = "*"


def owner_column() -> Column:
    """Return the column of owners. "" is the application itself."""
    words = {"": "(application)", EVERYTHING: "(everything)"}
    return Column("owner", _owner, width=13, words=words)


_STATE_STYLES = {
    "succeeded": "green",
    "active": "green",
    "running": "cyan",
    "sent": "cyan",
    "retrying": "yellow",
    "skipped": "yellow",
    "paused": "yellow",
    "held": "yellow",
    "overdue": "red",
    "failing": "red",
    "quarantined": "red",
    "failed": "red",
    "lost": "red",
}


def state_style(value: Any) -> str:
    """Return the colour of a state or status."""
    return _STATE_STYLES.get(str(value), "")
