"""Queries on alerts, and on the columns of schedules and runs that an alert is about.

None of them locks a schedule: beat's claim would skip it. Except ``silent``, each reads a bounded
part of an index of rows in a rare state, so its cost does not depend on the number of schedules or
runs.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Select, and_, case, func, not_, or_, select, union_all, update
from sqlalchemy.orm import Session

from celery_dynbeat.common.alert_kinds import NO_SCHEDULE, AlertKind, Report
from celery_dynbeat.common.states import UNSTARTED, Origin, Status
from celery_dynbeat.db import statements
from celery_dynbeat.db.models import ALERTS, LOCKS, Alert, Run, Schedule
from celery_dynbeat.db.statements import Row, capabilities_in
from celery_dynbeat.store import holds
from celery_dynbeat.store.runs import execute_dml, is_not_interrupted, unfinished

#: Schedules or alerts that one query returns.
LIMIT = 1_000
#: Ids in the range that one search for silent schedules reads.
SPAN = 20_000
#: Characters of an error in an alert.
MAX_CAUSE = 300
SCHEDULES_IN_UNION = 50
MAX_LEASE = timedelta(hours=1)
#: The row that a beat locks to open alerts, and that has the lease of the messages.
_LOCK = {"name": "alerts"}
_is_lock = LOCKS.c.name == _LOCK["name"]


def _start(column: Any) -> Any:
    return func.substr(column, 1, MAX_CAUSE, type_=column.type).label(column.key)


_SUBJECT: tuple[Any, ...] = (
    Schedule.id,
    Schedule.owner,
    Schedule.name,
    Schedule.task,
    Schedule.enabled,
    Schedule.finished_at,
    Schedule.failing_since,
    Schedule.next_run_at,
    Schedule.held_at,
    Schedule.last_run_at,
    Schedule.finish_within,
    _start(Schedule.error),
    _start(Schedule.paused_reason),
)


def subjects(session: Session, schedule_ids: Sequence[int]) -> Mapping[int, Row]:
    """Return the columns of these schedules that an alert needs. Deleted ones are left out."""
    rows = session.execute(select(*_SUBJECT).where(Schedule.id.in_(schedule_ids)))
    return {row.id: row for row in rows}


def new_failing(session: Session, *, after: int) -> Sequence[Row]:
    """Return schedules whose last runs failed, and that have no alert about it, by id.

    ``stopped`` alerts of paused schedules belong to them: a pause does not end ``failing_since``.
    """
    kind = case((Schedule.enabled, AlertKind.FAILING.value), else_=AlertKind.STOPPED.value)
    known = and_(
        Alert.schedule_id == Schedule.id,
        Alert.kind == kind,
        or_(
            Alert.recovered_at.is_(None),
            and_(
                Schedule.finished_at.is_not(None),
                Alert.kind == AlertKind.FAILING.value,
                Alert.opened_at == Schedule.failing_since,
            ),
        ),
    )
    return _new(session, known, Schedule.failing_since.is_not(None), after=after)


def new_quarantined(session: Session, *, after: int) -> Sequence[Row]:
    """Return quarantined schedules that have no open alert about it, by id."""
    known = and_(
        Alert.schedule_id == Schedule.id,
        Alert.kind == AlertKind.STOPPED.value,
        Alert.recovered_at.is_(None),
    )
    return _new(session, known, Schedule.error.is_not(None), after=after)


def _new(session: Session, known: Any, *states: Any, after: int) -> Sequence[Row]:
    statement = select(*_SUBJECT).outerjoin(Alert, known).where(*states, Alert.id.is_(None))
    statement = statement.where(Schedule.id > after).order_by(Schedule.id).limit(LIMIT)
    return session.execute(statement).all()


def newest_failures(
    session: Session, schedules: Sequence[Row], *, number: int
) -> Mapping[int, Row]:
    """Return the newest failed or lost run of each schedule with ``number`` of them in a row.

    This reads at most the newest ``number`` + UNTRIED_MARGIN rows of the history of each schedule.
    """
    found: dict[int, Row] = {}
    for part in statements.in_parts(schedules, SCHEDULES_IN_UNION):
        ends = union_all(*(_failures(each, number=number) for each in part)).subquery()
        newest = select(Run.id, Run.schedule_id, _start(Run.error)).join(
            ends, and_(Run.schedule_id == ends.c.key, Run.fire_at == ends.c.newest)
        )
        found |= {row.schedule_id: row for row in session.execute(newest)}
    return found


def _failures(schedule: Row, *, number: int) -> Select[Any]:
    """Return the query of the fire time of the newest failure, if there are ``number`` of them."""
    history = select(Run.schedule_id, Run.fire_at, Run.status, Run.finished_at, Run.error)
    history = history.where(Run.schedule_id == schedule.id)
    read = (
        history.order_by(Run.fire_at.desc()).limit(number + unfinished.UNTRIED_MARGIN)
    ).subquery()
    newest = func.max(read.c.fire_at, type_=Run.fire_at.type).label("newest")
    return (
        select(read.c.schedule_id.label("key"), newest)
        .where(
            read.c.status.in_([Status.FAILED, Status.LOST]),
            is_not_interrupted(read.c.status, read.c.error),
            read.c.finished_at >= schedule.failing_since,
        )
        .group_by(read.c.schedule_id)
        .having(func.count() >= number)
    )


def overdue(
    session: Session, *, before: datetime, now: datetime, schedule_ids: Sequence[int] | None = None
) -> Sequence[Row]:
    """Return schedules that were due before an instant and are not held, the oldest first."""
    if session.scalar(select(holds.everything_is_held(now))):
        return ()
    statement = select(*_SUBJECT)
    statement = statement.where(Schedule.next_run_at < before, Schedule.held_at.is_(None))
    statement = _only(statement, Schedule.id, schedule_ids)
    rows = session.execute(statement.order_by(Schedule.next_run_at).limit(LIMIT)).all()
    owners = sorted({row.owner for row in rows})
    held = holds.ends_of(session, owners, now=now) if owners else {}
    return [row for row in rows if row.owner not in held]


_SINCE = func.coalesce(Run.ready_at, Run.created_at, type_=Run.created_at.type)
_RUN: tuple[Any, ...] = (
    Run.id.label("run_id"),
    Run.schedule_id,
    Run.fire_at,
    _SINCE.label("since"),
    Schedule.finish_within,
)


def unstarted(
    session: Session, *, before: datetime, schedule_ids: Sequence[int] | None = None
) -> Sequence[Row]:
    """Return the oldest run of each schedule that could start before an instant and has not.

    Waiting runs are left out. A run that waits, for example for its previous run, has no
    ``overdue_at``. A retry waits on purpose.
    """
    return _oldest_unfinished(
        session,
        Run.status.in_([status.value for status in UNSTARTED]),
        Run.retries == 0,
        or_(Run.overdue_at.is_not(None), Run.sent_at.is_not(None)),
        or_(Run.waited_for.is_(None), Run.ready_at.is_not(None)),
        before > _SINCE,
        schedule_ids=schedule_ids,
    )


def with_finish_within(
    session: Session, *, schedule_ids: Sequence[int] | None = None
) -> Sequence[Row]:
    """Return the oldest unfinished run of each schedule that has ``finish_within``."""
    return _oldest_unfinished(
        session,
        Schedule.finish_within.is_not(None),
        Run.origin == Origin.SCHEDULE.value,
        schedule_ids=schedule_ids,
    )


def _oldest_unfinished(
    session: Session, *conditions: Any, schedule_ids: Sequence[int] | None
) -> Sequence[Row]:
    """Return the oldest unfinished run of each schedule that has one with these conditions.

    One row per schedule: the runs of one schedule must not use up the limit of the others.
    """
    number = func.row_number().over(partition_by=Run.schedule_id, order_by=Run.id)
    found = select(*_RUN, number.label("number"))
    found = found.join(Schedule, Schedule.id == Run.schedule_id)
    found = found.where(Run.finished_at.is_(None), Run.schedule_id.is_not(None), *conditions)
    runs = _only(found, Run.schedule_id, schedule_ids).subquery()
    oldest = select(runs).where(runs.c.number == 1).order_by(runs.c.run_id).limit(LIMIT)
    return session.execute(oldest).all()


def _only(statement: Any, column: Any, ids: Sequence[int] | None) -> Any:
    return statement if ids is None else statement.where(column.in_(ids))


def silent(
    session: Session, *, before: datetime, after: int | None, schedule_ids: Sequence[int] | None
) -> tuple[Sequence[Row], int]:
    """Return schedules of which a fire time has passed ``before``, and no run has started since.

    A run that waits, and a fire time that was missed or that ``skip()`` removed, do not count. Only
    schedules with ``schedule_ids``, or the next SPAN ids above ``after``. The second value is the
    id after which the next call continues, or 0 after the last one. Reads the runs since the last
    start.
    """
    started_at = (
        select(Run.started_at)
        .where(Run.schedule_id == Schedule.id, Run.started_at.is_not(None))
        .order_by(Run.fire_at.desc())
        .limit(1)
        .correlate(Schedule)
        .scalar_subquery()
    )
    last = func.coalesce(started_at, Schedule.created_at, type_=Schedule.created_at.type)
    active = select(*_SUBJECT, last.label("last_at")).where(
        Schedule.next_run_at.is_not(None), Schedule.held_at.is_(None)
    )
    start = after or 0
    if schedule_ids is None:
        active = active.where(Schedule.id > start, Schedule.id <= start + SPAN)
    else:
        active = active.where(Schedule.id.in_(schedule_ids))
    found = active.subquery()
    # The newest one, because MySQL makes no range of an index from a column of another row.
    error = func.coalesce(Run.error, "")
    passed_at = (
        select(Run.fire_at)
        .where(
            Run.schedule_id == found.c.id,
            before > Run.fire_at,
            before > _SINCE,
            or_(Run.waited_for.is_(None), Run.ready_at.is_not(None)),
            # A pause, a hold, a time without beat, or skip().
            or_(
                Run.status != Status.SKIPPED,
                and_(error.not_like("missed:%"), error.not_like("skipped by %")),
            ),
        )
        .order_by(Run.fire_at.desc())
        .limit(1)
        .correlate(found)
        .scalar_subquery()
    )
    statement = select(found).where(found.c.last_at < before, passed_at > found.c.last_at)
    rows = session.execute(statement.order_by(found.c.id).limit(LIMIT)).all()
    newest = session.scalar(select(func.max(Schedule.id))) or 0
    end = rows[-1].id if len(rows) >= LIMIT else start + SPAN
    return rows, 0 if end >= newest else end


def open_alerts(
    session: Session, *, kind: AlertKind | None = None, after: int = 0, limit: int = LIMIT
) -> Sequence[Row]:
    """Return open alerts by id; only those of schedules with ``kind``."""
    statement = select(ALERTS)
    statement = statement.where(ALERTS.c.recovered_at.is_(None), ALERTS.c.id > after)
    if kind is not None:
        statement = statement.where(ALERTS.c.kind == kind, ALERTS.c.schedule_id != NO_SCHEDULE)
    return session.execute(statement.order_by(ALERTS.c.id).limit(limit)).all()


def open_of(session: Session, schedule_id: int) -> Sequence[str]:
    """Return the kinds of the open alerts of a schedule."""
    statement = select(Alert.kind).where(Alert.schedule_id == schedule_id)
    return session.scalars(statement.where(Alert.recovered_at.is_(None))).all()


def newest_recovered(session: Session, *, limit: int) -> Sequence[Row]:
    """Return the alerts that recovered last."""
    statement = select(ALERTS)
    statement = statement.where(ALERTS.c.recovered_at.is_not(None))
    return session.execute(statement.order_by(ALERTS.c.recovered_at.desc()).limit(limit)).all()


def page(
    session: Session, *, owner: str | None, only_open: bool, after: int, limit: int
) -> Sequence[Row]:
    """Return up to ``limit`` alerts by id. ``owner`` None means all owners."""
    statement = select(ALERTS).where(ALERTS.c.id > after)
    if owner is not None:
        statement = statement.where(ALERTS.c.owner == owner)
    if only_open:
        statement = statement.where(ALERTS.c.recovered_at.is_(None))
    return session.execute(statement.order_by(ALERTS.c.id).limit(limit)).all()


def lock(session: Session) -> None:
    """Let only this transaction open alerts until its end, so that two beats open none twice."""
    session.execute(capabilities_in(session).insert_or_lock(LOCKS), _LOCK)


def lock_open(session: Session, ids: Sequence[int]) -> Sequence[Row]:
    """Return those of these alerts that are still open, locked, by id."""
    statement = select(ALERTS).where(ALERTS.c.id.in_(ids), ALERTS.c.recovered_at.is_(None))
    return session.execute(statement.order_by(ALERTS.c.id).with_for_update()).all()


def lock_of(session: Session, schedule_ids: Sequence[int], *, kind: str) -> Mapping[int, Row]:
    """Return the alerts of a kind of these schedules by schedule, locked in the order of ids."""
    statement = select(ALERTS).where(
        ALERTS.c.schedule_id.in_(schedule_ids), ALERTS.c.kind == str(kind)
    )
    statement = statement.order_by(ALERTS.c.schedule_id).with_for_update()
    return {row.schedule_id: row for row in session.execute(statement)}


def insert(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert alerts that all have the same columns."""
    if rows:
        statements.insert(session, ALERTS, rows)


