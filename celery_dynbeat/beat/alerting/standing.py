"""Find what is late or slow now, before it ends: overdue schedules and unfinished runs.

Workers and claims store facts of runs that were late or slow. They store none while a broker is
unreachable, while no worker takes messages, or while a task hangs. So each check reads a window of
the due index and one of the unfinished runs. The next check continues after it.

What a hold stops is not late: neither during the hold, nor by the time before its end. A buffered
run waits for the previous one, and is not late either.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from celery_dynbeat.beat.alerting.changes import Facts, grouped
from celery_dynbeat.beat.alerting.subjects import Subject, Subjects
from celery_dynbeat.common.alert_kinds import AlertKind
from celery_dynbeat.common.run_states import UNSTARTED, Status
from celery_dynbeat.planning.alerting import MIN_LATE, MIN_SLOW, Fact, kinds_of
from celery_dynbeat.store import alert_scans
from celery_dynbeat.store.alert_scans import OverdueKey, RunKey, Window
from celery_dynbeat.store.rows import Row

#: Rows that one check reads of each index.
WINDOW = 1_000


@dataclass(frozen=True, slots=True)
class Standing:
    """What lasts at an instant: facts by schedule and kind, and their schedules."""

    facts: Facts
    found: dict[int, Subject]


@dataclass(slots=True)
class StandingCheck:
    """Where the next check continues, and when the last hold of everything ended."""

    subjects: Subjects
    overdue_after: OverdueKey | None = None
    unfinished_after: RunKey | None = None
    is_held: bool = False
    held_until: datetime | None = field(default=None)

    def read(self, session: Session, *, now: datetime) -> Standing:
        """Return what is late or slow now in the next windows. Locks nothing."""
        given = [*self._overdue(session, now=now), *self._unfinished(session, now=now)]
        found = dict(self.subjects.read(session, [schedule_id for schedule_id, _ in given]))
        opening = [
            (schedule_id, kind, fact)
            for schedule_id, fact in given
            if schedule_id in found
            for kind in kinds_of(fact, found[schedule_id].rules, ())
        ]
        return Standing(grouped(opening), found)

    def _overdue(self, session: Session, *, now: datetime) -> Sequence[tuple[int, Fact]]:
        was_held, self.is_held = self.is_held, alert_scans.is_everything_held(session, now=now)
        if self.is_held:
            return ()
        if was_held:
            self.held_until = now
        window = alert_scans.overdue_schedules(
            session, before=now - MIN_LATE, after=self.overdue_after, limit=WINDOW
        )
        last = _last(window)
        self.overdue_after = None if last is None else (last.next_run_at, last.id)
        held = alert_scans.held_owners(session, sorted({row.owner for row in window.rows}), now=now)
        return [
            (row.id, _fact(AlertKind.LATE, now - max(row.next_run_at, self._since(row)), now))
            for row in window.rows
            if row.owner not in held
        ]

    def _since(self, row: Row) -> datetime:
        since: datetime = self.held_until or row.next_run_at
        return since

    def _unfinished(self, session: Session, *, now: datetime) -> Sequence[tuple[int, Fact]]:
        window = alert_scans.unfinished_runs(session, after=self.unfinished_after, limit=WINDOW)
        last = _last(window)
        self.unfinished_after = None if last is None else (last.schedule_id, last.id)
        facts, before = [], None
        for row in window.rows:
            follows = before is not None and before.schedule_id == row.schedule_id
            fact = _fact_of_run(row, follows_unfinished=follows, now=now)
            if fact is not None:
                facts.append((row.schedule_id, fact))
            before = row
        return facts


def _last(window: Window) -> Row | None:
    """Return the row after which the next window begins; None: it begins at the start."""
    return window.rows[-1] if window.is_full and window.rows else None


def _fact(kind: AlertKind, duration: timedelta, now: datetime, run_id: str | None = None) -> Fact:
    return Fact(kind=kind, at=now, run_id=run_id, value=duration.total_seconds())


def _fact_of_run(row: Row, *, follows_unfinished: bool, now: datetime) -> Fact | None:
    if row.status == Status.RUNNING and row.started_at is not None:
        ran = now - row.started_at
        return _fact(AlertKind.SLOW, ran, now, row.id) if ran > MIN_SLOW else None
    may_be_buffered = row.sent_at is None and follows_unfinished
    if row.status not in UNSTARTED or may_be_buffered:
        return None
    waited = now - row.created_at
    return _fact(AlertKind.LATE, waited, now, row.id) if waited > MIN_LATE else None
