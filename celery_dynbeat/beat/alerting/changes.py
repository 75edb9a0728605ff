"""Apply facts to the stored alerts, and write the alerts that changed.

The alerts of the schedules are locked first, so that what is decided is what is written. Two beats
that open the same alert insert it both. The unique key rejects one of them, and its transaction is
repeated and finds the alert.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from celery_dynbeat.beat.alerting.subjects import Subject, Subjects
from celery_dynbeat.common.alert_kinds import AlertKind
from celery_dynbeat.planning.alerting import AfterFacts, AlertState, Fact, after_facts
from celery_dynbeat.store import alerts
from celery_dynbeat.store.rows import Row
from celery_dynbeat.telemetry import events
from celery_dynbeat.telemetry.emitting import emit_on_commit, has_listeners

E = TypeVar("E", bound=events.AlertOpened)

#: Facts by schedule id and kind of alert.
Facts = Mapping[tuple[int, AlertKind], Sequence[Fact]]
#: Alerts whose value is a duration.
_TIMED = (AlertKind.LATE, AlertKind.SLOW)
#: The kinds whose detail is the error of their last run.
_OF_RUNS = (AlertKind.FAILED, AlertKind.LOST)


@dataclass(frozen=True, slots=True)
class Changed:
    """An alert after some facts, with its schedule and the text of its error."""

    kind: AlertKind
    subject: Subject
    state: AlertState
    detail: str | None


def state_of(row: Row) -> AlertState:
    """Return the state of a stored alert."""
    return AlertState(
        id=row.id,
        opened_at=row.opened_at,
        last_at=row.last_at,
        fact_count=row.fact_count,
        run_id=row.run_id,
        value=row.value,
        recovered_at=row.recovered_at,
        unsent=row.unsent,
        unsent_at=row.unsent_at,
        snoozed_until=row.snoozed_until,
    )


def apply_facts(
    session: Session,
    facts: Facts,
    found: Mapping[int, Subject],
    *,
    subjects: Subjects,
    now: datetime,
) -> int:
    """Open the alerts that ``facts`` open, and count the others; return the number of openings.

    The facts of a schedule whose alert another transaction has locked are dropped.
    """
    schedule_ids = sorted({key for key, _ in facts})
    busy = alerts.with_locked(session, schedule_ids)
    facts = {key: each for key, each in facts.items() if key[0] not in busy}
    stored = _stored(session, [each for each in schedule_ids if each not in busy])
    after = {
        key: result
        for key, each in facts.items()
        if (result := after_facts(stored.get(key), each, now=now, damping=subjects.damping))
        is not None
    }
    errors = alerts.errors_of(session, _run_ids(after))
    changed = {
        (schedule_id, kind): Changed(
            kind,
            found[schedule_id],
            result.state,
            _detail(kind, found[schedule_id].row, result.state, errors),
        )
        for (schedule_id, kind), result in after.items()
    }
    _write(session, changed, subjects=subjects, now=now)
    opened = [each for key, each in changed.items() if after[key].opened]
    for each in opened:
        _emit_opened(session, each)
    return len(opened)


def _stored(session: Session, schedule_ids: Sequence[int]) -> Mapping[Any, AlertState]:
    rows = alerts.lock_of(session, schedule_ids)
    # An alert that cannot be read is replaced: only SQL by hand writes such a value.
    alerts.delete(session, [row.id for row in rows.unreadable])
    return {(row.schedule_id, AlertKind(row.kind)): state_of(row) for row in rows.rows}


def _run_ids(after: Mapping[tuple[int, AlertKind], AfterFacts]) -> Sequence[str]:
    states = [result.state for (_, kind), result in after.items() if kind in _OF_RUNS]
    return sorted({state.run_id for state in states if state.run_id is not None})


def _detail(kind: AlertKind, row: Row, state: AlertState, errors: Mapping[str, str]) -> str | None:
    if kind in _OF_RUNS:
        return errors.get(state.run_id or "")
    texts = {AlertKind.QUARANTINED: row.error, AlertKind.PAUSED: row.paused_reason}
    text: str | None = texts.get(kind)
    return text


def _write(
    session: Session,
    changed: Mapping[tuple[int, AlertKind], Changed],
    *,
    subjects: Subjects,
    now: datetime,
) -> None:
    new, old = [], []
    # In the order of the unique key: two beats then wait for each other, without a deadlock.
    for key in sorted(changed):
        each = changed[key]
        columns = _columns(each, target=subjects.target(each.subject), now=now)
        if each.state.id is None:
            new.append({"schedule_id": key[0], "kind": key[1].value, **columns})
        else:
            old.append({"id": each.state.id, **columns})
    alerts.insert(session, new)
    alerts.update(session, old)


def _columns(each: Changed, *, target: str, now: datetime) -> dict[str, Any]:
    state = each.state
    return {
        "owner": each.subject.row.owner,
        "name": each.subject.row.name,
        "opened_at": state.opened_at,
        "last_at": state.last_at,
        "fact_count": state.fact_count,
        "run_id": state.run_id,
        "value": state.value,
        "detail": each.detail,
        "target": target,
        "recovered_at": None,
        "unsent": state.unsent,
        "unsent_at": state.unsent_at,
        "snoozed_until": state.snoozed_until,
        "checked_at": now,
    }


def _emit_opened(session: Session, each: Changed) -> None:
    if has_listeners(events.AlertOpened):
        emit_on_commit(session, event_of(events.AlertOpened, each))


def event_of(event_type: type[E], each: Changed) -> E:
    """Return the event of an alert that was opened or has recovered."""
    state, row = each.state, each.subject.row
    is_duration = each.kind in _TIMED and state.value is not None
    return event_type(
        kind=each.kind.value,
        schedule_id=row.id,
        owner=row.owner,
        schedule=row.name,
        task=row.task,
        opened_at=state.opened_at,
        run_id=state.run_id,
        value=timedelta(seconds=state.value or 0) if is_duration else None,
        detail=each.detail,
    )


def grouped(facts: Sequence[tuple[int, AlertKind, Fact]]) -> Facts:
    """Return facts by schedule id and kind of alert."""
    by_key: defaultdict[tuple[int, AlertKind], list[Fact]] = defaultdict(list)
    for schedule_id, kind, fact in facts:
        by_key[schedule_id, kind].append(fact)
    return by_key
