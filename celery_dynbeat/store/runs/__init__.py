"""Queries on runs, one function each.

Every transition of a run is a conditional UPDATE whose row count is checked. The transitions are
listed in ``common.states``. The transitions that a worker makes are in ``store.runs.attempts``.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    String,
    Update,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session

from celery_dynbeat.common.run_ids import new_run_id
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.states import (
    BATCH_ORIGINS,
    CONFIRM,
    EXPIRE,
    GIVE_UP,
    INTERRUPTED,
    KEPT_ORIGINS,
    REVOKE,
    SEND_RETRY,
    Status,
    Wait,
)
from celery_dynbeat.common.text import NAME_LENGTH, cut, first_line
from celery_dynbeat.db import statements
from celery_dynbeat.db.dialects import Capabilities
from celery_dynbeat.db.models import HOLDS, RUNS, Origin, Run, Schedule
from celery_dynbeat.db.statements import (
    RowLockedError,
    capabilities_in,
    delete_ids,
    force_index,
    read,
)
from celery_dynbeat.db.types import UtcDateTime
from celery_dynbeat.planning.plan import Skip

#: Values in one IN condition. Drivers allow tens of thousands.
MAX_IN_LIST = 1_000
#: The order of the index of unfinished runs, so that the planner uses it. Without it the planner
#: expects to find such a run soon by reading the history.
UNFINISHED_ORDER = (Run.finished_at, Run.schedule_id)
#: The same index in reverse order, with the newest runs first.
NEWEST_UNFINISHED = (Run.finished_at.desc(), Run.schedule_id.desc(), Run.id.desc())
UNFINISHED_INDEX = "ix_dynbeat_run_newest_unfinished"
#: A run that waits for a place (``store.places``).
WAITS = and_(
    Run.running_key.is_not(None),
    Run.finished_at.is_(None),
    Run.status == Status.PENDING,
    Run.overdue_at.is_(None),
    Run.waited_for.in_((Wait.PLACE, Wait.PREVIOUS)),
)
#: A run of a backfill or a rerun that waits before its first sending. It blocks no other run of its
#: schedule, and none replaces it.
WAITS_IN_BATCH = and_(
    Run.origin.in_(BATCH_ORIGINS),
    Run.status == Status.PENDING,
    Run.sent_at.is_(None),
    Run.waited_for.is_not(None),
    Run.ready_at.is_(None),
)
#: A run without an attempt that counts. An attempt does not count if its task postponed the run.
UNSTARTED_RUN = and_(Run.started_at.is_(None), Run.earlier_errors.is_(None))
#: Rows of history that the two queries of ``last_success`` search. Most schedules succeeded in one
#: of the first rows. The maximum is a week of failures at one per minute.
FIRST_ROWS, MAX_ROWS = 100, 10_000


def add(session: Session, rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """Insert runs and return the ids of the inserted ones.

    A fire time that already has a run keeps that run, by the unique key. This is not an error.
    """
    if not rows:
        return set()
    added = statements.insert_new(session, RUNS, rows)
    ids = {row["id"] for row in rows}
    return ids if added == len(ids) else _present(session, ids)


def skipped_row(schedule: Any, skip: Skip, *, now: datetime) -> dict[str, Any]:
    """Return the row of skipped fire times of a schedule, whose row has its columns."""
    return {
        "schedule_id": schedule.id,
        "owner": schedule.owner,
        "name": schedule.name,
        "task": schedule.task,
        "id": new_run_id(now),
        "fire_at": skip.newest,
        "status": Status.SKIPPED,
        "origin": Origin.SCHEDULE,
        "created_at": now,
        "overdue_at": None,
        "finished_at": now,
        "waited_for": None,
        "ready_at": None,
        "fire_count": skip.count,
        "error": skip.reason,
    }


def _needs_place(record: Mapping[str, Any]) -> bool:
    return record["status"] == Status.PENDING and record.get("waited_for") != Wait.BATCH


class AddedRuns(NamedTuple):
    """The ids of the inserted rows, and of those that wait for a place."""

    ids: set[str]
    waiting: frozenset[str] = frozenset()


def record(
    session: Session, records: Sequence[Mapping[str, Any]], *, settings: Settings
) -> AddedRuns:
    """Insert rows of history. A fire time that already has a row keeps it.

    A run of an owner with a limit on its runs waits for a place: it is ``pending`` without
    ``overdue_at``, so no sweep sends it before beat admits it (``beat.admission``). A run of a
    backfill or a rerun waits for its turn first. The sweep then lets it wait for a place.
    """
    limits = settings.owner_limits.for_pass()
    if not limits.may_cap_runs:
        return AddedRuns(add(session, records))
    pending = [each for each in records if _needs_place(each)]
    owners = {each["owner"] for each in pending}
    keys = {owner: cap.key for owner in owners if (cap := limits.cap_of(owner)) is not None}
    if not keys:
        return AddedRuns(add(session, records))
    waiting = {each["id"] for each in pending if each["owner"] in keys}
    added = add(
        session,
        [
            {
                **each,
                "overdue_at": None,
                # Beat asks for a hold before it gives a place.
                "waited_for": (
                    Wait.PREVIOUS if each.get("waited_for") == Wait.PREVIOUS else Wait.PLACE
                ),
                "running_key": keys[each["owner"]],
            }
            if each["id"] in waiting
            else {**each, "waited_for": each.get("waited_for"), "running_key": None}
            for each in records
        ],
    )
    return AddedRuns(added, frozenset(waiting & added))


def has_run(session: Session, *, schedule_id: int, fire_at: datetime) -> bool:
    """Return whether the schedule has a run or a skipped row for that fire time."""
    run = select(Run.id).where(Run.schedule_id == schedule_id, Run.fire_at == fire_at)
    return session.scalar(run.limit(1)) is not None


def newest_decided(
    session: Session, schedule_ids: Collection[int], *, after: datetime, until: datetime
) -> Mapping[int, datetime]:
    """Return the newest fire time in the span that a claim has decided, by schedule id.

    A row of skipped fire times counts for all of them, with its newest one.
    """
    newest = select(Run.schedule_id, func.max(Run.fire_at)).where(
        Run.schedule_id.in_(schedule_ids),
        Run.fire_at > after,
        Run.fire_at <= until,
        Run.origin == Origin.SCHEDULE,
    )
    newest = newest.group_by(Run.schedule_id)
    return {row[0]: row[1] for row in session.execute(newest) if row[0] is not None}


def first_since(session: Session, *, schedule_id: int, since: datetime) -> Run | None:
    """Return the run or skip of the schedule with the first fire time from ``since`` on."""
    found = select(Run).where(Run.schedule_id == schedule_id, Run.fire_at >= since)
    return session.scalar(found.order_by(Run.fire_at).limit(1))


def has_waiting(session: Session) -> bool:
    """Return whether a run waits for a place."""
    first = select(Run.id).where(WAITS)
    return session.scalar(first.order_by(Run.running_key).limit(1)) is not None


def _present(session: Session, ids: set[str]) -> set[str]:
    present: set[str] = set()
    for part in statements.in_parts(sorted(ids), MAX_IN_LIST):
        present.update(session.scalars(select(Run.id).where(Run.id.in_(part))))
    return present


def mark_sent(
    session: Session,
    ids: Sequence[str],
    *,
    attempt: int,
    queues: Mapping[str, str | None],
    now: datetime,
    overdue_at: datetime,
) -> int:
    """Move runs to sent, because the broker has confirmed their messages after ``attempt``.

    A worker may be faster. A run that has started keeps its status, also if it already waits for
    another attempt. ``sent_at`` and ``queue`` keep the first value, so that the lag does not
    change. ``queues`` has the queues by run id. Runs that another transaction has locked do not
    change. Returns the number of rows.
    """
    if not ids:
        return 0
    capabilities = capabilities_in(session)
    parameter = statements.among_parameter(capabilities, ids)
    values = {**parameter, "after": attempt, "now": now, "again_at": overdue_at}
    values |= {"first": min(ids), "last": max(ids)}
    ids_by_queue: defaultdict[str | None, list[str]] = defaultdict(list)
    for run_id in ids:
        ids_by_queue[_stored_queue(queues.get(run_id))].append(run_id)
    if len(ids_by_queue) == 1:
        (values["queue_name"],) = ids_by_queue
        return _execute_free(session, *_mark_sent(capabilities), values)
    to_queue = [
        (_is_one_of_ids(capabilities, each), literal(queue, RUNS.c.queue.type))
        for queue, each in ids_by_queue.items()
    ]
    return _execute_free(session, *_mark_sent_to(capabilities, case(*to_queue)), values)


def _stored_queue(queue: str | None) -> str | None:
    # For MariaDB, names that differ only in spaces at the end are equal in the key of the rollup.
    return None if queue is None else cut(queue, NAME_LENGTH).rstrip(" ")


def _is_one_of_ids(capabilities: Capabilities, ids: Sequence[str]) -> ColumnElement[bool]:
    if capabilities.has_lateral:
        return RUNS.c.id == statements.any_element_of(RUNS.c.id, ids)
    return RUNS.c.id.in_(ids)


def unmarked(session: Session, ids: Sequence[str]) -> Sequence[str]:
    """Return the ``ids`` of runs that have no ``sent_at``."""
    return session.scalars(select(Run.id).where(Run.id.in_(ids), Run.sent_at.is_(None))).all()


# Cached: building it takes longer than executing it for one run.
@cache
def _mark_sent(capabilities: Capabilities) -> tuple[Select[Any] | None, Update]:
    return _mark_sent_to(capabilities, bindparam("queue_name", type_=RUNS.c.queue.type))


def _mark_sent_to(
    capabilities: Capabilities, queue: ColumnElement[Any]
) -> tuple[Select[Any] | None, Update]:
    run = RUNS.c
    unstarted = and_(
        statements.is_one_of(run.status, CONFIRM.sources), run.attempt == bindparam("after")
    )
    again_at = bindparam("again_at", type_=UtcDateTime)
    # The ids of a batch are adjacent in the index. PostgreSQL may keep a plan from the time when
    # the history was empty. Without these bounds that plan reads the whole history.
    bounds = run.id.between(bindparam("first"), bindparam("last"))
    values = {
        "overdue_at": case((unstarted, again_at), else_=run.overdue_at),
        "status": case((unstarted, Status.SENT), else_=run.status),
        "sent_at": func.coalesce(run.sent_at, bindparam("now", type_=UtcDateTime)),
        "queue": func.coalesce(run.queue, queue),
    }
    return _free_update(capabilities, (bounds, statements.is_among(capabilities, run.id)), values)


def mark_unpublishable(session: Session, *, run_id: str, now: datetime, error: str) -> int:
    """Move an unstarted run to failed, because no broker accepts it. Return the row count.

    A run that another transaction has locked does not change, so the sweep sends it again.
    Maintenance corrects the schedule of the run (``store.failing``).
    """
    unstarted = (Run.id == run_id, Run.status.in_(GIVE_UP.sources))
    failed = {"status": Status.FAILED, "finished_at": now, "error": error, "overdue_at": None}
    # In the same UPDATE: for a second one in this transaction, PostgreSQL checks the foreign key,
    # and waits for a locked schedule.
    return update_free(session, *unstarted, values={**failed, "retry_at": now})


def earliest_overdue_at(*, since: Any = None, until: Any, except_ids: Collection[str] = ()) -> Any:
    """Return a subquery for the earliest ``overdue_at`` up to ``until``.

    It starts at ``since`` if that is given. Rows after ``until`` are sent runs that have not
    started. Most of them leave the index before they are overdue.
    """
    overdue_at = RUNS.c.overdue_at
    # min() would be slow, because if PostgreSQL expects few rows, it reads all of them.
    earliest = select(overdue_at).where(overdue_at.is_not(None), overdue_at <= until)
    if since is not None:
        earliest = earliest.where(overdue_at >= since)
    if except_ids:
        earliest = earliest.where(RUNS.c.id.not_in(except_ids))
    return earliest.order_by(overdue_at).limit(1).scalar_subquery()


def columns_of(row: type, *models: Any, **computed: Any) -> Sequence[Any]:
    """Return the columns of a NamedTuple's fields, in their order.

    A field that is not ``computed`` is the attribute of the first model that has it.
    """

    def column(name: str) -> Any:
        if name in computed:
            return computed[name].label(name)
        return next(getattr(model, name) for model in models if hasattr(model, name))

    return [column(name) for name in row._fields]  # type: ignore[attr-defined]


def any_hold() -> ColumnElement[bool]:
    """Return the condition that there is any hold, in force or not.

    There is none in the usual case. The database looks once for each statement, not once for each
    row.
    """
    return select(HOLDS.c.id).limit(1).scalar_subquery().is_not(None)


class OverdueRun(NamedTuple):
    """An overdue run, with the columns of its schedule that its message needs.

    ``pings`` is true if the schedule has a ping URL, which only workers need.
    """

    id: str
    owner: str
    name: str
    fire_at: datetime
    nominal_at: datetime | None
    created_at: datetime
    origin: str
    batch_id: str | None
    status: str
    sent_at: datetime | None
    waited_for: str | None
    ready_at: datetime | None
    attempt: int
    retries: int
    is_unstarted: bool
    running_key: str | None
    schedule_id: int
    version: int
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    options: dict[str, Any]
    expires_after: float | None
    overlap: str | None
    max_run_time: float | None
    retry: dict[str, Any] | None
    next_fire_at: datetime | None
    enabled: bool
    is_quarantined: bool
    ignores_quiet_hours: bool
    quiet_hours: str | None
    any_hold: bool
    pings: bool


_OVERDUE_COLUMNS = columns_of(
    OverdueRun,
    Run,
    Schedule,
    task=Schedule.task,
    is_unstarted=UNSTARTED_RUN,
    is_quarantined=Schedule.error.is_not(None),
    any_hold=any_hold(),
    pings=Schedule.ping_url.is_not(None),
)


def lock_overdue(
    session: Session,
    *,
    now: datetime,
    limit: int,
    since: datetime | None = None,
    except_ids: Collection[str] = (),
) -> Sequence[OverdueRun]:
    """Return up to ``limit`` overdue runs, oldest first.

    The rows of runs are locked for this transaction. Rows that another beat has locked are skipped.
    ``since`` is the earliest ``overdue_at`` to read; None means all. ``except_ids`` are left out.
    """
    statement: Any = (
        select(*_OVERDUE_COLUMNS)
        .join(Schedule, Schedule.id == Run.schedule_id)
        .where(*_overdue(now, since, except_ids))
        .order_by(Run.overdue_at)
        .limit(limit)
        .with_for_update(skip_locked=True, of=Run)
    )
    return read(session, statement, make=OverdueRun._make)


def _overdue(
    now: datetime, since: datetime | None, except_ids: Collection[str]
) -> Sequence[ColumnElement[bool]]:
    conditions = [Run.overdue_at.is_not(None), Run.overdue_at <= now]
    if since is not None:
        conditions.append(Run.overdue_at >= since)
    if except_ids:
        conditions.append(Run.id.not_in(except_ids))
    return conditions


def lease(
    session: Session, ids: Sequence[str], *, overdue_at: datetime, ready_at: datetime | None = None
) -> int:
    """Set ``overdue_at``, so that no other beat publishes the runs earlier. Return the row count.

    ``ready_at`` is stored if it is given. Runs that another transaction has locked do not change.
    """
    if not ids:
        return 0
    unstarted = (Run.id.in_(ids), Run.status.in_(CONFIRM.sources))
    values = {"overdue_at": overdue_at} | ({} if ready_at is None else {"ready_at": ready_at})
    return update_free(session, *unstarted, values=values)


def postpone(session: Session, ids: Sequence[str], *, until: datetime, waited_for: Wait) -> None:
    """Let locked runs that are pending or retrying wait; the sweep asks again at ``until``."""
    unsent = (Status.PENDING, Status.RETRYING)
    change(session, ids, unsent, overdue_at=until, waited_for=waited_for, ready_at=None)


def make_retries_pending(
    session: Session,
    ids: Sequence[str],
    *,
    leased_until: datetime | None,
    ready_at: datetime | None = None,
    running_key: str | None = None,
) -> int:
    """Move retrying runs whose retry beat sends to pending, and lease them; return their number.

    They must be locked. ``ready_at`` is stored if it is given. If ``leased_until`` is None, they
    wait for a place of ``running_key``.
    """
    values: dict[str, Any] = {
        "status": Status.PENDING,
        "overdue_at": leased_until,
        "retry_at": None,
        "started_at": None,
        # A second delivery of the message of the failed attempt has the previous count.
        "retries": Run.retries + 1,
    }
    if leased_until is None:
        values |= {"waited_for": Wait.PLACE, "ready_at": None, "running_key": running_key}
    elif ready_at is not None:
        values["ready_at"] = ready_at
    return change(session, ids, SEND_RETRY.sources, **values)


def wait_for_place(session: Session, ids: Sequence[str], *, running_key: str) -> None:
    """Let locked pending runs that had no place wait for a place of ``running_key``."""
    values = {"overdue_at": None, "waited_for": Wait.PLACE, "running_key": running_key}
    change(session, ids, (Status.PENDING,), **values)


def mark_expired(session: Session, ids: Sequence[str], *, now: datetime) -> int:
    """Move unstarted runs to expired, because no worker started them in time."""
    error = "not started within expires_after"
    expired = {"status": Status.EXPIRED, "finished_at": now, "overdue_at": None, "error": error}
    return change(session, ids, EXPIRE.sources, UNSTARTED_RUN, **expired)


def revoke_free(session: Session, ids: Sequence[str], *, now: datetime, reason: str) -> int:
    """Do the same as ``revoke``, except for runs that another transaction has locked."""
    return revoke(session, lock_free(session, ids), now=now, reason=reason)


def revoke(session: Session, ids: Sequence[str], *, now: datetime, reason: str) -> int:
    """Move unstarted runs to revoked and return their number."""
    return change(session, ids, REVOKE.sources, **_revoked(now, reason))


def _revoked(now: datetime, reason: str) -> dict[str, Any]:
    ended = {"status": Status.REVOKED, "finished_at": now, "error": reason}
    return {**ended, "overdue_at": None, "retry_at": None}


def lock_orphans(
    session: Session,
    *,
    now: datetime,
    limit: int,
    since: datetime | None = None,
    except_ids: Collection[str] = (),
) -> Sequence[Row[Any]]:
    """Return id, owner and name of overdue runs whose schedule was deleted without the API.

    They are locked for this transaction. Only the first ``limit`` overdue runs from ``since`` on
    that no other transaction has locked are read. The same sweep publishes or defers the others of
    them, so later sweeps reach all orphans. Runs in ``except_ids`` are left out.
    """
    overdue: Any = select(Run.id, Run.owner, Run.name, Run.schedule_id)
    overdue = overdue.where(*_overdue(now, since, except_ids))
    first = overdue.order_by(Run.overdue_at).limit(limit).with_for_update(skip_locked=True)
    return [row for row in session.execute(first) if row.schedule_id is None]


def is_unfinished_of(
    session: Session, schedule_ids: Sequence[int], *conditions: ColumnElement[bool]
) -> ColumnElement[bool]:
    """Return the condition that a run is an unfinished run of one of the schedules.

    The schedules must be locked. The statement must also have a condition on the status. An
    UPDATE must force UNFINISHED_INDEX: MySQL and MariaDB lock each row that they scan.
    """
    if not capabilities_in(session).has_lateral:
        of_schedules = (Run.finished_at.is_(None), Run.schedule_id.in_(schedule_ids))
        return and_(*of_schedules, *conditions)
    # These are two statements, because the planner may run a subquery of the UPDATE once per row.
    # The ids are the only condition here: with another one, PostgreSQL may parse the ids again for
    # each row.
    ids = session.scalars(newest_unfinished((Run.id,), schedule_ids, *conditions)).all()
    return Run.id == statements.any_element_of(Run.id, ids)


def newest_unfinished(
    columns: Sequence[Any],
    schedule_ids: Sequence[int],
    *conditions: ColumnElement[bool],
    limit: int | None = None,
) -> Select[Any]:
    """Return a SELECT of up to ``limit`` unfinished runs of each schedule, with LATERAL.

    The runs of a schedule are in the order of UNFINISHED_INDEX, so that PostgreSQL uses it. The
    unique key also starts with the schedule, but contains its whole history.
    """

    def newest(schedule_id: Any) -> Select[Any]:
        unfinished = (Run.finished_at.is_(None), Run.schedule_id == schedule_id, *conditions)
        return select(*columns).where(*unfinished).order_by(*NEWEST_UNFINISHED).limit(limit)

    return statements.lateral_for_each(Schedule.id, schedule_ids, newest)


def order_of_unfinished(session: Session) -> tuple[Any, ...]:
    """Return the order in which the database reads unfinished runs from their index.

    MariaDB sorts all rows if the order begins with a column that is NULL in each of them.
    PostgreSQL needs this column.
    """
    has_partial = capabilities_in(session).has_partial_indexes
    return UNFINISHED_ORDER if has_partial else UNFINISHED_ORDER[1:]


def oldest_unfinished(session: Session, *, schedule_id: int, limit: int) -> Sequence[Run]:
    """Return up to ``limit`` unfinished runs of a schedule, the first created first."""
    unfinished = (Run.finished_at.is_(None), Run.schedule_id == schedule_id)
    statement = select(Run).where(*unfinished).order_by(*UNFINISHED_ORDER, Run.id).limit(limit)
    return session.scalars(statement).all()


def revoke_unstarted(
    session: Session,
    *,
    schedule_ids: Sequence[int],
    now: datetime,
    reason: str,
    keep_requested: bool = False,
    keep_batches: bool = False,
    except_ids: Sequence[str] = (),
) -> int:
    """Revoke the pending, sent and retrying runs of the schedules, and return their number.

    The schedules must be locked. Unchanged are runs in ``except_ids``, with ``keep_requested`` the
    runs that a caller requested, and with ``keep_batches`` the runs that wait in batches.
    """
    kept = (~WAITS_IN_BATCH,) if keep_batches else ()
    statement = update(Run).where(
        is_unfinished_of(session, schedule_ids, *kept), Run.status.in_(REVOKE.sources)
    )
    statement = statement.values(_revoked(now, reason))
    if keep_requested:
        statement = statement.where(Run.origin.not_in(KEPT_ORIGINS))
    if except_ids:
        statement = statement.where(Run.id.not_in(except_ids))
    return execute_dml(session, force_index(statement, RUNS, UNFINISHED_INDEX))


def revoke_owner(session: Session, *, owner: str, now: datetime, reason: str) -> int:
    """Move the unstarted runs of all schedules of ``owner`` to revoked and return their number."""
    schedule_ids = session.scalars(select(Schedule.id).where(Schedule.owner == owner)).all()
    # Selected by ids, so that the index of unfinished runs is used. With a subquery, MariaDB reads
    # the whole history.
    return sum(
        revoke_unstarted(session, schedule_ids=part, now=now, reason=reason)
        for part in statements.in_parts(schedule_ids, MAX_IN_LIST)
    )


def ready_since(session: Session, run_ids: Sequence[str]) -> Mapping[str, datetime]:
    """Return since when runs could be sent, by id: since they were recorded, or had waited."""
    found = select(Run.id, func.coalesce(Run.ready_at, Run.created_at)).where(Run.id.in_(run_ids))
    rows: Sequence[Any] = session.execute(found).all()
    return dict(rows)


def get(session: Session, *, run_id: str) -> Run | None:
    """Return the run, or None."""
    return session.get(Run, run_id, populate_existing=True)


def detach_from_schedule(session: Session, condition: ColumnElement[bool]) -> None:
    """Set the schedule of the runs to NULL, because their schedule is about to be deleted."""
    # In parts: for a long history one statement would exceed the read timeout.
    linked = select(Run.id).where(condition, Run.schedule_id.is_not(None)).limit(MAX_IN_LIST)
    while ids := session.scalars(linked).all():
        execute_dml(session, update(Run).where(Run.id.in_(ids)).values(schedule_id=None))


def lock_free(session: Session, ids: Sequence[str]) -> Sequence[str]:
    """Lock the runs that no other transaction has locked, and return their ids."""
    return session.scalars(_free(Run.id.in_(ids))).all() if ids else ()


def check_free(session: Session, run_id: str) -> None:
    """Lock a run. Raise RowLockedError if another transaction has locked it."""
    is_locked = not lock_free(session, [run_id])
    if is_locked and session.scalar(select(Run.id).where(Run.id == run_id)) is not None:
        raise RowLockedError


def is_not_interrupted(status: ColumnElement[Any], error: ColumnElement[Any]) -> Any:
    """Return the condition that a run was not lost by a shutdown of its worker."""
    return or_(status != Status.LOST, error.is_distinct_from(INTERRUPTED))


def _free(*conditions: ColumnElement[bool]) -> Select[Any]:
    # InnoDB locks each row that it scans, and prefers to scan a small table.
    free = force_index(select(RUNS.c.id), RUNS, "PRIMARY").where(*conditions)
    return free.with_for_update(skip_locked=True)


def update_free(
    session: Session, *conditions: ColumnElement[bool], values: Mapping[str, Any]
) -> int:
    """Update the runs that match, except those that other transactions have locked.

    The conditions include ids. Returns the number of rows.
    """
    capabilities = capabilities_in(session)
    return _execute_free(session, *_free_update(capabilities, conditions, values), {})


def _free_update(
    capabilities: Capabilities, conditions: Sequence[ColumnElement[bool]], values: Mapping[str, Any]
) -> tuple[Select[Any] | None, Update]:
    """Return the statement that locks the free rows, if it is a separate one, and the UPDATE."""
    changed, free = update(RUNS).values(**values), _free(*conditions)
    if capabilities.has_lateral:
        # One statement, so that it needs no transaction.
        locked = free.cte("free")
        return None, changed.where(RUNS.c.id == locked.c.id)
    return free, changed.where(RUNS.c.id.in_(bindparam("free_ids", expanding=True)))


def _execute_free(
    session: Session, free: Select[Any] | None, changed: Update, values: Mapping[str, Any]
) -> int:
    if free is None:
        return execute_dml(session, changed, values)
    ids = session.scalars(free, values).all()
    return execute_dml(session, changed, {**values, "free_ids": ids}) if ids else 0


def change(
    session: Session,
    ids: str | Sequence[str],
    sources: Sequence[str],
    *conditions: ColumnElement[bool],
    **values: Any,
) -> int:
    """Make a transition: update the runs with one of the statuses ``sources``.

    Returns the number of changed runs.
    """
    if not ids:
        return 0
    of_ids = Run.id == ids if isinstance(ids, str) else Run.id.in_(ids)
    changed = update(Run).where(of_ids, Run.status.in_(sources), *conditions)
    return execute_dml(session, changed.values(values))


def execute_dml(session: Session, statement: Any, values: Mapping[str, Any] | None = None) -> int:
    """Execute an UPDATE or DELETE and return its row count."""
    options = {"synchronize_session": False}
    result = session.execute(statement, values, execution_options=options)
    return int(result.rowcount)  # type: ignore[attr-defined]


def prune_page(session: Session, *, after: str, before: str, limit: int) -> Sequence[Row[Any]]:
    """Return up to ``limit`` runs with ids between ``after`` and ``before``, ordered by id.

    The columns of the schedule decide which runs stay; they are None if it was deleted. ``over_at``
    is the schedule's ``finished_at``.
    """
    of_run = (Run.id, Run.schedule_id, Run.fire_at, Run.origin, Run.finished_at)
    of_schedule = (
        Schedule.last_run_at,
        Schedule.next_fire_at,
        Schedule.finished_at.label("over_at"),
    )
    statement: Any = (
        select(*of_run, *of_schedule)
        .outerjoin(Schedule, Schedule.id == Run.schedule_id)
        .where(Run.id > after, Run.id < before)
        .order_by(Run.id)
        .limit(limit)
    )
    return session.execute(statement).all()


def delete_finished(session: Session, ids: Sequence[str]) -> int:
    """Delete the runs that are finished, and return their number.

    Rows that another transaction has locked are skipped. They are locked first, because two beats
    that delete the same rows would wait for each other.
    """
    free = _free(Run.id.in_(ids), Run.finished_at.is_not(None))
    return delete_ids(session, RUNS, session.scalars(free).all()) if ids else 0


def delete_of_owner(session: Session, *, owner: str, limit: int) -> int:
    """Delete up to ``limit`` runs of an owner, the oldest first; return their number."""
    ids = select(Run.id).where(Run.owner == owner)
    return delete_ids(session, RUNS, session.scalars(ids.order_by(Run.fire_at).limit(limit)).all())


def last_success(session: Session, *, run_id: str, before: datetime) -> datetime | None:
    """Return the newest fire time ``before`` an instant whose run succeeded, or None.

    The run ``run_id`` belongs to the schedule. The search covers MAX_ROWS rows of its history.
    """
    schedule_id = select(Run.schedule_id).where(Run.id == run_id).scalar_subquery()
    history = select(Run.fire_at, Run.nominal_at, Run.status)
    history = history.where(Run.schedule_id == schedule_id, Run.fire_at < before)
    for limit in (FIRST_ROWS, MAX_ROWS):
        newest = history.order_by(Run.fire_at.desc()).limit(limit).subquery()
        # fire_at of a rerun is not its fire time.
        fire_time = func.coalesce(newest.c.nominal_at, newest.c.fire_at, type_=Run.fire_at.type)
        succeeded = select(fire_time).where(newest.c.status == Status.SUCCEEDED)
        last = succeeded.order_by(newest.c.fire_at.desc()).limit(1)
        found: datetime | None = session.scalar(last)
        if found is not None:
            return found
    return None


def ping_url(session: Session, *, run_id: str) -> str | None:
    """Return the ping URL of a run's schedule, or None. Reads two primary keys."""
    of_run = select(Schedule.ping_url).join(Run, Run.schedule_id == Schedule.id)
    return session.scalar(of_run.where(Run.id == run_id))


