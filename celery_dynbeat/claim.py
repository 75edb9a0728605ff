"""Due schedules to runs, within one transaction: claim, plan, record.

When the transaction commits, each fire time that was due is a ``pending`` run or stands in a
``skipped`` one, and the schedules have moved on. When it does not, nothing has happened. A schedule
that cannot be planned is set aside with its error; the others are not touched by it.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

from sqlalchemy import Row
from sqlalchemy.orm import Session

from celery_dynbeat import ids
from celery_dynbeat.db.models import Status
from celery_dynbeat.events import Event
from celery_dynbeat.planning import Plan, Rule, RuleColumns, first_fire, plan, rule_of
from celery_dynbeat.publish import Outgoing
from celery_dynbeat.settings import Settings
from celery_dynbeat.store import runs, schedules

logger = logging.getLogger(__name__)

#: With catch_up="all", the fire times of one schedule that one pass sends at most.
CATCH_UP_BATCH = 100


@dataclass(slots=True)
class Claimed:
    """What one claim decided, row by row."""

    rows: int = 0
    outgoing: list[Outgoing] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    changes: list[dict[str, Any]] = field(default_factory=list)
    aside: list[dict[str, Any]] = field(default_factory=list)


def claim(session: Session, *, now: datetime, settings: Settings) -> Claimed:
    """Claim a batch of due schedules, record their runs, and return what is to be published."""
    claimed = Claimed()
    for row in schedules.lock_due(session, now=now, limit=settings.batch_size):
        left = settings.batch_size - len(claimed.outgoing)
        if left <= 0:
            # A backlog: the rows behind stay due for the next pass.
            break
        claimed.rows += 1
        try:
            _decide(claimed, row, now=now, settings=settings, limit=min(left, CATCH_UP_BATCH))
        # Damaged text, a zone that vanished, a trigger with a flaw: this row's trouble alone.
        except Exception as error:  # noqa: BLE001
            _set_aside(claimed, row, error)
    _record(session, claimed)
    return claimed


def plan_unplanned(session: Session, *, now: datetime, settings: Settings) -> int:
    """Give a batch of unplanned schedules their next run; return how many there were."""
    claimed = Claimed()
    rows = schedules.lock_unplanned(session, limit=settings.batch_size)
    for row in rows:
        try:
            _check_payload(row)
            fire_at = first_fire(_rule(row, settings), now=now)
            claimed.changes.append(_moved(row, fire_at, row.run_count, None, now))
        # As above: this row's trouble alone.
        except Exception as error:  # noqa: BLE001
            _set_aside(claimed, row, error)
    _record(session, claimed)
    return len(rows)


def _decide(
    claimed: Claimed,
    row: Row[Any],
    *,
    now: datetime,
    settings: Settings,
    limit: int,
) -> None:
    _check_payload(row)
    planned = plan(
        _rule(row, settings),
        fire_at=row.next_fire_at,
        run_count=row.run_count,
        now=now,
        limit=limit,
    )
    for fire_at in planned.send:
        outgoing = _outgoing(row, fire_at, now)
        claimed.outgoing.append(outgoing)
        claimed.records.append(_pending(outgoing, now, settings.dispatch_timeout))
    if planned.skip is not None:
        claimed.records.append(_skipped(row, planned, now))
    count = row.run_count + len(planned.send)
    last_run_at = planned.send[-1] if planned.send else None
    claimed.changes.append(_moved(row, planned.next_fire_at, count, last_run_at, now))


def _record(session: Session, claimed: Claimed) -> None:
    new = runs.add(session, claimed.records)
    claimed.outgoing = [outgoing for outgoing in claimed.outgoing if outgoing.run_id in new]
    schedules.advance(session, [change for change in claimed.changes if "last_run_at" in change])
    schedules.advance(
        session, [change for change in claimed.changes if "last_run_at" not in change]
    )
    schedules.advance(session, claimed.aside)


def _rule(row: Row[Any], settings: Settings) -> Rule:
    # A Row has each selected column as an attribute, which its type cannot say.
    columns = cast("RuleColumns", row)
    return rule_of(columns, catch_up=settings.catch_up, grace=settings.dispatch_timeout)


def _check_payload(row: Row[Any]) -> None:
    # The API refuses such a row; one that was typed by hand is caught here.
    shapes = (("args", list), ("kwargs", dict), ("options", dict))
    for column, shape in shapes:
        if not isinstance(getattr(row, column), shape):
            msg = f"{column} must be a JSON {'array' if shape is list else 'object'}"
            raise TypeError(msg)


def _outgoing(row: Row[Any], fire_at: datetime, now: datetime) -> Outgoing:
    return Outgoing(
        run_id=ids.run_id(now),
        schedule_id=row.id,
        owner=row.owner,
        name=row.name,
        version=row.version,
        task=row.task,
        args=row.args,
        kwargs=row.kwargs,
        options=row.options,
        scheduled_for=fire_at,
        expires_at=expires_at(row.expires_after, created_at=now),
    )


def expires_at(expires_after: float | None, *, created_at: datetime) -> datetime | None:
    """Return when a run made at ``created_at`` may no longer start; None: it always may."""
    return None if expires_after is None else created_at + timedelta(seconds=expires_after)


def _pending(outgoing: Outgoing, now: datetime, timeout: timedelta) -> dict[str, Any]:
    return {
        **_history(outgoing.schedule_id, outgoing.owner, outgoing.name, outgoing.task),
        "id": outgoing.run_id,
        "scheduled_for": outgoing.scheduled_for,
        "status": Status.PENDING,
        "created_at": now,
        "overdue_at": now + timeout,
        "finished_at": None,
        "fire_count": 1,
        "error": None,
    }


def _skipped(row: Row[Any], planned: Plan, now: datetime) -> dict[str, Any]:
    skip = planned.skip
    assert skip is not None  # noqa: S101 - narrows the type: the caller has looked
    return {
        **_history(row.id, row.owner, row.name, row.task),
        "id": ids.run_id(now),
        "scheduled_for": skip.newest,
        "status": Status.SKIPPED,
        "created_at": now,
        "overdue_at": None,
        "finished_at": now,
        "fire_count": skip.count,
        "error": skip.reason,
    }


def _history(schedule_id: int, owner: str, name: str, task: str) -> Mapping[str, Any]:
    return {"schedule_id": schedule_id, "owner": owner, "name": name, "task": task}


def _moved(
    row: Row[Any],
    fire_at: datetime | None,
    run_count: int,
    last_run_at: datetime | None,
    now: datetime,
) -> dict[str, Any]:
    change = {
        "id": row.id,
        "next_fire_at": fire_at,
        "next_run_at": fire_at,
        "run_count": run_count,
        "finished_at": now if fire_at is None else None,
    }
    return change if last_run_at is None else {**change, "last_run_at": last_run_at}


def _set_aside(claimed: Claimed, row: Row[Any], error: Exception) -> None:
    logger.error(
        "schedule %r of owner %r is set aside: %s",
        row.name,
        row.owner,
        error,
        exc_info=error,
        extra={"event": Event.SCHEDULE_SET_ASIDE, "schedule_id": row.id},
    )
    claimed.aside.append(aside(row.id, error))


def aside(schedule_id: int, error: Exception) -> dict[str, Any]:
    """Return the change that takes a schedule out of the index, with its error in plain sight."""
    text = f"{type(error).__name__}: {error}"
    return {"id": schedule_id, "next_fire_at": None, "next_run_at": None, "error": text}
