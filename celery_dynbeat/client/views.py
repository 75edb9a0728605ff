"""The values that the API returns. They belong to no session."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, overload

from celery_dynbeat.client.columns import ScheduleRow
from celery_dynbeat.common.errors import InvalidScheduleError, InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.db.models import Backfill, Run, Schedule
from celery_dynbeat.planning.schedule_spec import key_for
from celery_dynbeat.triggers import Trigger, parse_trigger

#: Characters. Two names of 255 characters outside the BMP, as JSON in base64, are shorter.
_MAX_CURSOR_LENGTH = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInfo:
    """A snapshot of a schedule. Instants are aware and in UTC.

    - ``trigger`` is None if the stored trigger is damaged; ``error`` then contains the reason. An
      ``H`` in it has the values of this schedule.
    - ``next_run_at`` is None if the schedule is paused, finished or quarantined.
    - A policy (``catch_up`` to ``pause_after_failures``) that is None follows the settings.
    - ``version`` increases by one with each edit.
    """

    id: int
    owner: str
    name: str
    task: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]
    trigger: Trigger | None
    timezone: str
    enabled: bool
    paused_reason: str | None
    start_at: datetime | None
    end_at: datetime | None
    max_runs: int | None
    run_count: int
    catch_up: str | None
    catch_up_window: timedelta | None
    expires_after: timedelta | None
    jitter: timedelta | None
    overlap: str | None
    max_run_time: timedelta | None
    on_lost: str | None
    pause_after_failures: int | None
    next_run_at: datetime | None
    last_run_at: datetime | None
    finished_at: datetime | None
    error: str | None
    description: str
    tags: Sequence[str]
    version: int
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, row: ScheduleRow) -> "ScheduleInfo":
        """Return a snapshot of a row."""
        trigger, trigger_error = _trigger(row)
        special: dict[str, Any] = {
            "trigger": trigger,
            "error": row.error or trigger_error,
            "catch_up_window": _duration(row.catch_up_window),
            "expires_after": _duration(row.expires_after),
            "jitter": _duration(row.jitter),
            "max_run_time": _duration(row.max_run_time),
        }
        plain = {name: getattr(row, name) for name in cls.__slots__ if name not in special}
        return cls(**plain, **special)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """A snapshot of a run. Instants are aware and in UTC.

    - ``id`` is the Celery task id.
    - A ``skipped`` run represents ``fire_count`` fire times; ``scheduled_for`` is the newest.
    - ``schedule_id`` is None after the schedule was deleted.
    """

    id: str
    schedule_id: int | None
    owner: str
    name: str
    task: str
    scheduled_for: datetime
    fire_count: int
    status: str
    origin: str
    attempt: int
    created_at: datetime
    sent_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    worker: str | None
    error: str | None
    traceback: str | None

    @classmethod
    def of(cls, row: Run) -> "RunInfo":
        """Return a snapshot of a row."""
        return cls(**{name: getattr(row, name) for name in cls.__slots__})

    @property
    def lag(self) -> timedelta | None:
        """The time from the fire time to the send, None if the run was not sent."""
        return None if self.sent_at is None else self.sent_at - self.scheduled_for


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillInfo:
    """A snapshot of a backfill. Instants are aware and in UTC.

    - ``total`` is the number of fire times from ``start_at`` to ``end_at``. ``made`` of them became
      runs, ``present`` of them already had a run.
    - ``status`` is ``"running"`` until each fire time has a run, then ``"finished"``, or
      ``"cancelled"``. The runs of a finished backfill can be unfinished or failed.
    """

    id: int
    owner: str
    name: str
    start_at: datetime
    end_at: datetime
    total: int
    made: int
    present: int
    status: str
    created_at: datetime
    finished_at: datetime | None

    @classmethod
    def of(cls, row: Backfill, schedule: Schedule) -> "BackfillInfo":
        """Return a snapshot of a row; ``schedule`` is the row's schedule."""
        special: dict[str, Any] = {
            "owner": schedule.owner,
            "name": schedule.name,
            "status": _status_of(row),
        }
        plain = {name: getattr(row, name) for name in cls.__slots__ if name not in special}
        return cls(**plain, **special)

    @property
    def progress(self) -> float:
        """The fraction of the fire times that have a run: 0.0 to 1.0."""
        return 1.0 if self.status == "finished" else (self.made + self.present) / self.total


@dataclass(frozen=True, slots=True)
class Page(Sequence[ScheduleInfo]):
    """One page of a list. Pass ``cursor`` as ``after`` to get the next page.

    ``cursor`` is None if this is the last page.
    """

    items: tuple[ScheduleInfo, ...]
    cursor: str | None

    @overload
    def __getitem__(self, index: int) -> ScheduleInfo: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[ScheduleInfo]: ...

    def __getitem__(self, index: int | slice) -> ScheduleInfo | Sequence[ScheduleInfo]:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)


def cursor_of(schedule: ScheduleInfo) -> str:
    """Return the cursor of a page that ends with ``schedule``."""
    key = json.dumps([schedule.owner, schedule.name]).encode()
    return base64.urlsafe_b64encode(key).decode()


def key_of(cursor: str) -> tuple[str, str]:
    """Return the (owner, name) in a cursor. Raises InvalidScheduleError for another text."""
    try:
        return _key_of(cursor)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        msg = f"after = {shorten(cursor)}: not a cursor; pass the cursor of the previous page"
        raise InvalidScheduleError(msg, field="after") from error


def _key_of(cursor: str) -> tuple[str, str]:
    if len(cursor) > _MAX_CURSOR_LENGTH:
        raise ValueError
    owner, name = key = json.loads(base64.urlsafe_b64decode(cursor.encode()))
    if not isinstance(key, list):
        raise TypeError
    for text in key:
        # No driver can send a lone surrogate; PostgreSQL's cannot send a NUL either.
        text.encode()
        if "\x00" in text:
            raise ValueError
    return owner, name


def _trigger(row: ScheduleRow) -> tuple[Trigger | None, str | None]:
    """Return the row's trigger, or None and the error if it cannot be read."""
    try:
        trigger = parse_trigger(row.trigger_kind, row.trigger_spec, timezone=row.timezone)
        return trigger.bound_to(key_for(row.owner, row.name)), None
    except InvalidTriggerError as error:
        return None, f"{type(error).__name__}: {error}"


def _status_of(row: Backfill) -> str:
    if row.cancelled:
        return "cancelled"
    return "running" if row.finished_at is None else "finished"


def _duration(seconds: float | None) -> timedelta | None:
    try:
        return None if seconds is None else timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        # Written by SQL: longer than a timedelta, or NaN. A list must still show the schedules.
        return None
