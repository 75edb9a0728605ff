"""One entry of RedBeat becomes one found schedule. Pure functions.

An entry without a last run is due at once in RedBeat. RedBeat itself writes the time of the
creation as the last run.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from celery_dynbeat.api.edit.source_progress import SourceProgress
from celery_dynbeat.importing.conversion import EXPIRY
from celery_dynbeat.importing.found import Converted, Ended, Found, Inexpressible, Note
from celery_dynbeat.importing.redbeat import rules
from celery_dynbeat.importing.redbeat.reading import Entry
from celery_dynbeat.triggers import RRule, Trigger

_MICROSECOND = timedelta(microseconds=1)
_EXPIRES = Note(
    "expires",
    "no fire time from this instant on; before, messages were sent and then discarded",
)


@dataclass(frozen=True, slots=True)
class EntryConverter:
    """Converts entries below ``prefix``. A crontab is in the zone of the application."""

    prefix: str
    app_timezone: str

    def found(self, entry: Entry, *, now: datetime) -> Found:
        """Return the found schedule of an entry."""
        name = entry.key.removeprefix(self.prefix)
        try:
            definition = _object("definition", entry.definition)
            meta = _object("meta", entry.meta) if entry.meta else {}
        except Inexpressible as reason:
            return Found(name=name, described="", row={"name": name}, refused=str(reason))
        name = str(definition.get("name") or name)
        found = partial(
            Found,
            name=name,
            described=rules.described(definition.get("schedule")),
            row={**definition, **meta, "name": name},
        )
        try:
            converted, notes = self._converted(definition, meta, now)
        except Inexpressible as reason:
            return found(refused=str(reason))
        except Ended as reason:
            return found(ended=str(reason))
        return found(converted=converted, notes=notes)

    def _converted(
        self, definition: Mapping[str, Any], meta: Mapping[str, Any], now: datetime
    ) -> tuple[Converted, tuple[Note, ...]]:
        schedule = definition.get("schedule")
        trigger, notes = rules.trigger_of(schedule, app_timezone=self.app_timezone)
        last = rules.instant_of(meta.get("last_run_at"))
        _check_not_ended(trigger, last or now)
        options, limits, more = _options(definition.get("options") or {}, now)
        payload = {
            "args": _plain(definition.get("args") or []),
            "kwargs": _plain(definition.get("kwargs") or {}),
            "options": options,
        }
        enabled = bool(definition.get("enabled", True))
        count = meta.get("total_run_count") or 0
        progress = SourceProgress(run_count=count)
        if enabled:
            progress = SourceProgress(after=last, last_run_at=last, anchor_at=last, run_count=count)
        converted = Converted(
            task=str(definition.get("task")),
            trigger=trigger,
            fields={**payload, **limits},
            enabled=enabled,
            progress=progress,
        )
        return converted, (*notes, *more)


def _check_not_ended(trigger: Trigger, after: datetime) -> None:
    if isinstance(trigger, RRule) and trigger.next_after(after) is None:
        raise Ended("its rule has no later fire time")


def _options(given: Any, now: datetime) -> tuple[dict[str, Any], dict[str, Any], tuple[Note, ...]]:
    """Return the options, the limits that they mean for the schedule, and notes on these."""
    if not isinstance(given, dict):
        raise Inexpressible("options is not an object")
    options = {key: value for key, value in given.items() if value is not None}
    headers = options.get("headers")
    if isinstance(headers, dict):
        options["headers"] = {
            key: value for key, value in headers.items() if key != "periodic_task_name"
        }
    expires = options.pop("expires", None)
    if expires is None:
        return options, {}, ()
    if isinstance(expires, dict):
        end = rules.instant_of(expires)
        assert end is not None  # noqa: S101 - expires is given
        if end <= now:
            raise Ended(f"its messages have expired since {end}")
        return options, {"end_at": end - _MICROSECOND}, (_EXPIRES,)
    return options, {"expires_after": expires}, (EXPIRY,)


def _object(field: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (RecursionError, ValueError) as error:
        raise Inexpressible(f"{field} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise Inexpressible(f"{field} is not an object")
    return value


def _plain(value: Any) -> Any:
    """Return the arguments with RedBeat's instants in the JSON of kombu, for the worker."""
    # JSON has no other containers. A test for Mapping takes longer than the rest.
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    kind = value.get("__type__")
    if kind == "datetime" and "__value__" not in value:
        instant = rules.instant_of(value)
        assert instant is not None  # noqa: S101 - value is a mapping
        return {"__type__": "datetime", "__value__": instant.isoformat()}
    if kind in {"interval", "crontab", "weekday", "rrule"}:
        raise Inexpressible(f"an argument is a {kind}: no message can have one")
    return {key: _plain(each) for key, each in value.items()}
