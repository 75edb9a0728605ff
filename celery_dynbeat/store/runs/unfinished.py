"""Queries on unfinished runs: for the overlap policy, and when they are stuck.

A run is stuck if its worker is dead, or if the broker lost its retry. ``latest_outcomes`` reads
consecutive failures, past the unfinished runs.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import Select, and_, case, func, literal, or_, select, update
from sqlalchemy.orm import Session
from sqlalchemy.orm import join as orm_join

from celery_dynbeat.common.states import LOSE, RERUN, RESEND_RETRY, Status, Wait
from celery_dynbeat.db import statements
from celery_dynbeat.db.dialects import Capabilities, capabilities_of
from celery_dynbeat.db.models import Node, NodeKind, Origin, Run, Schedule
from celery_dynbeat.db.statements import Row, force_index, in_index_order, read
from celery_dynbeat.db.types import UtcDateTime, seconds_between
from celery_dynbeat.store.runs import (
    MAX_IN_LIST,
    NEWEST_UNFINISHED,
    UNFINISHED_INDEX,
    UNFINISHED_ORDER,
    WAITS_IN_BATCH,
    error_line,
    execute_dml,
    is_unfinished_of,
    lock_free,
    newest_unfinished,
    revoke_unstarted,
    update_free,
    with_error_line,
)

#: The error of a run that a newer run replaced.
REPLACED = "overlap: a newer run took its place"
#: The columns of a run that the overlap policy needs.
_OVERLAP_COLUMNS: tuple[Any, ...] = (
    Run.id,
    Run.schedule_id,
    Run.scheduled_for,
    Run.origin,
    Run.sent_at,
    Run.started_at,
    Run.status,
    Run.overdue_at,
)
#: Unfinished runs of one schedule that the overlap policy reads.
MAX_UNFINISHED = 100
#: The maximum number of buffered runs of one schedule that are read. Usually, there is only one.
MAX_RELEASED = 10


@in_index_order
def unfinished_runs(session: Session, schedule_ids: Sequence[int]) -> Sequence[Row]:
    """Return the unfinished runs of the schedules, in any order and without locks.

    Runs that wait in batches are left out. A schedule with more than MAX_UNFINISHED contributes
    MAX_UNFINISHED: first the runs that a worker executes, then the runs of its fire times, then the
    newest ones. Many manual runs therefore hide neither the run for which a buffered run waits, nor
    the buffered run.
    """
    found = _newest_runs(session, schedule_ids)
    count_of = Counter(run.schedule_id for run in found)
    crowded = [key for key, count in count_of.items() if count >= MAX_UNFINISHED]
    if not crowded:
        return found
    runs = [run for run in found if run.schedule_id not in crowded]
    for schedule_id in crowded:
        unended = (Run.finished_at.is_(None), Run.schedule_id == schedule_id, ~WAITS_IN_BATCH)
        statement = force_index(select(*_OVERLAP_COLUMNS), Run, UNFINISHED_INDEX).where(*unended)
        first = case((Run.status == Status.RUNNING, 0), (Run.origin == Origin.SCHEDULE, 1), else_=2)
        runs += read(session, statement.order_by(first, Run.id.desc()).limit(MAX_UNFINISHED))
    return runs


def _newest_runs(session: Session, schedule_ids: Sequence[int]) -> Sequence[Row]:
    """Return the unfinished runs of the schedules, at least the newest MAX_UNFINISHED of each."""
    parts = list(statements.in_parts(schedule_ids, MAX_IN_LIST))
    if capabilities_of(session.get_bind(Run).dialect).has_lateral:
        newest = partial(newest_unfinished, _OVERLAP_COLUMNS, limit=MAX_UNFINISHED)
        each = (newest(part, ~WAITS_IN_BATCH) for part in parts)
        return [row for query in each for row in read(session, query)]
    runs: list[Row] = []
    while parts:
        part = parts.pop()
        limit = MAX_UNFINISHED + (2 * len(part) if len(part) > 1 else 0)
        some = read(session, _unfinished(part, limit=limit))
        if len(part) == 1 or len(some) < limit:
            runs += some
        else:
            # Some schedules have very many runs. Bisect until these schedules are alone.
            middle = len(part) // 2
            parts += [part[:middle], part[middle:]]
    return runs


def _unfinished(schedule_ids: Sequence[int], *, limit: int) -> Select[Any]:
    unended = (Run.finished_at.is_(None), Run.schedule_id.in_(schedule_ids), ~WAITS_IN_BATCH)
    statement = (
        force_index(select(*_OVERLAP_COLUMNS), Run, UNFINISHED_INDEX).where(*unended).limit(limit)
    )
    # Index order is possible only for a single schedule, because the rows of a list would be
    # sorted.
    return statement.order_by(*NEWEST_UNFINISHED) if len(schedule_ids) == 1 else statement


@in_index_order
def with_locked_runs(
    session: Session, schedule_ids: Sequence[int], *, except_batches: bool = False
) -> set[int | None]:
    """Return which of the schedules have an unfinished run that another transaction has locked.

    The other unfinished runs of the schedules are locked for this transaction. With
    ``except_batches``, the runs that wait in batches are left out.
    """
    if not schedule_ids:
        return set()
    unfinished = force_index(select(Run.id, Run.schedule_id), Run, UNFINISHED_INDEX)
    left_out = (~WAITS_IN_BATCH,) if except_batches else ()
    found = session.execute(unfinished.where(is_unfinished_of(session, schedule_ids, *left_out)))
    schedule_of = {row.id: row.schedule_id for row in found}
    locked = schedule_of.keys() - set(lock_free(session, list(schedule_of)))
    return {schedule_of[run_id] for run_id in locked}


@in_index_order
def cancel_replaced(
    session: Session, schedule_ids: Sequence[int], *, by: Sequence[str], now: datetime
) -> list[str]:
    """Cancel the unfinished runs of the schedules except those in ``by``, which replace them.

    Unstarted runs are revoked, except those that wait in batches. Running runs are marked as
    cancelled, so that no message starts them again. Returns the ids of the newly marked runs, so
    that beat can ask their workers to terminate them.
    """
    if not schedule_ids:
        return []
    revoke_unstarted(
        session,
        schedule_ids=schedule_ids,
        now=now,
        reason=REPLACED,
        keep_batches=True,
        except_ids=by,
    )
    # This also finds a run that a worker started just before the revocation.
    others = is_unfinished_of(session, schedule_ids, ~WAITS_IN_BATCH)
    running = (others, Run.status == Status.RUNNING)
    mark = update(Run).where(*running, Run.cancelled_at.is_(None)).values(cancelled_at=now)
    execute_dml(session, force_index(mark, Run.__table__, UNFINISHED_INDEX))
    marked = force_index(select(Run.id), Run, UNFINISHED_INDEX)
    return list(session.scalars(marked.where(*running, Run.cancelled_at == now)))


@in_index_order
def cancelled_before(session: Session, *, before: datetime, limit: int) -> Sequence[str]:
    """Return up to ``limit`` ids of running runs that were cancelled ``before`` an instant.

    Runs with an error of ``note_termination_failure`` are left out, and runs that another
    transaction has locked: ``note_termination_failure`` could not change them.
    """
    statement = force_index(select(Run.id), Run, UNFINISHED_INDEX).where(
        Run.finished_at.is_(None),
        Run.status == Status.RUNNING,
        Run.cancelled_at <= before,
        Run.error.is_(None),
    )
    first = statement.order_by(*UNFINISHED_ORDER).limit(limit).with_for_update(skip_locked=True)
    return session.scalars(first).all()


@in_index_order
def note_termination_failure(session: Session, *, run_ids: Sequence[str], reason: str) -> bool:
    """Store why cancelled runs were not terminated; return whether a row was changed.

    Runs that another transaction has locked do not change.
    """
    unnoted = (
        Run.id.in_(run_ids),
        Run.status == Status.RUNNING,
        Run.cancelled_at.is_not(None),
        Run.error.is_(None),
    )
    return update_free(session, *unnoted, values={"error": reason}) > 0


def make_buffered_overdue(session: Session, *, run_id: str, now: datetime) -> int:
    """Make the run that is buffered behind ``run_id`` overdue, so that beat sends it at once.

    Returns the number of changed runs. A run that another transaction has locked does not change,
    so the sweep sends it later.
    """
    schedule_id = select(Run.schedule_id).where(Run.id == run_id).scalar_subquery()
    unsent = (
        Run.status == Status.PENDING,
        Run.sent_at.is_(None),
        Run.origin == Origin.SCHEDULE,
        # NULL means that the run waits for a place.
        Run.overdue_at.is_not(None),
    )
    # This is the worker's transaction, without the setting of ``in_index_order``. A small limit in
    # the order of an index makes the planner use it.
    buffered = (
        force_index(select(Run.id), Run, UNFINISHED_INDEX)
        .where(Run.finished_at.is_(None), Run.schedule_id == schedule_id, *unsent)
        .order_by(*UNFINISHED_ORDER)
        .limit(MAX_RELEASED)
    )
    ids = session.scalars(buffered).all()
    if not ids:
        return 0
    return update_free(session, Run.id.in_(ids), *unsent, values={"overdue_at": now})


@in_index_order
def make_all_buffered_overdue(
    session: Session, schedule_ids: Sequence[int], *, default: str, now: datetime
) -> int:
    """Make the buffered runs of the schedules overdue, because other runs of them have ended.

    ``default`` is the overlap policy of a schedule without its own. Returns the number of changed
    runs. The sweep leaves a run buffered that still has to wait.
    """
    policy = func.coalesce(Schedule.overlap, default)
    buffering = select(Schedule.id).where(Schedule.id.in_(schedule_ids), policy == "buffer_one")
    ids = session.scalars(buffering).all()
    if not ids:
        return 0
    statement = update(Run).where(
        is_unfinished_of(session, ids),
        Run.status == Status.PENDING,
        Run.sent_at.is_(None),
        Run.origin == Origin.SCHEDULE,
        Run.overdue_at.is_not(None),
    )
    made = statement.values(overdue_at=now)
    return execute_dml(session, force_index(made, Run.__table__, UNFINISHED_INDEX))


#: The runs of a schedule that beat considers before it sends one of them: one that waits for a
#: place, the next one, and the one after that.
_FIRST = 3


@in_index_order
def first_in_batches(
    session: Session, schedule_ids: Sequence[int], *, now: datetime
) -> Sequence[Row]:
    """Return the first runs of each schedule that wait in batches, the oldest first.

    Their turn has come, and neither a hold nor quiet hours stop them. The rows have ``id``,
    ``schedule_id`` and ``waited_for``.
    """
    has_turn = or_(
        Run.waited_for.in_((Wait.PLACE, Wait.PREVIOUS)),
        and_(Run.waited_for == Wait.BATCH, Run.overdue_at <= now),
    )

    columns = (Run.id, Run.schedule_id, Run.waited_for)
    capabilities = capabilities_of(session.get_bind(Run).dialect)

    def first(schedule_id: Any) -> Select[Any]:
        oldest = _oldest(capabilities, columns, schedule_id=schedule_id)
        return oldest.where(WAITS_IN_BATCH, has_turn).limit(_FIRST)

    if capabilities.has_lateral:
        return read(session, statements.lateral_for_each(Schedule.id, schedule_ids, first))
    return [row for key in schedule_ids for row in read(session, first(key))]


@in_index_order
def busy(session: Session, since: Mapping[int, datetime]) -> set[int]:
    """Return which of the schedules have an unfinished run that began after its ``since``.

    A run that has not begun counts, too, but none that waits in a batch. The search begins with the
    oldest run. That is usually the last one sent of a batch, so the runs behind it are not read.
    """
    if not since:
        return set()
    capabilities = capabilities_of(session.get_bind(Run).dialect)

    def first(schedule_id: Any, since: Any) -> Select[Any]:
        oldest = _oldest(capabilities, (Run.schedule_id,), schedule_id=schedule_id)
        has_begun_since = or_(Run.started_at.is_(None), Run.started_at > since)
        return oldest.where(~WAITS_IN_BATCH, has_begun_since).limit(1)

    if capabilities.has_lateral:
        keys, rows = (Schedule.id, Run.started_at), sorted(since.items())
        return set(session.scalars(statements.lateral_for_rows(keys, rows, first)))
    return {key for key, at in since.items() if session.scalar(first(key, at)) is not None}


def _oldest(capabilities: Capabilities, columns: Sequence[Any], *, schedule_id: Any) -> Select[Any]:
    """Return a SELECT of the unfinished runs of a schedule, the first recorded first."""
    # MariaDB sorts all rows if the order begins with a column that is NULL in each of them.
    order = UNFINISHED_ORDER if capabilities.has_partial_indexes else UNFINISHED_ORDER[1:]
    found = force_index(select(*columns), Run, UNFINISHED_INDEX)
    unfinished = (Run.finished_at.is_(None), Run.schedule_id == schedule_id)
    ordered: Select[Any] = found.where(*unfinished).order_by(*order, Run.id)
    return ordered


def ask_at(session: Session, run_ids: Sequence[str], *, at: datetime) -> None:
    """Let the sweep ask waiting runs at ``at``, unless another transaction has locked them."""
    if run_ids:
        later = (Run.id.in_(run_ids), Run.status == Status.PENDING, Run.overdue_at > at)
        update_free(session, *later, values={"overdue_at": at})


#: Additional rows between the last outcomes: skipped, revoked, manual and unfinished runs.
UNTRIED_MARGIN = 500


@in_index_order
def lock_lost(
    session: Session,
    *,
    now: datetime,
    silent_since: datetime,
    max_run_time: timedelta,
    limit: int,
    except_ids: Collection[str] = (),
) -> Sequence[Row]:
    """Return up to ``limit`` lost runs, locked for this transaction.

    - Running runs whose worker is dead: another process has registered under its name since, or its
      last heartbeat is not after ``silent_since``.
    - Retrying runs of which a canvas executes the rest (``Task.replace()``), and that began more
      than the ``max_run_time`` of their schedule ago, or the given one.

    Rows that another transaction has locked are skipped, and ``except_ids``.
    """
    lost = and_(
        Run.finished_at.is_(None),
        # The limit comes before the joins, so that a backlog of other unfinished runs is not
        # joined.
        Run.status.in_(LOSE.sources),
        or_(_is_orphaned(silent_since), _is_unheard_of(now, max_run_time)),
    )
    # Three steps, because MariaDB also locks the joined tables. It would skip a node whose row a
    # heartbeat has locked, and the node would count as missing.
    candidates = select(Run.id).select_from(_with_schedule(_with_node())).where(lost)
    candidates = candidates.order_by(*UNFINISHED_ORDER).limit(limit)
    passed = list(except_ids)
    while True:
        free = candidates.where(Run.id.not_in(passed)) if passed else candidates
        ids = session.scalars(free).all()
        locked = _lock(session, ids, _with_node(), lost) if ids else ()
        # If all of them are locked, they would hide the others.
        if locked or len(ids) < limit:
            return locked
        passed += ids


def running_on_worker(session: Session, *, worker: str, limit: int) -> Sequence[Row]:
    """Return id, attempt and worker_pid of up to ``limit`` running runs of a worker node."""
    statement = (
        select(Run.id, Run.attempt, Run.worker_pid)
        .where(Run.worker == worker, Run.finished_at.is_(None), Run.status == Status.RUNNING)
        # The order of the index of a worker's unfinished runs.
        .order_by(Run.worker, Run.finished_at)
        .limit(limit)
    )
    return session.execute(statement).all()


def lock_attempts(session: Session, *, worker: str, attempts: Mapping[str, int]) -> Sequence[Row]:
    """Return the runs that are still running in these attempts on ``worker``, locked.

    ``attempts`` maps run ids to attempts. Rows that another transaction has locked are skipped.
    """
    unchanged = and_(
        Run.status == Status.RUNNING,
        Run.worker == worker,
        or_(*(and_(Run.id == key, Run.attempt == attempt) for key, attempt in attempts.items())),
    )
    return _lock(session, list(attempts), Run, unchanged)


def _lock(session: Session, ids: Sequence[str], source: Any, condition: Any) -> Sequence[Row]:
    lock = select(Run.id).where(Run.id.in_(ids)).with_for_update(skip_locked=True)
    locked = session.scalars(lock).all()
    statement: Any = (
        select(
            Run.id,
            Run.schedule_id,
            Run.owner,
            Run.name,
            Run.task,
            Run.worker,
            Run.origin,
            Run.status,
            Run.attempt,
            Run.postponements,
            Run.redelivered_attempt,
            Run.cancelled_at,
            Schedule.on_lost,
            Schedule.enabled,
        )
        .select_from(_with_schedule(source))
        .where(Run.id.in_(locked), condition)
    )
    return read(session, statement)


def _with_node() -> Any:
    return orm_join(
        Run, Node, and_(Node.kind == NodeKind.WORKER, Node.name == Run.worker), isouter=True
    )


def _with_schedule(source: Any) -> Any:
    return orm_join(source, Schedule, Schedule.id == Run.schedule_id, isouter=True)


def _is_orphaned(silent_since: datetime) -> Any:
    replaced = Node.started_at > Run.started_at
    silent = and_(
        Run.started_at <= silent_since,
        or_(Node.name.is_(None), Node.seen_at <= silent_since, Node.stopped_at <= silent_since),
    )
    return and_(Run.status == Status.RUNNING, or_(replaced, silent))


def _is_unheard_of(now: datetime, max_run_time: timedelta) -> Any:
    longest = func.coalesce(Schedule.max_run_time, max_run_time.total_seconds())
    return and_(
        Run.status == Status.RETRYING,
        # A retry and a replacement by a single task have an instant, so beat sends them again.
        Run.retry_at.is_(None),
        seconds_between(Run.started_at, literal(now, UtcDateTime())) > longest,
    )


def end_lost(
    session: Session, ids: Sequence[str], *, status: Status, now: datetime, error: str
) -> int:
    """Move running and retrying runs to lost or revoked. Return their number.

    Maintenance corrects the schedules of lost runs (``store.failing``).
    """
    if not ids:
        return 0
    statement = (
        update(Run)
        .where(Run.id.in_(ids), Run.status.in_(LOSE.sources))
        .values(
            status=status,
            finished_at=now,
            error=error,
            retry_at=now if status == Status.LOST else None,
        )
    )
    return execute_dml(session, statement)


def rerun(session: Session, ids: Sequence[str], *, now: datetime, error: str) -> int:
    """Move running runs to pending, so that beat sends them for a new attempt.

    Return their number.
    """
    if not ids:
        return 0
    statement = (
        update(Run)
        .where(Run.id.in_(ids), Run.status.in_(RERUN.sources))
        .values(
            status=Status.PENDING,
            overdue_at=now,
            started_at=None,
            error=error,
            earlier_errors=with_error_line(error_line(error, at=now)),
        )
    )
    return execute_dml(session, statement)


@in_index_order
def lock_late_retries(
    session: Session, *, before: datetime, limit: int, except_ids: Collection[str] = ()
) -> Sequence[Row]:
    """Return id, owner and name of up to ``limit`` runs whose retry was due ``before`` an instant.

    They are locked for this transaction. The broker has lost Celery's message of the retry.
    """
    # An ended run with ``retry_at`` waits for ``store.failing.deferred``.
    late: Any = select(Run.id, Run.owner, Run.name).where(
        Run.retry_at.is_not(None),
        Run.retry_at <= before,
        Run.status.in_(RESEND_RETRY.sources),
    )
    if except_ids:
        late = late.where(Run.id.not_in(except_ids))
    # Locked within the limit: locked runs at the front must not hide the others.
    return read(session, late.order_by(Run.retry_at).limit(limit).with_for_update(skip_locked=True))


def resend_retries(session: Session, ids: Sequence[str], *, now: datetime) -> int:
    """Move locked runs whose retry is late to pending; return their number.

    Beat sends a message with the same retry count in place of the message that is lost.
    """
    if not ids:
        return 0
    statement = (
        update(Run)
        .where(Run.id.in_(ids), Run.status.in_(RESEND_RETRY.sources))
        .values(
            status=Status.PENDING,
            overdue_at=now,
            retry_at=None,
            started_at=None,
            retries=Run.retries + 1,
        )
    )
    return execute_dml(session, statement)


@in_index_order
def latest_outcomes(
    session: Session, *, schedule_id: int, until: datetime, limit: int
) -> Sequence[Row]:
    """Return status, finished_at and error of the last succeeded, failed and lost runs.

    The newest fire time up to ``until`` comes first. Manual runs and runs of a backfill are left
    out. The query reads at most the newest ``limit`` + UNTRIED_MARGIN rows of the schedule's
    history.
    """
    newest = (
        select(Run.status, Run.finished_at, Run.error, Run.origin)
        .where(Run.schedule_id == schedule_id, Run.scheduled_for <= until)
        .order_by(Run.scheduled_for.desc())
        .limit(limit + UNTRIED_MARGIN)
        .subquery()
    )
    statement: Any = (
        select(newest.c.status, newest.c.finished_at, newest.c.error)
        .where(
            newest.c.origin == Origin.SCHEDULE,
            newest.c.status.in_((Status.SUCCEEDED, Status.FAILED, Status.LOST)),
        )
        .limit(limit)
    )
    return session.execute(statement).all()
