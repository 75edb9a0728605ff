"""What the API returns: values, cut loose from any session."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, overload

from celery_dynbeat.common.errors import InvalidScheduleError, InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.db.models import Backfill, Run, Schedule
from celery_dynbeat.planning.schedule_spec import key_for
from celery_dynbeat.triggers import Trigger, parse_trigger

#: Two names of 255 characters beyond the basic plane, as JSON in base 64, take less.
_MAX_CURSOR_LENGTH = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInfo:
    """A schedule as it stood when it was read. Instants are aware, in UTC.

    ``trigger`` is None when the row's text is damaged; ``error`` then says how. Each ``H`` in it
    stands for the numbers of this schedule. ``next_run_at`` is None when the schedule is paused,
    finished or broken. A policy that is None follows the settings. ``version`` grows with each
    edit.
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
    def of(cls, row: Schedule) -> "ScheduleInfo":
        """Return the value of a row."""
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
    """A run as it stood when it was read. Instants are aware, in UTC.

    ``id`` is the Celery task id. A ``skipped`` run stands for ``fire_count`` fire times, the newest
    of which is ``scheduled_for``. ``schedule_id`` is None once the schedule is deleted.
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
        """Return the value of a row."""
        return cls(**{name: getattr(row, name) for name in cls.__slots__})

    @property
    def lag(self) -> timedelta | None:
        """How long after its fire time the run was sent; None when it was not."""
        return None if self.sent_at is None else self.sent_at - self.scheduled_for


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillInfo:
    """A backfill as it stood when it was read. Instants are aware, in UTC.

    ``total`` counts the fire times from ``start_at`` to ``end_at``, ``made`` those that became
    runs, ``present`` those that had one. ``status`` is ``"running"`` until each fire time has its
    run, then ``"finished"``; what became of the runs is theirs to tell. Or it is ``"cancelled"``.
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
        """Return the value of a row, of the schedule that it belongs to."""
        special: dict[str, Any] = {
            "owner": schedule.owner,
            "name": schedule.name,
            "status": _status_of(row),
        }
        plain = {name: getattr(row, name) for name in cls.__slots__ if name not in special}
        return cls(**plain, **special)

    @property
    def progress(self) -> float:
        """The part of the fire times that has been dealt with: 0.0 to 1.0."""
        return 1.0 if self.status == "finished" else (self.made + self.present) / self.total


@dataclass(frozen=True, slots=True)
class Page(Sequence[ScheduleInfo]):
    """A part of a list. ``cursor`` given as ``after`` brings the next; None: this was the last."""

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
    """Return the cursor that stands behind ``schedule``."""
    key = json.dumps([schedule.owner, schedule.name]).encode()
    return base64.urlsafe_b64encode(key).decode()


def key_of(cursor: str) -> tuple[str, str]:
    """Return the (owner, name) in a cursor. Raises InvalidScheduleError when it is none of ours."""
    try:
        return _key_of(cursor)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        msg = f"after = {shorten(cursor)}: not a cursor; pass the cursor of the page before"
        raise InvalidScheduleError(msg, field="after") from error


def _key_of(cursor: str) -> tuple[str, str]:
    if len(cursor) > _MAX_CURSOR_LENGTH:
        raise ValueError
    owner, name = key = json.loads(base64.urlsafe_b64decode(cursor.encode()))
    if not isinstance(key, list):
        raise TypeError
    for text in key:
        # What no driver can send to its database: a lone surrogate, and on PostgreSQL a NUL.
        text.encode()
        if "\x00" in text:
            raise ValueError
    return owner, name


def _trigger(row: Schedule) -> tuple[Trigger | None, str | None]:
    """Return the row's trigger, or why it cannot be read, whether or not beat has met it yet."""
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
        # Typed by hand: longer than Python can say, or not a number. It hides no other schedule.
        return None
