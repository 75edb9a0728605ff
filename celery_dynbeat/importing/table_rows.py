"""One row of the tables becomes one foreign entry. Pure functions.

The rules of the schedulers (``ModelEntry`` in their ``schedulers.py``):

    last_run_at empty     an interval counts from date_changed, or from the start of beat
    start_time            nothing before it; without a last run, the task runs at start_time itself
    expires               nothing from this instant on
    one_off               ends after one run; total_run_count > 0 means that it has run
    several schedules     the first of interval, crontab, solar, clocked
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any
from zoneinfo import ZoneInfo

from celery_dynbeat.api.edits import SourceProgress
from celery_dynbeat.importing import conversion
from celery_dynbeat.importing.conversion import CrontabFields, TriggerWithNotes
from celery_dynbeat.importing.foreign import (
    Converted,
    Ended,
    ForeignEntry,
    Inexpressible,
    Note,
    with_conversion,
)
from celery_dynbeat.triggers import Every, Once, Trigger

KINDS = ("interval", "crontab", "solar", "clocked")
_MICROSECOND = timedelta(microseconds=1)
_OPTIONS = ("queue", "exchange", "routing_key", "priority")
_INSTANTS = ("expires", "start_time", "last_run_at", "date_changed", "clocked_clocked_time")
_SOLAR = ("event", "latitude", "longitude")
_DESCRIPTION_LENGTH = 1024
_CUT = Note("description", f"cut to {_DESCRIPTION_LENGTH:,} characters")
_ENDS = Note(
    "expires",
    "no fire time from this instant on; a message sent before it no longer expires then",
)
_START_TIME = Note(
    "start_time",
    "the first run is the first match from start_time on; before, one run was at start_time itself",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The tables of one package, and how its scheduler reads them.

    - ``kinds`` has the table of each kind of schedule.
    - ``generic``: a row names its kind of schedule in ``discriminator``, in place of a foreign key
      for each kind.
    - ``counts_from_change``: without a last run, the scheduler counts from ``date_changed``.
    - ``ends_at_expiry``: ``expires`` stops the schedule. Otherwise only its messages expire.
    - ``runs_at_start``: without a last run, a crontab and a solar schedule run at ``start_time``.
    - ``naive_is_local``: instants without a zone are in the zone of the Celery application.
    - ``crontab_zone``: the zone of a crontab that names no zone. None means the zone of the
      application.
    """

    package: str
    tasks: str
    kinds: Mapping[str, str]
    generic: bool = False
    counts_from_change: bool = False
    ends_at_expiry: bool = False
    runs_at_start: bool = True
    naive_is_local: bool = False
    crontab_zone: str | None = None


DJANGO_CELERY_BEAT = Layout(
    package="django-celery-beat",
    tasks="django_celery_beat_periodictask",
    kinds={kind: f"django_celery_beat_{kind}schedule" for kind in KINDS},
    counts_from_change=True,
    ends_at_expiry=True,
)
SQLALCHEMY_CELERY_BEAT = Layout(
    package="sqlalchemy-celery-beat",
    tasks="celery_periodictask",
    kinds={kind: f"celery_{kind}schedule" for kind in KINDS},
    generic=True,
    crontab_zone="UTC",
)
CELERY_SQLALCHEMY_SCHEDULER = Layout(
    package="celery-sqlalchemy-scheduler",
    tasks="celery_periodic_task",
    kinds={kind: f"celery_{kind}_schedule" for kind in ("interval", "crontab", "solar")},
    runs_at_start=False,
    naive_is_local=True,
    crontab_zone="UTC",
)


def entry_of(
    row: Mapping[Any, Any], layout: Layout, *, zone: ZoneInfo, crontab_zone: str, now: datetime
) -> ForeignEntry:
    """Return the entry of a row.

    An instant that names no zone is in ``zone``, and a crontab that names none in ``crontab_zone``.
    """
    values = _Values(row)
    values |= {key: conversion.in_zone(values[key], zone) for key in _INSTANTS}
    one = _TableRow(values, layout, crontab_zone, now)
    entry = ForeignEntry(name=str(row["name"]), described=one.described, row=dict(values))
    return with_conversion(entry, one.converted)


class _Values(dict[str, Any]):
    """The columns of a row. Those that a version does not have are None."""

    def __missing__(self, column: str) -> None:
        return None


