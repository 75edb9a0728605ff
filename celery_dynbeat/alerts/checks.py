"""The checks that open and end alerts. Any number of beats make them at the same time.

    columns of schedules, runs and nodes -> causes -> alerts that open
    open alerts -> is the cause still there? -> alerts that recover

A check reads states and no events, so a check that fails or a beat that dies loses nothing: the
next check of any beat finds the same state. What a check writes depends on alerts that it has
locked, so that of two beats one opens or ends an alert.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy.orm import Session

from celery_dynbeat.alerts import writing
from celery_dynbeat.common.alert_kinds import AlertKind
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.text import format_duration
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.statements import Row
from celery_dynbeat.process.left_out import LeftOut
from celery_dynbeat.store import alerts
from celery_dynbeat.store.runs import run_spans

#: Between two checks of the schedules.
EVERY = timedelta(minutes=1)
#: Late schedules whose pace one pass looks up, and the runs of each.
PACED, PACE_RUNS = 100, 5
#: The start of the reason with which ``pause_after_failures`` pauses a schedule ends so.
PAUSED_BY_FAILURES = " failures in a row; "


class _Over(NamedTuple):
    """An open alert whose cause is gone. ``subject`` is None if its schedule was deleted."""

    row: Row
    subject: Row | None


class ScheduleCheck:
    """Opens and ends the alerts of schedules, for one beat.

    A row that the database refuses to change is left to ``left_out``, and the others are changed.
    """

    def __init__(self, *, database: Database, settings: Settings, left_out: LeftOut[int]) -> None:
        self._database, self._settings, self._left_out = database, settings, left_out
        self._silent_after_id = 0

    def run(self, now: datetime) -> None:
        """Make a pass. Raises the error of the database if it is unreachable."""
        self._end(now)
        for kind, read, causes in (
            (AlertKind.FAILING, alerts.new_failing, self._failing),
            (AlertKind.STOPPED, alerts.new_failing, self._paused),
            (AlertKind.STOPPED, alerts.new_quarantined, self._quarantined),
        ):
            self._open_all(kind, read, causes, now=now)
        late = self._database.read_in_transaction(partial(self._late, now=now))
        self._open(AlertKind.LATE, late, now=now)
        silent = self._database.read_in_transaction(partial(self._silent, now=now))
        self._open(AlertKind.SILENT, silent, now=now)

    def _open_all(
        self,
        kind: AlertKind,
        read: Callable[..., Sequence[Row]],
        causes: Callable[..., Mapping[int, writing.AlertCause]],
        *,
        now: datetime,
    ) -> None:
        """Open alerts for all rows that ``read`` returns part by part."""
        after = 0
        while True:

            def part(session: Session, after: int = after) -> tuple[Sequence[Row], Any]:
                rows = read(session, after=after)
                return rows, causes(session, rows, now=now)

            rows, found = self._database.read_in_transaction(part)
            self._open(kind, found, now=now)
            if len(rows) < alerts.LIMIT:
                return
            after = rows[-1].id

    def _failing(
        self, session: Session, rows: Sequence[Row], *, now: datetime
    ) -> Mapping[int, writing.AlertCause]:
        del now
        needed = self._settings.alert_after_failures
        enabled = {row.id: row for row in rows if row.enabled and needed}
        ended = alerts.newest_failures(session, [*enabled.values()], number=needed)
        return {
            key: writing.AlertCause(
                subject=enabled[key],
                since=enabled[key].failing_since,
                text=run.error or "the run was lost",
                run_id=run.id,
            )
            for key, run in ended.items()
        }

    def _paused(
        self, session: Session, rows: Sequence[Row], *, now: datetime
    ) -> Mapping[int, writing.AlertCause]:
        del session
        return {
            row.id: writing.AlertCause(subject=row, since=now, text=f"paused: {row.paused_reason}")
            for row in rows
            if _is_paused_by_failures(row)
        }

    def _quarantined(
        self, session: Session, rows: Sequence[Row], *, now: datetime
    ) -> Mapping[int, writing.AlertCause]:
        del session
        return {row.id: writing.AlertCause(subject=row, since=now, text=row.error) for row in rows}

    def _late(
        self, session: Session, *, now: datetime, schedule_ids: Sequence[int] | None = None
    ) -> Mapping[int, writing.AlertCause]:
        """Return what is late now; only of ``schedule_ids``, if they are given."""
        found: dict[int, tuple[datetime, str, str | None]] = {}
        limit = self._settings.alert_late_after
        subjects = {}
        if limit is not None:
            for row in alerts.overdue(
                session, before=now - limit, now=now, schedule_ids=schedule_ids
            ):
                subjects[row.id] = row
                found[row.id] = (row.next_run_at, "due, and not sent", None)
            for run in alerts.unstarted(session, before=now - limit, schedule_ids=schedule_ids):
                found.setdefault(run.schedule_id, (run.since, "sent, and not started", run.run_id))
        for run in alerts.with_finish_within(session, schedule_ids=schedule_ids):
            end = run.fire_at + timedelta(seconds=run.finish_within)
            if end < now:
                text = f"not finished within {format_duration(end - run.fire_at)}"
                found[run.schedule_id] = (run.fire_at, f"{text} of its fire time", run.run_id)
        subjects |= alerts.subjects(session, sorted(found.keys() - subjects.keys()))
        paces = _paces(session, sorted(found)[:PACED], now=now) if schedule_ids is None else {}
        return {
            key: writing.AlertCause(
                subject=subjects[key], since=since, text=text + paces.get(key, ""), run_id=run_id
            )
            for key, (since, text, run_id) in found.items()
            if key in subjects
        }

    def _silent(
        self, session: Session, *, now: datetime, schedule_ids: Sequence[int] | None = None
    ) -> Mapping[int, writing.AlertCause]:
        limit = self._settings.alert_silent_after
        if limit is None:
            return {}
        rows, after = alerts.silent(
            session, before=now - limit, after=self._silent_after_id, schedule_ids=schedule_ids
        )
        if schedule_ids is None:
            self._silent_after_id = after
        text = f"no run has started for {format_duration(limit)}, and fire times have passed"
        return {
            row.id: writing.AlertCause(subject=row, since=row.last_at, text=text) for row in rows
        }

    def _open(
        self, kind: AlertKind, found: Mapping[int, writing.AlertCause], *, now: datetime
    ) -> None:
        tried = [key for key in found if key not in self._left_out.ids(now)]

        def work(session: Session, keys: Sequence[int]) -> None:
            part = {key: found[key] for key in keys}
            writing.write_opened(session, kind=kind, found=part)

        _, refused = self._database.run_in_parts(work, tried, in_transaction=True)
        for key, error in refused.items():
            self._left_out.add(found[key].subject, error, now=now)

    def _end(self, now: datetime) -> None:
        """End the open alerts whose cause is gone, part by part."""
        after = 0
        while True:

            def part(session: Session, after: int = after) -> tuple[Sequence[Row], Any]:
                rows = alerts.open_alerts(session, after=after)
                return rows, self._over(session, [row for row in rows if row.schedule_id], now=now)

            rows, over = self._database.read_in_transaction(part)
            left_out = self._left_out.ids(now)
            tried = [key for key, each in over.items() if each.row.schedule_id not in left_out]
            end = partial(_end_part, over=over, now=now)
            _, refused = self._database.run_in_parts(end, tried, in_transaction=True)
            for key, error in refused.items():
                self._left_out.add(writing.named(over[key].row), error, now=now)
            if len(rows) < alerts.LIMIT:
                return
            after = rows[-1].id

    def _over(self, session: Session, rows: Sequence[Row], *, now: datetime) -> Mapping[int, _Over]:
        """Return which open alerts of schedules are over, by id."""
        subjects = alerts.subjects(session, sorted({row.schedule_id for row in rows}))
        lasting: dict[AlertKind, Mapping[int, writing.AlertCause]] = {}
        for kind, check in ((AlertKind.LATE, self._late), (AlertKind.SILENT, self._silent)):
            ids = [row.schedule_id for row in rows if row.kind == kind]
            lasting[kind] = check(session, now=now, schedule_ids=ids) if ids else {}
        found = [_Over(row, subjects.get(row.schedule_id)) for row in rows]
        return {
            each.row.id: each
            for each in found
            if each.subject is None or not _lasts(each.row, each.subject, lasting)
        }


def _end_part(
    session: Session, ids: Sequence[int], *, over: Mapping[int, _Over], now: datetime
) -> None:
    # Another beat may have ended an alert since it was read, and opened it again.
    rows = [
        row for row in alerts.lock_open(session, ids) if row.opened_at == over[row.id].row.opened_at
    ]
    subjects = {row.id: over[row.id].subject for row in rows}
    alerts.delete(session, [key for key, subject in subjects.items() if subject is None])
    ended = [
        (row, _is_reported(row, subject))
        for row in rows
        if (subject := subjects[row.id]) is not None
    ]
    writing.write_ended(session, ended, now=now)


def _is_paused_by_failures(row: Row) -> bool:
    return not row.enabled and PAUSED_BY_FAILURES in (row.paused_reason or "")


def _lasts(
    row: Row, subject: Row, lasting: Mapping[AlertKind, Mapping[int, writing.AlertCause]]
) -> bool:
    if row.kind == AlertKind.FAILING:
        # A finished schedule has no run that could succeed.
        is_over = not subject.enabled or subject.finished_at is not None
        return subject.failing_since is not None and not is_over
    if row.kind == AlertKind.STOPPED:
        return subject.error is not None or _is_paused_by_failures(subject)
    return row.schedule_id in lasting[AlertKind(row.kind)]


def _is_reported(row: Row, subject: Row) -> bool:
    """Return whether a message reports the end. A schedule that does not run has no recovery."""
    if row.kind == AlertKind.FAILING:
        return subject.failing_since is None
    runs = subject.next_run_at is not None and subject.held_at is None
    return row.kind == AlertKind.STOPPED or runs


def _paces(session: Session, ids: Sequence[int], *, now: datetime) -> Mapping[int, str]:
    """Return how long the last runs of schedules waited for a worker and ran."""
    by_schedule: dict[int, list[tuple[timedelta, timedelta]]] = {}
    for run in run_spans.newest_of_each(session, schedule_ids=ids, until=now, limit=PACE_RUNS):
        if run.sent_at is not None and run.started_at is not None and run.finished_at is not None:
            times = (run.started_at - run.sent_at, run.finished_at - run.started_at)
            by_schedule.setdefault(run.schedule_id, []).append(times)
    texts = {}
    for key, runs in by_schedule.items():
        waited, ran = (sum(each, timedelta(0)) / len(runs) for each in zip(*runs, strict=True))
        texts[key] = (
            f"; of its last {len(runs)} runs, each waited {_rounded(waited)} for a worker and"
            f" took {_rounded(ran)} on average"
        )
    return texts


def _rounded(length: timedelta) -> str:
    return format_duration(timedelta(seconds=max(0, round(length.total_seconds()))))
