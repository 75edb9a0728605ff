"""Evaluate the facts that workers and beats have stored.

    lock facts, skipping those of other beats -> read their schedules -> apply -> delete the facts

This is one transaction. After a crash either all of it is written or nothing, and then any beat
evaluates the same facts. A fact of a schedule that is deleted, or whose rules it does not break, is
only deleted.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from celery_dynbeat.beat.alerting.changes import Facts, apply_facts, grouped
from celery_dynbeat.beat.alerting.subjects import Subject, Subjects, last_runs
from celery_dynbeat.common.alert_kinds import AlertKind
from celery_dynbeat.planning.alerting import End, Fact, kinds_of
from celery_dynbeat.store import alert_events, alerts, failing
from celery_dynbeat.store.rows import Row

#: Facts that one transaction evaluates. Smaller ones cost more in total, and delay beat more.
BATCH = 200
#: Rows besides the ended runs that a streak may contain: skipped and unfinished ones.
STREAK_MARGIN = 20
#: Rows of history that one query of streaks reads.
MAX_STREAK_ROWS = 20_000
_FAILURES = (AlertKind.FAILED, AlertKind.LOST)


def evaluate_facts(
    session: Session, *, subjects: Subjects, now: datetime, failpoint: Callable[[str], None]
) -> tuple[int, int]:
    """Evaluate a batch of facts; return their number and the number of alerts that opened."""
    locked = alert_events.lock(session, limit=BATCH)
    # The facts of a schedule whose alert is locked wait for the next pass.
    busy = alerts.with_locked(session, sorted({row.schedule_id for row in locked.rows}))
    if busy:
        locked = locked._replace(rows=[row for row in locked.rows if row.schedule_id not in busy])
    failpoint("locked")
    found = subjects.read(session, [row.schedule_id for row in locked.rows])
    rows = [
        row
        for row in locked.rows
        if row.schedule_id in found and found[row.schedule_id].existed_at(row.at, now=now)
    ]
    facts = _opening(rows, found, _ends(session, rows, found, now=now))
    opened = apply_facts(session, facts, found, subjects=subjects, now=now) if facts else 0
    failpoint("applied")
    alert_events.delete(session, [row.id for row in (*locked.rows, *locked.unreadable)])
    failpoint("deleted")
    return len(locked.rows) + len(locked.unreadable), opened


def _opening(
    rows: Sequence[Row], found: Mapping[int, Subject], ends: Mapping[int, Collection[End]]
) -> Facts:
    """Return the facts that the rules of their schedules make an alert."""
    return grouped(
        [
            (row.schedule_id, kind, fact)
            for row in rows
            for fact in [_fact(row)]
            for kind in kinds_of(fact, found[row.schedule_id].rules, ends.get(row.schedule_id, ()))
        ]
    )


def _fact(row: Row) -> Fact:
    return Fact(kind=AlertKind(row.kind), at=row.at, run_id=row.run_id, value=row.value)


def _ends(
    session: Session, rows: Sequence[Row], found: Mapping[int, Subject], *, now: datetime
) -> Mapping[int, Collection[End]]:
    """Return the last ends of the schedules whose rule counts more than one failure."""
    failed = {row.schedule_id for row in rows if row.kind in _FAILURES}
    by_length: defaultdict[int, list[int]] = defaultdict(list)
    for schedule_id in sorted(failed):
        length = found[schedule_id].rules.after_failures
        if length is not None and length > 1:
            by_length[length].append(schedule_id)
    # Facts may have waited: the runs that ended later are read, too.
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
