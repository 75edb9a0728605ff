"""Instants in rows of JSON."""

from datetime import datetime
from typing import Any

INSTANTS = ("expires", "start_time", "last_run_at", "date_changed", "clocked_time")


def with_instants(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with datetimes in place of their text."""
    return {
        key: datetime.fromisoformat(value) if key in INSTANTS and value else value
        for key, value in fields.items()
    }
