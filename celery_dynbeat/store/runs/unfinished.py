"""Queries on unfinished runs: for the overlap policy, and when they are stuck.

A run is stuck if the broker lost its retry, if its worker is dead or executes it no longer, or if
its canvas is lost. A worker is dead when it was replaced, or has been stopped or silent for
dynbeat_node_timeout. ``end_attempts`` decides what follows:

    running, on_lost="record" (the default)                     -> lost
    running, on_lost="rerun" (an idempotent task)               -> pending, sent again
    running, the broker redelivered the message                 -> pending, sent again
    the last two, at the MAX_ATTEMPTS-th attempt                -> lost: it may kill its workers
    running, a newer run was to replace it                      -> revoked
    retrying: replaced by a canvas that has not ended           -> lost: tasks of it may still run

An attempt that its task has postponed does not count.

Beat calls it for the runs of dead nodes (``beat.rescue``). A living worker calls it for runs that
it does not execute (``worker.pool_check``). A worker that was only slow records the end of its
attempt later, over ``lost``. The guard prevents a second start: a redelivered message finds its run
started or ended.

``latest_outcomes`` reads consecutive failures, past the unfinished runs.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import Select, and_, case, func, literal, or_, select, update
from sqlalchemy.orm import Session
from sqlalchemy.orm import join as orm_join

from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.states import KEPT_ORIGINS, LOSE, RERUN, RESEND_RETRY, Status, Wait
from celery_dynbeat.db import statements
from celery_dynbeat.db.models import RUNS, Node, NodeKind, Origin, Run, Schedule
from celery_dynbeat.db.statements import Row, capabilities_in, force_index, read
from celery_dynbeat.db.types import UtcDateTime, seconds_between
from celery_dynbeat.store.runs import (
    MAX_IN_LIST,
    NEWEST_UNFINISHED,
    UNFINISHED_INDEX,
    UNFINISHED_ORDER,
    WAITS_IN_BATCH,
    change,
    error_line,
    execute_dml,
    is_not_interrupted,
    is_unfinished_of,
    lock_free,
    newest_unfinished,
    order_of_unfinished,
    revoke_unstarted,
    update_free,
    with_error_line,
)
from celery_dynbeat.telemetry import emit_on_commit, events

#: The error of a run that a newer run replaced.
REPLACED = "overlap: a newer run took its place"
#: The columns of a run that the overlap policy needs.
_OVERLAP_COLUMNS: tuple[Any, ...] = (
    Run.id,
    Run.schedule_id,
    Run.fire_at,
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
#: Additional rows between the last outcomes: skipped, revoked, manual and unfinished runs.
UNTRIED_MARGIN = 500


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
        statement = select(*_OVERLAP_COLUMNS).where(*unended)
        first = case((Run.status == Status.RUNNING, 0), (Run.origin == Origin.SCHEDULE, 1), else_=2)
        runs += read(session, statement.order_by(first, Run.id.desc()).limit(MAX_UNFINISHED))
    return runs


def _newest_runs(session: Session, schedule_ids: Sequence[int]) -> Sequence[Row]:
    """Return the unfinished runs of the schedules, at least the newest MAX_UNFINISHED of each."""
    parts = list(statements.in_parts(schedule_ids, MAX_IN_LIST))
    if capabilities_in(session).has_lateral:
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
    statement = select(*_OVERLAP_COLUMNS).where(*unended).limit(limit)
    # Index order is possible only for a single schedule, because the rows of a list would be
    # sorted.
    return statement.order_by(*NEWEST_UNFINISHED) if len(schedule_ids) == 1 else statement


def with_locked_runs(
    session: Session, schedule_ids: Sequence[int], *, except_batches: bool = False
) -> set[int | None]:
    """Return which of the schedules have an unfinished run that another transaction has locked.

    The other unfinished runs of the schedules are locked for this transaction. With
    ``except_batches``, the runs that wait in batches are left out.
    """
    if not schedule_ids:
        return set()
    unfinished = select(Run.id, Run.schedule_id)
    left_out = (~WAITS_IN_BATCH,) if except_batches else ()
    found = session.execute(unfinished.where(is_unfinished_of(session, schedule_ids, *left_out)))
    schedule_of = {row.id: row.schedule_id for row in found}
    locked = schedule_of.keys() - set(lock_free(session, list(schedule_of)))
    return {schedule_of[run_id] for run_id in locked}


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
    execute_dml(session, force_index(mark, RUNS, UNFINISHED_INDEX))
    marked = select(Run.id).where(*running, Run.cancelled_at == now)
    return list(session.scalars(marked))


def cancelled_before(session: Session, *, before: datetime, limit: int) -> Sequence[str]:
    """Return up to ``limit`` ids of running runs that were cancelled ``before`` an instant.

    Runs with an error of ``note_termination_failure`` are left out, and runs that another
    transaction has locked: ``note_termination_failure`` could not change them.
    """
    statement = select(Run.id).where(
        Run.finished_at.is_(None),
        Run.status == Status.RUNNING,
        Run.cancelled_at <= before,
        Run.error.is_(None),
    )
    first = statement.order_by(*UNFINISHED_ORDER).limit(limit).with_for_update(skip_locked=True)
    return session.scalars(first).all()


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
    # This is the worker's transaction, without ``follow_indexes``. A small limit in the order of an
    # index makes the planner use it.
    buffered = (
        select(Run.id)
        .where(Run.finished_at.is_(None), Run.schedule_id == schedule_id, *unsent)
        .order_by(*UNFINISHED_ORDER)
        .limit(MAX_RELEASED)
    )
    ids = session.scalars(buffered).all()
    if not ids:
        return 0
    return update_free(session, Run.id.in_(ids), *unsent, values={"overdue_at": now})


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
    return execute_dml(session, force_index(made, RUNS, UNFINISHED_INDEX))


#: The runs of a schedule that beat considers before it sends one of them: one that waits for a
#: place, the next one, and the one after that.
_FIRST = 3


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

    def first(oldest: Select[Any]) -> Select[Any]:
        return oldest.where(WAITS_IN_BATCH, has_turn).limit(_FIRST)

    keys = [(schedule_id,) for schedule_id in schedule_ids]
    return _oldest(session, (Run.id, Run.schedule_id, Run.waited_for), keys, first)


def busy(session: Session, since: Mapping[int, datetime]) -> set[int]:
    """Return which of the schedules have an unfinished run that began after its ``since``.

    A run that has not begun counts, too, but none that waits in a batch. The search begins with the
    oldest run. That is usually the last one sent of a batch, so the runs behind it are not read.
    """
    if not since:
        return set()

    def first(oldest: Select[Any], since: Any) -> Select[Any]:
        has_begun_since = or_(Run.started_at.is_(None), Run.started_at > since)
        return oldest.where(~WAITS_IN_BATCH, has_begun_since).limit(1)

    rows = _oldest(session, (Run.schedule_id,), sorted(since.items()), first)
    return {row.schedule_id for row in rows}


def _oldest(
    session: Session,
    columns: Sequence[Any],
    keys: Sequence[tuple[Any, ...]],
    limited: Callable[..., Select[Any]],
) -> Sequence[Row]:
    """Return the rows of ``limited`` for each key: a schedule, and perhaps an instant.

    It gets a SELECT of the unfinished runs of a schedule, the first recorded first.
    """
    order = order_of_unfinished(session)
    found = select(*columns).where(Run.finished_at.is_(None))

    def of_one(schedule_id: Any, *rest: Any) -> Select[Any]:
        oldest = found.where(Run.schedule_id == schedule_id).order_by(*order, Run.id)
        return limited(oldest, *rest)

    if capabilities_in(session).has_lateral and keys:
        types = (Schedule.id, Run.started_at)[: len(keys[0])]
        return read(session, statements.lateral_for_rows(types, keys, of_one))
    return [row for key in keys for row in read(session, of_one(*key))]


def ask_at(session: Session, run_ids: Sequence[str], *, at: datetime) -> None:
    """Let the sweep ask waiting runs at ``at``, unless another transaction has locked them."""
    if run_ids:
        later = (Run.id.in_(run_ids), Run.status == Status.PENDING, Run.overdue_at > at)
        update_free(session, *later, values={"overdue_at": at})


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


#: After this many attempts, the run is not sent again.
MAX_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class EndedAttempts:
    """The ended attempts of one batch: their number, and how many of their runs are sent again."""

    count: int
    rerun_count: int


def end_attempts(
    session: Session, rows: Sequence[Row], *, now: datetime, settings: Settings, reason: str
) -> EndedAttempts:
    """End the attempts of locked runs, and record ``reason`` with each of them."""
    replaced = [row for row in rows if row.cancelled_at is not None]
    others = [row for row in rows if row.cancelled_at is None]
    rerun = [row for row in others if _is_rerun(row, settings)]
    lost = [row for row in others if not _is_rerun(row, settings)]
    _end_lost(session, _ids(replaced), status=Status.REVOKED, now=now, error=REPLACED)
    _rerun(session, _ids(rerun), now=now, error=reason)
    _end_lost(session, _ids(lost), status=Status.LOST, now=now, error=reason)
    emit_on_commit(
        session,
        *(_event(events.ReplacedRunLost, row, reason=reason, at=now) for row in replaced),
        *(_event(events.RunLost, row, reason=reason, at=now, sent_again=True) for row in rerun),
        *(_event(events.RunLost, row, reason=reason, at=now) for row in lost),
    )
    return EndedAttempts(len(rows), len(rerun))


def _event(
    event_type: type[events.RunLost],
    row: Row,
    *,
    reason: str,
    at: datetime,
    sent_again: bool = False,
) -> events.RunLost:
    return event_type(
        run_id=row.id,
        schedule_id=row.schedule_id,
        owner=row.owner,
        schedule=row.name,
        task=row.task,
        attempt=row.attempt,
        worker=row.worker,
        reason=reason,
        sent_again=sent_again,
        at=at,
    )


def _ids(rows: Sequence[Row]) -> list[str]:
    return [row.id for row in rows]


def _is_rerun(row: Row, settings: Settings) -> bool:
    # A pause or a delete prevents a new attempt, as it prevents the first.
    is_active = bool(row.enabled) or row.origin in KEPT_ORIGINS
    allowed = row.attempt - row.postponements < MAX_ATTEMPTS and is_active
    redelivered = row.redelivered_attempt == row.attempt
    may_run_again = redelivered or (row.on_lost or settings.on_lost) == "rerun"
    return allowed and may_run_again and row.status == Status.RUNNING


def _end_lost(
    session: Session, ids: Sequence[str], *, status: Status, now: datetime, error: str
) -> int:
    """Move running and retrying runs to lost or revoked. Return their number.

    Maintenance corrects the schedules of lost runs (``store.failing``).
    """
    retry_at = now if status == Status.LOST else None
    ended = {"status": status, "finished_at": now, "error": error, "retry_at": retry_at}
    return change(session, ids, LOSE.sources, **ended)


def _rerun(session: Session, ids: Sequence[str], *, now: datetime, error: str) -> int:
    """Move running runs to pending, so that beat sends them for a new attempt.

    Return their number.
    """
    errors = with_error_line(error_line(error, at=now))
    pending = {"status": Status.PENDING, "overdue_at": now, "started_at": None, "error": error}
    return change(session, ids, RERUN.sources, **pending, earlier_errors=errors)


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
    pending = {"status": Status.PENDING, "overdue_at": now, "retry_at": None, "started_at": None}
    return change(session, ids, RESEND_RETRY.sources, **pending, retries=Run.retries + 1)


def latest_outcomes(
    session: Session, *, schedule_id: int, until: datetime, limit: int
) -> Sequence[Row]:
    """Return status, finished_at and error of the last succeeded, failed and lost runs.

    The newest fire time up to ``until`` comes first. Manual and interrupted runs and runs of a
    backfill are left out. The query reads at most the newest ``limit`` + UNTRIED_MARGIN rows of the
    schedule's history.
    """
    newest = (
        select(Run.status, Run.finished_at, Run.error, Run.origin)
        .where(Run.schedule_id == schedule_id, Run.fire_at <= until)
        .order_by(Run.fire_at.desc())
        .limit(limit + UNTRIED_MARGIN)
        .subquery()
    )
    statement: Any = (
        select(newest.c.status, newest.c.finished_at, newest.c.error)
        .where(
            newest.c.origin == Origin.SCHEDULE,
            newest.c.status.in_((Status.SUCCEEDED, Status.FAILED, Status.LOST)),
            is_not_interrupted(newest.c.status, newest.c.error),
        )
        .limit(limit)
    )
    return session.execute(statement).all()
