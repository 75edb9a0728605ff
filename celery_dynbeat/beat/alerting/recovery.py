"""Check open alerts for recovery, those first whose last check is the oldest.

Each check reads a bounded window of open alerts, so its cost does not depend on their number. An
alert whose rule no longer applies is closed without a message. The alert of a deleted schedule is
deleted.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.beat.alerting.changes import Changed, event_of, state_of
from celery_dynbeat.beat.alerting.subjects import Subject, Subjects, last_runs, schedule_state
from celery_dynbeat.common.alert_kinds import AlertKind
from celery_dynbeat.planning.alerting import (
    AlertState,
    after_snooze,
    applies,
    has_recovered,
    recovered,
)
from celery_dynbeat.store import alerts
from celery_dynbeat.store.rows import Row
from celery_dynbeat.telemetry import events
from celery_dynbeat.telemetry.emitting import emit_on_commit, has_listeners

#: Open alerts that one check reads.
WINDOW = 500
#: An alert is checked after this time at the earliest.
RECHECK_AFTER = timedelta(seconds=10)
#: The other kinds need no history.
_NEED_RUNS = frozenset(
    (AlertKind.FAILED, AlertKind.LOST, AlertKind.LATE, AlertKind.SLOW, AlertKind.SILENT)
)


def check_open(session: Session, *, subjects: Subjects, now: datetime) -> tuple[int, int]:
    """Check a window of open alerts; return their number and that of the recovered ones."""
    locked = alerts.lock_open(session, checked_before=now - RECHECK_AFTER, limit=WINDOW)
    found = subjects.read(session, [row.schedule_id for row in locked.rows])
    present = [row for row in locked.rows if _is_of(row, found, now=now)]
    gone = [row.id for row in locked.rows if not _is_of(row, found, now=now)]
    alerts.delete(session, gone + [row.id for row in locked.unreadable])
    ended = _ended(session, present, found, now=now)
    alerts.update(session, [_columns(state) for state in ended.values()])
    left = [row for row in present if row.id not in ended]
    alerts.update(session, [{"id": row.id, "checked_at": now} for row in left])
    _end_snoozes(session, left, now=now)
    for row in present:
        if row.id in ended:
            emit_recovered(session, row, found[row.schedule_id], ended[row.id])
    return len(locked.rows) + len(locked.unreadable), len(ended)


def _end_snoozes(session: Session, rows: Sequence[Row], *, now: datetime) -> None:
    """Let messages report the locked open alerts whose snooze has ended."""
    snoozed = [state_of(row) for row in rows if row.snoozed_until is not None]
    ended = [(before, after_snooze(before, now=now)) for before in snoozed]
    alerts.update(
        session,
        [
            {
                "id": after.id,
                "unsent": after.unsent,
                "unsent_at": after.unsent_at,
                "snoozed_until": None,
            }
            for before, after in ended
            if after is not before
        ],
    )


def _is_of(row: Row, found: Mapping[int, Subject], *, now: datetime) -> bool:
    subject = found.get(row.schedule_id)
    return subject is not None and subject.existed_at(row.opened_at, now=now)


def _ended(
    session: Session, rows: Sequence[Row], found: Mapping[int, Subject], *, now: datetime
) -> Mapping[int, AlertState]:
    runs = last_runs(session, _schedules_to_read(rows, found), now=now)
    ended = {}
    for row in rows:
        kind, state, subject = AlertKind(row.kind), state_of(row), found[row.schedule_id]
        rule_applies = applies(kind, subject.rules)
        schedule = schedule_state(subject, runs.get(row.schedule_id, ()))
        if not rule_applies or has_recovered(kind, state, schedule, subject.rules, now=now):
            ended[row.id] = recovered(
                state, now=now, reports=subject.rules.recovered, rule_applies=rule_applies
            )
    return ended


def _schedules_to_read(rows: Sequence[Row], found: Mapping[int, Subject]) -> Sequence[int]:
    ids = set()
    for row in rows:
        is_failing = found[row.schedule_id].row.failing_since is not None
        failed = row.kind in (AlertKind.FAILED, AlertKind.LOST)
        if row.kind in _NEED_RUNS and not (failed and is_failing):
            ids.add(row.schedule_id)
    return sorted(ids)


def _columns(state: AlertState) -> dict[str, Any]:
    return {
        "id": state.id,
        "recovered_at": state.recovered_at,
        "unsent": state.unsent,
        "unsent_at": state.unsent_at,
        "checked_at": None,
    }


def recover(session: Session, row: Row, subject: Subject, *, now: datetime) -> None:
    """Write that a locked open alert has recovered, and report it after the commit."""
    state = recovered(state_of(row), now=now, reports=subject.rules.recovered)
    alerts.update(session, [_columns(state)])
    emit_recovered(session, row, subject, state)


def emit_recovered(session: Session, row: Row, subject: Subject, state: AlertState) -> None:
    """Send the signal of a recovery after the commit."""
    if has_listeners(events.AlertRecovered):
        changed = Changed(AlertKind(row.kind), subject, state, row.detail)
        emit_on_commit(session, event_of(events.AlertRecovered, changed))
