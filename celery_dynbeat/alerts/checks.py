"""Check states that no event reports: silent, frequent and late schedules, slow runs, recoveries.

Each check reads a bounded window in the order of an index, so its cost does not depend on the
number of schedules, runs or alerts.

- ``check_due``: the schedules whose regular check is due, because their rules say when they are
  silent or too frequent.
- ``DelayCheck``: overdue schedules and unfinished runs. Workers and claims store facts of runs that
  were late or slow. They store none while a broker is unreachable, while no worker takes messages,
  or while a task hangs. A schedule that a hold stops is not late. Only the time after the end of
  the hold counts. A buffered run waits for the previous one, and is not late either.
- ``check_open``: whether open alerts have recovered, those first whose last check is the oldest. An
  alert whose rule no longer applies is closed without a message. The alert of a deleted schedule is
  deleted.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.alerts.opening import Evaluated, Facts, apply_facts, event_of, grouped, state_of
from celery_dynbeat.alerts.subjects import (
    RUNS_PER_SCHEDULE,
    Subject,
    Subjects,
    last_runs,
    schedule_state,
)
from celery_dynbeat.common.alert_kinds import AlertKind
from celery_dynbeat.common.settings import MIN_SLOW
from celery_dynbeat.common.states import MIN_LATE, UNSTARTED, Status
from celery_dynbeat.db.statements import Row
from celery_dynbeat.planning import owner_notices
from celery_dynbeat.planning.alerting import (
    AlertState,
    CheckResult,
    Fact,
    after_snooze,
    applies,
    check_schedule,
    has_recovered,
    kinds_of,
    recovered,
)
from celery_dynbeat.store.alerts import alerts, checks
from celery_dynbeat.store.alerts.checks import OverdueKey, RunKey, Window
from celery_dynbeat.telemetry import emit_on_commit, events, has_listeners

#: Schedules that one transaction checks.
BATCH = 200
#: Rows of history that one query reads.
MAX_ROWS = 20_000
#: The maximum number of rows that one check reads of each index.
WINDOW = 1_000
#: Open alerts that one check reads.
OPEN_WINDOW = 500
#: An open alert is checked after this time at the earliest.
RECHECK_AFTER = timedelta(seconds=10)
#: The other kinds need no history to recover.
_NEED_RUNS = frozenset(
    (AlertKind.FAILED, AlertKind.LOST, AlertKind.LATE, AlertKind.SLOW, AlertKind.SILENT)
)


def add_missing_checks(session: Session, *, after: int, now: datetime) -> int | None:
    """Add the checks of the next schedules, which may be older than ``dynbeat_alert_silent_after``.

    Return the id after which the next call continues, or None if all schedules have one.
    """
    return checks.add_missing(session, after=after, limit=WINDOW, due_at=now)


def check_due(session: Session, *, subjects: Subjects, now: datetime) -> tuple[int, int]:
    """Check a batch of schedules; return their number and the number of alerts that opened."""
    locked = checks.lock_due(session, now=now, limit=BATCH)
    schedules = subjects.read(session, [row.schedule_id for row in locked])
    results = _results(session, schedules, now=now)
    unneeded = {row.schedule_id for row in locked} - results.keys()
    checks.delete(session, sorted(unneeded))
    checks.set_due(session, {key: each.due_at for key, each in results.items()})
    facts = grouped(_facts(results, now))
    opened = apply_facts(session, facts, schedules, subjects=subjects, now=now)
    _recover_frequent(session, results, schedules, now=now)
    return len(locked), opened


def _results(
    session: Session, schedules: Mapping[int, Subject], *, now: datetime
) -> Mapping[int, CheckResult]:
    runs = _runs(session, schedules, now=now)
    owners = sorted({each.row.owner for each in schedules.values()})
    everything = checks.is_everything_held(session, now=now)
    held = checks.held_owners(session, owners, now=now)
    results = {}
    for key, each in schedules.items():
        row = each.row
        result = check_schedule(
            schedule_state(each, runs[key]),
            each.rules,
            since=max(row.updated_at, row.start_at or row.updated_at),
            is_held=everything or row.owner in held,
            now=now,
        )
        if result is not None:
            results[key] = result
    return results


def _runs(
    session: Session, schedules: Mapping[int, Subject], *, now: datetime
) -> Mapping[int, Sequence[Row]]:
    by_limit: defaultdict[int, list[int]] = defaultdict(list)
    for key, each in schedules.items():
        by_limit[RUNS_PER_SCHEDULE + (each.rules.frequent_above or 0)].append(key)
    runs: dict[int, Sequence[Row]] = {}
    for limit, ids in by_limit.items():
        size = max(1, MAX_ROWS // limit)
        for start in range(0, len(ids), size):
            runs |= last_runs(session, ids[start : start + size], now=now, limit=limit)
    return runs


def _facts(
    results: Mapping[int, CheckResult], now: datetime
) -> Sequence[tuple[int, AlertKind, Fact]]:
    facts = []
    for key, each in results.items():
        if each.silent_for is not None:
            seconds = each.silent_for.total_seconds()
            fact = Fact(kind=AlertKind.SILENT, at=now, value=seconds)
            facts.append((key, AlertKind.SILENT, fact))
        if each.run_count is not None:
            fact = Fact(kind=AlertKind.FREQUENT, at=now, value=each.run_count)
            facts.append((key, AlertKind.FREQUENT, fact))
    return facts


def _recover_frequent(
    session: Session,
    results: Mapping[int, CheckResult],
    schedules: Mapping[int, Subject],
    *,
    now: datetime,
) -> None:
    ids = sorted(key for key, each in results.items() if each.is_frequent is False)
    for row in alerts.lock_of(session, ids) if ids else ():
        if row.kind == AlertKind.FREQUENT and row.recovered_at is None:
            _recover(session, row, schedules[row.schedule_id], now=now)


@dataclass(frozen=True, slots=True)
class Delays:
    """The late and slow runs at an instant: facts by schedule and kind, and their schedules."""

    facts: Facts
    schedules: dict[int, Subject]


@dataclass(slots=True)
class DelayCheck:
    """The start of the next check, and the end of the last hold of everything."""

    subjects: Subjects
    overdue_after: OverdueKey | None = None
    unfinished_after: RunKey | None = None
    is_held: bool = False
    held_until: datetime | None = field(default=None)

    def read(self, session: Session, *, now: datetime) -> Delays:
        """Return the runs in the next windows that are late or slow now. Locks nothing."""
        given = [*self._overdue(session, now=now), *self._unfinished(session, now=now)]
        schedules = dict(self.subjects.read(session, [schedule_id for schedule_id, _ in given]))
        opening = [
            (schedule_id, kind, fact)
            for schedule_id, fact in given
            if schedule_id in schedules
            for kind in kinds_of(fact, schedules[schedule_id].rules, ())
        ]
        return Delays(grouped(opening), schedules)

    def _overdue(self, session: Session, *, now: datetime) -> Sequence[tuple[int, Fact]]:
        was_held, self.is_held = self.is_held, checks.is_everything_held(session, now=now)
        if self.is_held:
            return ()
        if was_held:
            self.held_until = now
        window = checks.overdue_schedules(
            session, before=now - MIN_LATE, after=self.overdue_after, limit=WINDOW
        )
        last = _last(window)
        self.overdue_after = None if last is None else (last.next_run_at, last.id)
        held = checks.held_owners(session, sorted({row.owner for row in window.rows}), now=now)
        return [
            (row.id, _fact(AlertKind.LATE, now - max(row.next_run_at, self._since(row)), now))
            for row in window.rows
            if row.owner not in held
        ]

    def _since(self, row: Row) -> datetime:
        since: datetime = self.held_until or row.next_run_at
        return since

    def _unfinished(self, session: Session, *, now: datetime) -> Sequence[tuple[int, Fact]]:
        window = checks.unfinished_runs(session, after=self.unfinished_after, limit=WINDOW)
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
    """Return the row after which the next window begins, or None for the start."""
    return window.rows[-1] if window.is_full and window.rows else None


def _fact(kind: AlertKind, duration: timedelta, now: datetime, run_id: str | None = None) -> Fact:
    return Fact(kind=kind, at=now, run_id=run_id, value=duration.total_seconds())


def _fact_of_run(row: Row, *, follows_unfinished: bool, now: datetime) -> Fact | None:
    if row.status == Status.RUNNING and row.started_at is not None:
        ran = now - row.started_at
        return _fact(AlertKind.SLOW, ran, now, row.id) if ran > MIN_SLOW else None
    may_be_buffered = row.sent_at is None and follows_unfinished
    # A retry waits on purpose, and its run started before.
    if row.status not in UNSTARTED or may_be_buffered or row.retries:
        return None
    waited = now - row.created_at
    return _fact(AlertKind.LATE, waited, now, row.id) if waited > MIN_LATE else None


def check_open(session: Session, *, subjects: Subjects, now: datetime) -> tuple[int, int]:
    """Check a window of open alerts; return their number and how many have recovered."""
    locked = alerts.lock_open(session, checked_before=now - RECHECK_AFTER, limit=OPEN_WINDOW)
    schedules = subjects.read(session, [row.schedule_id for row in locked])
    present = [row for row in locked if _is_of(row, schedules, now=now)]
    gone = [row.id for row in locked if not _is_of(row, schedules, now=now)]
    alerts.delete(session, gone)
    owners = {key: subject.row.owner for key, subject in schedules.items()}
    if alerts.follow_owners(session, present, owners):
        # The next check reads what has changed.
        return len(locked), 0
    ended = _ended(session, present, schedules, subjects=subjects, now=now)
    alerts.update(session, [_columns(state) for state in ended.values()])
    left = [row for row in present if row.id not in ended]
    alerts.update(session, [{"id": row.id, "checked_at": now} for row in left])
    _end_snoozes(session, left, now=now)
    for row in present:
        if row.id in ended:
            _emit_recovered(session, row, schedules[row.schedule_id], ended[row.id])
    return len(locked), len(ended)


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


def _is_of(row: Row, schedules: Mapping[int, Subject], *, now: datetime) -> bool:
    subject = schedules.get(row.schedule_id)
    return subject is not None and subject.existed_at(row.opened_at, now=now)


def _ended(
    session: Session,
    rows: Sequence[Row],
    schedules: Mapping[int, Subject],
    *,
    subjects: Subjects,
    now: datetime,
) -> Mapping[int, AlertState]:
    runs = last_runs(session, _schedules_to_read(rows, schedules), now=now)
    ended = {}
    for row in rows:
        kind, state, subject = AlertKind(row.kind), state_of(row), schedules[row.schedule_id]
        rule_applies = applies(kind, subject.rules)
        schedule = schedule_state(subject, runs.get(row.schedule_id, ()))
        if not rule_applies or has_recovered(kind, state, schedule, subject.rules, now=now):
            after = recovered(
                state, now=now, reports=subject.rules.recovered, rule_applies=rule_applies
            )
            ended[row.id] = owner_notices.recovered(
                after,
                due_at=now + subjects.recovery_delay,
                reports=subject.rules.recovered,
                rule_applies=subjects.has_recipient and rule_applies,
            )
    return ended


def _schedules_to_read(rows: Sequence[Row], schedules: Mapping[int, Subject]) -> Sequence[int]:
    ids = set()
    for row in rows:
        is_failing = schedules[row.schedule_id].row.failing_since is not None
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
        "owner_notice": state.owner_notice,
        "owner_notice_at": state.owner_notice_at,
        "checked_at": None,
    }


def _recover(session: Session, row: Row, subject: Subject, *, now: datetime) -> None:
    """Write that a locked open alert has recovered, and report it after the commit."""
    state = recovered(state_of(row), now=now, reports=subject.rules.recovered)
    alerts.update(session, [_columns(state)])
    _emit_recovered(session, row, subject, state)


def _emit_recovered(session: Session, row: Row, subject: Subject, state: AlertState) -> None:
    """Send the signal of a recovery after the commit."""
    if has_listeners(events.AlertRecovered):
        alert = Evaluated(AlertKind(row.kind), subject, state, row.detail)
        emit_on_commit(session, event_of(events.AlertRecovered, alert))
