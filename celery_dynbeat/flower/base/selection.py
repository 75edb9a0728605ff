"""The names of schedules in a form, because an owner and a name can contain any character. PURE."""

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.common.text import shorten

#: Schedules of one form: as many as on the largest page.
MAX_SELECTED = 100


class ScheduleKey(NamedTuple):
    """The owner and the name of a schedule."""

    owner: str
    name: str

    def __str__(self) -> str:
        return f"{self.name} of {self.owner}" if self.owner else self.name


def encode(owner: str, name: str) -> str:
    """Return the value of a field ``schedule``."""
    return json.dumps([owner, name])


def decode(values: Iterable[str]) -> Sequence[ScheduleKey]:
    """Return the schedules of the fields, each one once.

    Raises InvalidScheduleError for none, for more than MAX_SELECTED, and for an invalid value.
    """
    keys = list(dict.fromkeys(map(_decode, values)))
    if not keys:
        msg = "No schedule is selected. Select at least one."
        raise InvalidScheduleError(msg, field="schedule")
    if len(keys) > MAX_SELECTED:
        msg = f"{len(keys):,} schedules are selected. Select at most {MAX_SELECTED} at once."
        raise InvalidScheduleError(msg, field="schedule")
    return keys


def _decode(value: str) -> ScheduleKey:
    try:
        owner, name = json.loads(value)
        # JSON can contain a lone surrogate. No page and no database can encode it.
        json.dumps([owner, name], ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError):
        owner = name = None
    if not isinstance(owner, str) or not isinstance(name, str):
        msg = f"schedule = {shorten(value)}: must be a JSON array of an owner and a name"
        raise InvalidScheduleError(msg, field="schedule")
    return ScheduleKey(owner, name)