def lock(session: Session, *, run_id: str, owner: str | None) -> Run | None:
    """Return a run of an owner, locked for this transaction, or None.

    If ``owner`` is None, any owner matches.
    """
    statement = select(Run).where(Run.id == run_id)
    if owner is not None:
        statement = statement.where(Run.owner == owner)
    latest = statement.with_for_update().execution_options(populate_existing=True)
    return session.scalars(latest).one_or_none()


def lock_many(
    session: Session, ids: Sequence[str], conditions: Sequence[ColumnElement[bool]] = ()
) -> Sequence[Row[Any]]:
    """Lock the runs that can be cancelled and meet the conditions, as they are now.

    The rows have ``id``, ``schedule_id``, ``owner`` and ``name``.
    """
    statement: Any = (
        select(Run.id, Run.schedule_id, Run.owner, Run.name)
        .where(Run.id.in_(ids), Run.status.in_(REVOKE.sources), *conditions)
        .order_by(Run.id)
        .with_for_update()
    )
    # InnoDB locks each row that it scans.
    return session.execute(force_index(statement, Run, "PRIMARY")).all()


# The errors of earlier attempts are a bounded text in the run, with one line for each attempt. The
# UPDATE that ends an attempt, and lets another one follow, appends the line.
#: The line of another attempt is not added to a text of this length.
_MAX_LENGTH = 4_000
_errors = RUNS.c.earlier_errors


def error_line(error: str | None, *, at: datetime) -> str:
    """Return the line of an attempt that ended, without the number of the attempt."""
    text = first_line(error) or "no error text"
    return f", {at:%Y-%m-%dT%H:%M:%SZ}: {text}\n"


def with_error_line(line: Any) -> Any:
    """Return the SQL expression of the errors with the line of the present attempt."""
    attempt = cast(RUNS.c.attempt, String(16))
    before = func.coalesce(_errors, literal_column("''"), type_=_errors.type)
    added = before.concat(literal_column("'attempt '")).concat(attempt).concat(line)
    return case((func.length(before) < literal_column(str(_MAX_LENGTH)), added), else_=_errors)