@dataclass(frozen=True)
class _TableRow:
    values: Mapping[str, Any]
    layout: Layout
    crontab_zone: str
    now: datetime

    @cached_property
    def kind(self) -> str | None:
        """The first kind of schedule that the row has."""
        kinds = (kind for kind in KINDS if self.values[f"{kind}_found"] is not None)
        return next(kinds, None)

    @cached_property
    def _schedule(self) -> tuple[str, Callable[[], TriggerWithNotes]]:
        """The schedule in the words of the source, and what converts it."""
        values = self.values
        match self.kind:
            case "interval":
                every, period = values["interval_every"], values["interval_period"]
                return f"every {every} {period}", lambda: conversion.interval(every, period)
            case "crontab":
                fields = CrontabFields(
                    *(values[f"crontab_{name}"] or "*" for name in CrontabFields._fields)
                )
                named = values["crontab_timezone"]
                zone = str(named or self.crontab_zone)
                text = f"crontab {fields} {named or ''}".strip()
                return text, lambda: conversion.cron(fields, zone)
            case "solar":
                event, *place = (values[f"solar_{name}"] for name in _SOLAR)
                text = f"solar {event} ({place[0]}, {place[1]})"
                return text, lambda: conversion.solar(event, *place)
            case "clocked":
                at = values["clocked_clocked_time"]
                return f"clocked {at}", lambda: TriggerWithNotes(Once(at))
            case _:
                return "no schedule", _no_schedule

    @property
    def described(self) -> str:
        """The schedule in the words of the source."""
        return self._schedule[0]

    def converted(self) -> tuple[Converted, Sequence[Note]]:
        """Return the arguments of ``create()`` and the progress, and what differs."""
        values = self.values
        self._check_not_ended()
        trigger, notes = self._schedule[1]()
        fields, more = self._fields(trigger)
        converted = Converted(
            task=str(values["task"]),
            trigger=trigger,
            fields=fields,
            enabled=bool(values["enabled"]),
            progress=self._progress(trigger),
        )
        return converted, (*notes, *more)

    def _check_not_ended(self) -> None:
        values = self.values
        if values["one_off"] and values["enabled"] and (values["total_run_count"] or 0) > 0:
            raise Ended("a one-off that has run")
        if values["expires"] is not None and values["expires"] <= self.now:
            raise Ended(f"expired at {values['expires']}")
        passed = self.kind == "clocked" and values["clocked_clocked_time"] <= self.now
        if passed and not values["enabled"]:
            raise Ended("disabled, and its time has passed")

    def _fields(self, trigger: Trigger) -> tuple[dict[str, Any], Sequence[Note]]:
        """Return the arguments of ``create()`` besides task and trigger, and what differs."""
        values, layout = self.values, self.layout
        text = str(values["description"] or "").replace("\x00", "")
        start_at = self._start_at(trigger)
        given = {
            "args": conversion.json_field("args", values["args"], []),
            "kwargs": conversion.json_field("kwargs", values["kwargs"], {}),
            "options": self._options(),
            "description": text[:_DESCRIPTION_LENGTH],
            "expires_after": values["expire_seconds"] or None,
            "max_runs": 1 if values["one_off"] and self.kind != "clocked" else None,
            # The old scheduler stops at the instant itself; end_at includes it.
            "end_at": values["expires"] and values["expires"] - _MICROSECOND,
            "start_at": start_at,
        }
        is_match = start_at is not None and not isinstance(trigger, Every | Once)
        notes = {
            _CUT: len(text) > _DESCRIPTION_LENGTH,
            conversion.EXPIRY: values["expire_seconds"],
            conversion.ONE_OFF: values["one_off"],
            (_ENDS if layout.ends_at_expiry else conversion.EXPIRES): values["expires"],
            _START_TIME: is_match and layout.runs_at_start,
        }
        fields = {name: value for name, value in given.items() if value is not None}
        return fields, [note for note, applies in notes.items() if applies]

    def _options(self) -> dict[str, Any]:
        values = self.values
        options = {key: values[key] for key in _OPTIONS if values[key] not in (None, "")}
        headers = conversion.json_field("headers", values["headers"], {})
        # The scheduler sets this option itself, as beat does here.
        if isinstance(headers, dict):
            headers.pop("periodic_task_name", None)
        if headers:
            options["headers"] = headers
        return options

    def _start_at(self, trigger: Trigger) -> datetime | None:
        """Return the first instant of the span. It is also the anchor of an interval."""
        values = self.values
        start: datetime | None = values["start_time"]
        last: datetime | None = values["last_run_at"]
        if start is None or (last is not None and last >= start):
            return None
        if isinstance(trigger, Every) and trigger.interval is not None and last is not None:
            return max(start, last + trigger.interval)
        return start

    def _progress(self, trigger: Trigger) -> SourceProgress:
        values = self.values
        if not values["enabled"]:
            return SourceProgress(run_count=values["total_run_count"] or 0)
        last = values["last_run_at"]
        since = last
        if last is None and self.layout.counts_from_change:
            since = values["date_changed"]
        if isinstance(trigger, Once):
            # An instant that has passed is due at once, as in the old scheduler.
            since = trigger.at - _MICROSECOND
        return SourceProgress(
            after=since,
            last_run_at=last,
            anchor_at=since,
            run_count=values["total_run_count"] or 0,
        )


def _no_schedule() -> TriggerWithNotes:
    raise Inexpressible("it has no schedule; the old scheduler disables it")