def update_each(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    """Update locked alerts by ``id``. All rows have the same columns."""
    if rows:
        statements.update_each(session, ALERTS, rows)


def delete(session: Session, ids: Sequence[int]) -> None:
    """Delete locked alerts."""
    statements.delete_ids(session, ALERTS, ids)


def has_unreported(session: Session) -> bool:
    """Return whether a message must report an alert. Reads one row."""
    statement = select(Alert.id).where(Alert.unreported.is_not(None)).limit(1)
    return session.scalar(statement) is not None


def last_report(session: Session) -> datetime | None:
    """Return when a beat last reported an alert. Reads one row."""
    found: datetime | None = session.scalar(select(func.max(Alert.reported_at)))
    return found


def lease(session: Session, *, node: str, now: datetime, until: datetime) -> bool:
    """Let ``node`` send the messages until an instant; False if another beat has the lease.

    ``until`` is at most MAX_LEASE after ``now``.
    """
    row, column = {"leased_by": node, "leased_until": until}, LOCKS.c
    # A lease that ends far ahead means that the clock was set back.
    is_free = or_(
        column.leased_by.is_(None),
        column.leased_by == node,
        not_(column.leased_until.between(now, now + MAX_LEASE)),
    )
    lock(session)
    return execute_dml(session, update(LOCKS).where(_is_lock, is_free).values(row)) == 1


def unreported(session: Session, *, limit: int) -> Sequence[Row]:
    """Return the oldest alerts that a message must report."""
    statement = select(ALERTS).where(ALERTS.c.unreported.is_not(None))
    return session.execute(statement.order_by(ALERTS.c.id).limit(limit)).all()


def mark_reported(session: Session, rows: Sequence[Row], *, now: datetime) -> None:
    """Note that a message has reported alerts as they are in ``rows``.

    An alert that has recovered or opened since then must still be reported so.
    """
    column = ALERTS.c
    is_open = column.recovered_at.is_(None)
    for was_open, has_changed, again in (
        (True, not_(is_open), Report.RECOVERED),
        (False, is_open, Report.OPENED),
    ):
        ids = [row.id for row in rows if (row.recovered_at is None) == was_open]
        left = case((has_changed, again.value), else_=None)
        for part in statements.in_parts(ids, LIMIT):
            statement = update(ALERTS).where(column.id.in_(part))
            execute_dml(session, statement.values(unreported=left, reported_at=now))


def count_open(session: Session) -> Mapping[str, int]:
    """Return the number of open alerts by kind."""
    statement = select(Alert.kind, func.count()).where(Alert.recovered_at.is_(None))
    return {row[0]: row[1] for row in session.execute(statement.group_by(Alert.kind))}
