"""Check the schedules that no event reports: those that are silent, or run too often."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from celery_dynbeat.beat.alerting.changes import apply_facts, grouped
from celery_dynbeat.beat.alerting.recovery import recover
from celery_dynbeat.beat.alerting.subjects import (
    RUNS_PER_SCHEDULE,
    Subject,
    Subjects,
    last_runs,
    schedule_state,
)
from celery_dynbeat.common.alert_kinds import AlertKind
from celery_dynbeat.planning.alerting import Fact, WatchResult, check_watch
from celery_dynbeat.store import alert_scans, alert_watch_checks, alert_watches, alerts
from celery_dynbeat.store.rows import Row

#: Watched schedules that one transaction checks.
BATCH = 200
#: Schedules that one transaction compares with the watched ones.
WINDOW = 1_000
#: Rows of history that one query reads.
MAX_ROWS = 20_000


def watch_older(session: Session, *, after: int, now: datetime) -> int | None:
    """Watch the next schedules that are older than the setting ``dynbeat_alert_silent_after``.

    Return the id after which the next call continues, None if all schedules are watched.
    """
    return alert_watches.add_missing(session, after=after, limit=WINDOW, due_at=now)


def check_watched(session: Session, *, subjects: Subjects, now: datetime) -> tuple[int, int]:
    """Check a batch of due watches; return their number and that of the opened alerts."""
    locked = alert_watch_checks.lock_due(session, now=now, limit=BATCH)
    found = subjects.read(session, [row.schedule_id for row in locked.rows])
    results = _results(session, found, now=now)
    unneeded = {row.schedule_id for row in locked.rows} - results.keys()
    alert_watch_checks.delete(session, sorted(unneeded | {row.id for row in locked.unreadable}))
    alert_watch_checks.set_due(session, {key: each.due_at for key, each in results.items()})
    opened = apply_facts(session, grouped(_facts(results, now)), found, subjects=subjects, now=now)
    _recover_frequent(session, results, found, now=now)
    return len(locked.rows) + len(locked.unreadable), opened


def _results(
    session: Session, found: Mapping[int, Subject], *, now: datetime
) -> Mapping[int, WatchResult]:
    runs = _runs(session, found, now=now)
    owners = sorted({each.row.owner for each in found.values()})
    everything = alert_scans.is_everything_held(session, now=now)
    held = alert_scans.held_owners(session, owners, now=now)
    results = {}
    for key, each in found.items():
        row = each.row
        result = check_watch(
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
    session: Session, found: Mapping[int, Subject], *, now: datetime
) -> Mapping[int, Sequence[Row]]:
    by_limit: defaultdict[int, list[int]] = defaultdict(list)
    for key, each in found.items():
        by_limit[RUNS_PER_SCHEDULE + (each.rules.frequent_above or 0)].append(key)
    runs: dict[int, Sequence[Row]] = {}
    for limit, ids in by_limit.items():
        size = max(1, MAX_ROWS // limit)
        for start in range(0, len(ids), size):
            runs |= last_runs(session, ids[start : start + size], now=now, limit=limit)
    return runs


def _facts(
    results: Mapping[int, WatchResult], now: datetime
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
    results: Mapping[int, WatchResult],
    found: Mapping[int, Subject],
    *,
    now: datetime,
) -> None:
    ids = sorted(key for key, each in results.items() if each.is_frequent is False)
    for row in alerts.lock_of(session, ids).rows if ids else ():
        if row.kind == AlertKind.FREQUENT and row.recovered_at is None:
            recover(session, row, found[row.schedule_id], now=now)
