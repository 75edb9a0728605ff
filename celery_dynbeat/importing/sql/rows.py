"""One row of the tables becomes one found schedule. Pure functions.

The rules of the schedulers (``ModelEntry`` in their ``schedulers.py``):

    last_run_at empty     an interval counts from date_changed, or from the start of beat
    start_time            nothing before it; without a last run, the task runs at start_time itself
    expires               nothing from this instant on
    one_off               ends after one run; total_run_count > 0 means that it has run
    several schedules     the first of interval, crontab, solar, clocked
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any
from zoneinfo import ZoneInfo

from celery_dynbeat.api.edit.source_progress import SourceProgress
from celery_dynbeat.importing import conversion
from celery_dynbeat.importing.conversion import CrontabFields, TriggerWithNotes
from celery_dynbeat.importing.found import Converted, Ended, Found, Inexpressible, Note
from celery_dynbeat.importing.sql.layouts import Layout
from celery_dynbeat.triggers import Every, Once, Trigger

_MICROSECOND = timedelta(microseconds=1)
_KINDS = ("interval", "crontab", "solar", "clocked")
_CRONTAB = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
_OPTIONS = ("queue", "exchange", "routing_key", "priority")
_INSTANTS = ("expires", "start_time", "last_run_at", "date_changed", "clocked_clocked_time")
_DESCRIPTION_LENGTH = 1024


@dataclass(frozen=True)
class RowConverter:
    """Converts rows of ``layout``. Instants that name no zone are in ``zone``."""

    layout: Layout
    zone: ZoneInfo
    #: The zone of a crontab that names no zone.
    crontab_zone: str

    def found(self, row: Mapping[str, Any], *, now: datetime) -> Found:
        """Return the found schedule of a row."""
        aware = {key: conversion.in_zone(row[key], self.zone) for key in _INSTANTS}
        one = _Row({**row, **aware}, self, now)
        found = Found(name=str(row["name"]), described=one.described, row=one.values)
        try:
            return replace(found, converted=one.converted(), notes=tuple(one.notes))
        except Inexpressible as reason:
            return replace(found, refused=str(reason))
        except Ended as reason:
            return replace(found, ended=str(reason))


@dataclass(frozen=True)
class _Row:
    values: Mapping[str, Any]
    converter: RowConverter
    now: datetime
    notes: list[Note] = field(default_factory=list)

    @cached_property
    def kind(self) -> str | None:
        """The first kind of schedule that the row has."""
        kinds = (kind for kind in _KINDS if self.values[f"{kind}_found"] is not None)
        return next(kinds, None)

    @property
    def described(self) -> str:
        """The schedule in the words of the source."""
        values = self.values
        match self.kind:
            case "interval":
                return f"every {values['interval_every']} {values['interval_period']}"
            case "crontab":
                return f"crontab {self._crontab} {values['crontab_timezone'] or ''}".strip()
            case "solar":
                place = f"({values['solar_latitude']}, {values['solar_longitude']})"
                return f"solar {values['solar_event']} {place}"
            case "clocked":
                return f"clocked {values['clocked_clocked_time']}"
            case _:
                return "no schedule"

    def converted(self) -> Converted:
        """Return the arguments of ``create()`` and the progress."""
        values = self.values
        self._check_not_ended()
        trigger, notes = self._trigger()
        self.notes.extend(notes)
        fields = {**self._payload(), **self._limits(), **self._span(trigger)}
        return Converted(
            task=str(values["task"]),
            trigger=trigger,
            fields=fields,
            enabled=bool(values["enabled"]),
            progress=self._progress(trigger),
        )

    def _check_not_ended(self) -> None:
        values = self.values
        if values["one_off"] and values["enabled"] and (values["total_run_count"] or 0) > 0:
            raise Ended("a one-off that has run")
        if values["expires"] is not None and values["expires"] <= self.now:
            raise Ended(f"expired at {values['expires']}")
        passed = self.kind == "clocked" and values["clocked_clocked_time"] <= self.now
        if passed and not values["enabled"]:
            raise Ended("disabled, and its time has passed")

    def _trigger(self) -> TriggerWithNotes:
        values = self.values
        match self.kind:
            case "interval":
                return conversion.interval(values["interval_every"], values["interval_period"])
            case "crontab":
                timezone = values["crontab_timezone"] or self.converter.crontab_zone
                return conversion.cron(self._crontab, str(timezone))
            case "solar":
                place = values["solar_latitude"], values["solar_longitude"]
                return conversion.solar(values["solar_event"], *place)
            case "clocked":
                return TriggerWithNotes(Once(values["clocked_clocked_time"]))
            case _:
                raise Inexpressible("it has no schedule; the old scheduler disables it")

    @property
    def _crontab(self) -> CrontabFields:
        return CrontabFields(*(self.values[f"crontab_{name}"] or "*" for name in _CRONTAB))

    def _payload(self) -> dict[str, Any]:
        values = self.values
        options = {key: values[key] for key in _OPTIONS if values[key] not in (None, "")}
        headers = conversion.json_field("headers", values["headers"], {})
        # The scheduler sets this option itself, as beat does here.
        if isinstance(headers, dict):
            headers.pop("periodic_task_name", None)
        if headers:
            options["headers"] = headers
        return {
            "args": conversion.json_field("args", values["args"], []),
            "kwargs": conversion.json_field("kwargs", values["kwargs"], {}),
            "options": options,
            "description": self._description(),
        }

    def _description(self) -> str:
        text = str(self.values["description"] or "").replace("\x00", "")
        if len(text) > _DESCRIPTION_LENGTH:
            rule = f"cut to {_DESCRIPTION_LENGTH:,} characters"
            self.notes.append(Note("description", rule))
        return text[:_DESCRIPTION_LENGTH]

    def _limits(self) -> dict[str, Any]:
        values = self.values
        limits: dict[str, Any] = {}
        if values["expire_seconds"]:
            limits["expires_after"] = values["expire_seconds"]
            self.notes.append(conversion.EXPIRY)
        if values["one_off"]:
            self.notes.append(conversion.ONE_OFF)
            if self.kind != "clocked":
                limits["max_runs"] = 1
        return limits

    def _span(self, trigger: Trigger) -> dict[str, Any]:
        values = self.values
        span = {}
        if values["expires"] is not None:
            # The old scheduler stops at the instant itself; end_at includes it.
            span["end_at"] = values["expires"] - _MICROSECOND
            self.notes.append(_expires_note(self.converter.layout))
        start_at = self._start_at(trigger)
        if start_at is not None:
            span["start_at"] = start_at
        return span

    def _start_at(self, trigger: Trigger) -> datetime | None:
        """Return the first instant of the span. It is also the anchor of an interval."""
        values = self.values
        start: datetime | None = values["start_time"]
        last: datetime | None = values["last_run_at"]
        if start is None or (last is not None and last >= start):
            return None
        if isinstance(trigger, Every) and trigger.interval is not None and last is not None:
            return max(start, last + trigger.interval)
        if self.converter.layout.runs_at_start and not isinstance(trigger, Every | Once):
            rule = "the first run is the first match from start_time on"
            self.notes.append(
                Note("start_time", f"{rule}; before, one run was at start_time itself")
            )
        return start

    def _progress(self, trigger: Trigger) -> SourceProgress:
        values = self.values
        if not values["enabled"]:
            return SourceProgress(run_count=values["total_run_count"] or 0)
        last = values["last_run_at"]
        since = last
        if last is None and self.converter.layout.counts_from_change:
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


def _expires_note(layout: Layout) -> Note:
    if layout.ends_at_expiry:
        rule = "no fire time from this instant on; a message sent before it no longer expires then"
    else:
        rule = "no fire time from this instant on; before, messages were sent and then discarded"
    return Note("expires", rule)
