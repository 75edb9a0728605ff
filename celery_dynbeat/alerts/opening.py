"""Evaluate the facts of a batch, and open or count the alerts that they are about.

    lock facts that no other beat has locked -> read their schedules -> apply -> delete the facts

This is one transaction. After a crash either all of it is written or nothing, and then any beat
evaluates the same facts. A fact of a schedule that is deleted, or whose rules it does not break, is
only deleted.

The alerts of the schedules are locked before they change, so that no other transaction changes them
between the decision and the write. Two beats that open the same alert insert it both. The unique
key rejects one of them, and its transaction is repeated and finds the alert.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from celery_dynbeat.alerts.subjects import Subject, Subjects, last_runs
from celery_dynbeat.common.alert_kinds import AlertKind
from celery_dynbeat.db.statements import Row
from celery_dynbeat.planning import owner_notices
from celery_dynbeat.planning.alerting import (
    AfterFacts,
    AlertState,
    End,
    Fact,
    after_facts,
    kinds_of,
)
from celery_dynbeat.store.alerts import alerts
from celery_dynbeat.store.alerts import facts as stored_facts
from celery_dynbeat.store.schedules import failing
from celery_dynbeat.telemetry import emit_on_commit, events, has_listeners

#: Facts that one transaction evaluates. Smaller ones cost more in total, and delay beat more.
BATCH = 200
#: The number of skipped and unfinished runs that are read in addition to the ended runs of a
#: streak.
STREAK_MARGIN = 20
#: The maximum number of rows of history that one query of streaks reads.
MAX_STREAK_ROWS = 20_000
_FAILURES = (AlertKind.FAILED, AlertKind.LOST)
#: Alerts whose value is a duration.
_TIMED = (AlertKind.LATE, AlertKind.SLOW)
#: Facts by schedule id and kind of alert.
Facts = Mapping[tuple[int, AlertKind], Sequence[Fact]]
E = TypeVar("E", bound=events.AlertOpened)


def evaluate_facts(
    session: Session, *, subjects: Subjects, now: datetime, failpoint: Callable[[str], None]
) -> tuple[int, int]:
    """Evaluate a batch of facts; return their number and the number of alerts that opened."""
    locked = stored_facts.lock(session, limit=BATCH)
    # The facts of a schedule whose alert is locked wait for the next pass.
    busy = alerts.with_locked(session, sorted({row.schedule_id for row in locked}))
    if busy:
        locked = [row for row in locked if row.schedule_id not in busy]
    failpoint("locked")
    schedules = subjects.read(session, [row.schedule_id for row in locked])
    rows = [
        row
        for row in locked
        if row.schedule_id in schedules and schedules[row.schedule_id].existed_at(row.at, now=now)
    ]
    facts = _opening(rows, schedules, _ends(session, rows, schedules, now=now))
    opened = apply_facts(session, facts, schedules, subjects=subjects, now=now) if facts else 0
    failpoint("applied")
    stored_facts.delete(session, [row.id for row in locked])
    failpoint("deleted")
    return len(locked), opened


def _opening(
    rows: Sequence[Row], schedules: Mapping[int, Subject], ends: Mapping[int, Collection[End]]
) -> Facts:
    """Return the facts that the rules of their schedules make an alert."""
    opening = []
    for row in rows:
        key = row.schedule_id
        fact = Fact(kind=AlertKind(row.kind), at=row.at, run_id=row.run_id, value=row.value)
        kinds = kinds_of(fact, schedules[key].rules, ends.get(key, ()))
        opening += [(key, kind, fact) for kind in kinds]
    return grouped(opening)


def _ends(
    session: Session, rows: Sequence[Row], schedules: Mapping[int, Subject], *, now: datetime
) -> Mapping[int, Collection[End]]:
    """Return the last ends of the schedules whose rule counts more than one failure."""
    failed = {row.schedule_id for row in rows if row.kind in _FAILURES}
    by_length: defaultdict[int, list[int]] = defaultdict(list)
    for schedule_id in sorted(failed):
        length = schedules[schedule_id].rules.after_failures
        if length is not None and length > 1:
            by_length[length].append(schedule_id)
    # Facts may have waited, so the runs that ended later are also read.
    waited = Counter(row.schedule_id for row in rows)
    ends: dict[int, Collection[End]] = {}
    for length, ids in by_length.items():
        limit = length + STREAK_MARGIN + max(waited[each] for each in ids)
        size = max(1, MAX_STREAK_ROWS // limit)
        for start in range(0, len(ids), size):
            part = last_runs(session, ids[start : start + size], now=now, limit=limit)
            ends |= {key: _ended(runs) for key, runs in part.items()}
    return ends


def _ended(runs: Sequence[Row]) -> Collection[End]:
    return [
        End(run.finished_at, run.status in _FAILURES)
        for run in runs
        if run.status in failing.OUTCOMES and run.finished_at is not None
    ]


@dataclass(frozen=True, slots=True)
class Evaluated:
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
        owner_notice=row.owner_notice,
        owner_notice_at=row.owner_notice_at,
    )


def apply_facts(
    session: Session,
    facts: Facts,
    schedules: Mapping[int, Subject],
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
    if subjects.has_recipient:
        after = {
            key: _with_notice(result, stored.get(key), key[1], subjects=subjects, now=now)
            if schedules[key[0]].row.owner
            else result
            for key, result in after.items()
        }
    errors = alerts.errors_of(session, _run_ids(after))
    evaluated = {
        (schedule_id, kind): Evaluated(
            kind,
            schedules[schedule_id],
            result.state,
            _detail(kind, schedules[schedule_id].row, result.state, errors),
        )
        for (schedule_id, kind), result in after.items()
    }
    _write(session, evaluated, subjects=subjects, now=now)
    opened = [each for key, each in evaluated.items() if after[key].opened]
    if has_listeners(events.AlertOpened):
        emit_on_commit(session, *(event_of(events.AlertOpened, each) for each in opened))
    return len(opened)


def _with_notice(
    result: AfterFacts,
    before: AlertState | None,
    kind: AlertKind,
    *,
    subjects: Subjects,
    now: datetime,
) -> AfterFacts:
    due_at = now + subjects.notice_delay
    state = owner_notices.opened(before, result.state, kind=kind, due_at=due_at)
    return result._replace(state=state)


def _stored(session: Session, schedule_ids: Sequence[int]) -> Mapping[Any, AlertState]:
    rows = alerts.lock_of(session, schedule_ids)
    return {(row.schedule_id, AlertKind(row.kind)): state_of(row) for row in rows}


def _run_ids(after: Mapping[tuple[int, AlertKind], AfterFacts]) -> Sequence[str]:
    states = [result.state for (_, kind), result in after.items() if kind in _FAILURES]
    return sorted({state.run_id for state in states if state.run_id is not None})


def _detail(kind: AlertKind, row: Row, state: AlertState, errors: Mapping[str, str]) -> str | None:
    if kind in _FAILURES:
        return errors.get(state.run_id or "")
    texts = {AlertKind.QUARANTINED: row.error, AlertKind.PAUSED: row.paused_reason}
    text: str | None = texts.get(kind)
    return text


def _write(
    session: Session,
    evaluated: Mapping[tuple[int, AlertKind], Evaluated],
    *,
    subjects: Subjects,
    now: datetime,
) -> None:
    new, old = [], []
    # In the order of the unique key, so that two beats wait for each other without a deadlock.
    for key in sorted(evaluated):
        each = evaluated[key]
        columns = _columns(each, target=subjects.target(each.subject), now=now)
        if each.state.id is None:
            new.append({"schedule_id": key[0], "kind": key[1].value, **columns})
        else:
            old.append({"id": each.state.id, **columns})
    alerts.insert(session, new)
    alerts.update(session, old)


def _columns(each: Evaluated, *, target: str, now: datetime) -> dict[str, Any]:
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
        "owner_notice": state.owner_notice,
        "owner_notice_at": state.owner_notice_at,
        "checked_at": now,
    }


def event_of(event_type: type[E], each: Evaluated) -> E:
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
