"""Beat's queries on schedules: due, unplanned, unsupported, quarantined; and its next work.

The next work is one query that reads the start of seven indexes.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Integer,
    Row,
    Select,
    and_,
    bindparam,
    case,
    func,
    literal,
    not_,
    or_,
    select,
    table,
    type_coerce,
    update,
)
from sqlalchemy.orm import Session

from celery_dynbeat import db
from celery_dynbeat.common.text import EARLIEST
from celery_dynbeat.db import statements
from celery_dynbeat.db.models import SCHEDULES, Schedule
from celery_dynbeat.db.statements import Row as NamedRow
from celery_dynbeat.db.statements import force_index, is_one_of, read
from celery_dynbeat.db.types import RunInstant, UtcDateTime
from celery_dynbeat.store import holds, runs
from celery_dynbeat.store.runs import execute_dml
from celery_dynbeat.store.schedules import check_deleted, failing
from celery_dynbeat.triggers import KINDS

_COLUMNS = SCHEDULES.c
_DUE_INDEX = "ix_dynbeat_schedule_due"
_UNPLANNED_INDEX = "ix_dynbeat_schedule_unplanned"
_PAUSED_INDEX = "ix_dynbeat_schedule_paused_until"
#: The limit of failures of a schedule to which the setting applies.
OF_SETTING = -1
#: Rows at the start of an index that are searched for unsupported triggers.
UNSUPPORTED_SEARCH_LIMIT = 500


class DueSchedule(NamedTuple):
    """What beat needs to plan and publish the runs of a schedule: its columns, and what they say.

    ``pings`` is true if the schedule has a ping URL, which only workers need. Without
    ``next_run_at``, the schedule is unplanned. ``failure_limit`` is ``pause_after_failures`` of a
    schedule that is failing, OF_SETTING if it has none, and None if it is not failing. ``was_held``
    is true if a claim found it held.
    ``any_hold`` is true if any hold exists, in force or not.
    """

    id: int
    owner: str
    name: str
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    options: dict[str, Any]
    trigger_kind: str
    trigger_spec: str
    hash_name: str | None
    timezone: str
    quiet_hours: str | None
    anchor_at: datetime | None
    start_at: datetime | None
    end_at: datetime | None
    max_runs: int | None
    run_count: int
    catch_up: str | None
    catch_up_window: float | None
    expires_after: float | None
    window: float | str | None
    overlap: str | None
    max_run_time: float | None
    retry: dict[str, Any] | None
    next_fire_at: datetime | None
    next_run_at: datetime | None
    skips: dict[str, str] | None
    last_run_at: datetime | None
    created_at: datetime
    version: int
    pings: bool
    failure_limit: int | None
    was_held: bool
    any_hold: bool

    @property
    def may_be_held(self) -> bool:
        """Whether the owner may have a hold in force."""
        return self.was_held or self.any_hold


_DUE_COLUMNS = runs.columns_of(
    DueSchedule,
    _COLUMNS,
    pings=_COLUMNS.ping_url.is_not(None),
    failure_limit=case(
        (
            _COLUMNS.failing_since.is_not(None),
            func.coalesce(_COLUMNS.pause_after_failures, OF_SETTING),
        )
    ),
    # held_at is not read, because converting an instant for each row of a claim takes longer.
    was_held=_COLUMNS.held_at.is_not(None),
    any_hold=runs.any_hold(),
)
_COLUMNS_TO_RUN = [column for column in _DUE_COLUMNS if column is not _COLUMNS.next_run_at]
# The order of an index, so that PostgreSQL uses it. The planner multiplies the selectivity of the
# conditions. In a table full of finished one-offs it therefore expects many unplanned rows, and
# reads the whole table for the first one, although there is none.
_UNPLANNED = (_COLUMNS.enabled,)


def _has_supported_trigger() -> ColumnElement[bool]:
    """Return the condition that this version supports the row's kind of trigger.

    During a rolling upgrade only the newer beats may support a kind. An older beat leaves such a
    row unchanged in the index, for a newer beat.
    """
    return is_one_of(_COLUMNS.trigger_kind, KINDS)


_now = bindparam("now", type_=UtcDateTime)


def _lock_due(*, has_since: bool) -> Select[Any]:
    at = _COLUMNS.next_run_at
    due = force_index(select(*_DUE_COLUMNS), SCHEDULES, _DUE_INDEX).where(
        at.is_not(None), at <= _now, _has_supported_trigger(), not_(holds.everything_is_held(_now))
    )
    if has_since:
        due = due.where(at >= bindparam("since", type_=UtcDateTime))
    first = due.order_by(at, _COLUMNS.id).limit(bindparam("limit", type_=Integer))
    return first.with_for_update(skip_locked=True)


# Constants: building a statement takes longer than executing it.
_LOCK_DUE, _LOCK_DUE_SINCE = _lock_due(has_since=False), _lock_due(has_since=True)


def lock_due(
    session: Session,
    *,
    now: datetime,
    limit: int,
    since: datetime | None = None,
    only_owners: Collection[str] = (),
    except_owners: Collection[str] = (),
    except_ids: Collection[int] = (),
) -> Sequence[DueSchedule]:
    """Return up to ``limit`` schedules due at ``now``, oldest first, locked for this transaction.

    Rows locked by another beat are skipped, and rows whose trigger this version does not support.
    SQLite has no row locks; there the write lock of the transaction keeps two beats apart.
    ``since`` is the earliest ``next_run_at`` to read; None means all. During a hold of everything
    no row is returned. ``only_owners`` and ``except_owners`` limit the owners.
    ``except_ids`` are left out.
    """
    statement = _LOCK_DUE if since is None else _LOCK_DUE_SINCE
    values = {"now": now, "limit": limit, "since": since}
    if only_owners:
        statement = statement.where(_COLUMNS.owner.in_(only_owners))
    if except_owners:
        statement = statement.where(_COLUMNS.owner.not_in(except_owners))
    return read(session, statement.where(*_except(except_ids)), values, make=DueSchedule._make)


def lock_unplanned(
    session: Session,
    *,
    limit: int,
    except_calendars: Collection[str] = (),
    except_ids: Collection[int] = (),
) -> Sequence[DueSchedule]:
    """Return up to ``limit`` unplanned schedules, locked in the same way as in ``lock_due``.

    Schedules whose trigger names one of ``except_calendars`` are left out, and ``except_ids``.
    """
    unplanned = force_index(select(*_DUE_COLUMNS), SCHEDULES, _UNPLANNED_INDEX)
    unplanned = unplanned.where(*_unplanned(), *_except(except_ids))
    for part in sorted(f'"{name}"' for name in except_calendars):
        unplanned = unplanned.where(~_COLUMNS.trigger_spec.contains(part, autoescape=True))
    if except_calendars:
        # JSON can write the letters of a name as such escapes.
        unplanned = unplanned.where(~_COLUMNS.trigger_spec.contains("\\u", autoescape=True))
    first = unplanned.order_by(*_UNPLANNED).limit(limit).with_for_update(skip_locked=True)
    return read(session, first, make=DueSchedule._make)


class EndedPause(NamedTuple):
    """A locked schedule whose pause has ended, and the columns that its resume changes."""

    schedule: DueSchedule
    enabled: bool
    paused_reason: str | None
    paused_until: datetime
    error: str | None


def lock_ended_pauses(
    session: Session, *, now: datetime, limit: int, except_ids: Collection[int] = ()
) -> Sequence[EndedPause]:
    """Return up to ``limit`` schedules whose pause has ended at ``now``, the earliest end first.

    They are locked in the same way as in ``lock_due``. Rows in ``except_ids`` are left out.
    """
    until = _COLUMNS.paused_until
    added = (_COLUMNS.enabled, _COLUMNS.paused_reason, until, _COLUMNS.error)
    ended = force_index(select(*_DUE_COLUMNS, *added), SCHEDULES, _PAUSED_INDEX)
    ended = ended.where(until.is_not(None), until <= now, _has_known_trigger())
    first = ended.where(*_except(except_ids)).order_by(until, _COLUMNS.id).limit(limit)
    rows = read(session, first.with_for_update(skip_locked=True), make=tuple)
    size = len(DueSchedule._fields)
    return [EndedPause(DueSchedule._make(row[:size]), *row[size:]) for row in rows]


def end_pauses(session: Session, schedule_ids: Sequence[int], *, now: datetime) -> None:
    """Resume locked schedules, without a next run."""
    if not schedule_ids:
        return
    values: dict[Any, Any] = {
        Schedule.enabled: True,
        Schedule.paused_reason: None,
        Schedule.paused_until: None,
        Schedule.version: Schedule.version + 1,
        Schedule.updated_at: now,
    }
    resumed = update(Schedule).where(Schedule.id.in_(schedule_ids))
    execute_dml(session, resumed.values(values))


def earliest_end_of_pause(*, except_ids: Collection[int] = ()) -> Any:
    """Return a subquery for the earliest instant at which beat resumes a paused schedule."""
    until = _COLUMNS.paused_until
    earliest = force_index(select(until), SCHEDULES, _PAUSED_INDEX)
    earliest = earliest.where(until.is_not(None), _has_known_trigger(), *_except(except_ids))
    return earliest.order_by(until, _COLUMNS.id).limit(1).scalar_subquery()


def lock_by_ids(session: Session, schedule_ids: Collection[int]) -> Sequence[NamedRow]:
    """Return the schedules with these ids, due or not, locked as in ``lock_due``."""
    names = ("enabled", "error", "next_run_at", "finished_at", "updated_at")
    added = [_COLUMNS[name] for name in names]
    statement = _by_ids(schedule_ids, *_COLUMNS_TO_RUN, *added).order_by(_COLUMNS.id)
    return read(session, statement.with_for_update(skip_locked=True))


def named(session: Session, schedule_ids: Collection[int]) -> Sequence[NamedRow]:
    """Return id, owner and name of the schedules."""
    return read(session, _by_ids(schedule_ids, _COLUMNS.id, _COLUMNS.owner, _COLUMNS.name))


def lock_free(session: Session, schedule_ids: Collection[int]) -> set[int]:
    """Lock the schedules that no other transaction has locked, and return their ids."""
    locked = _by_ids(schedule_ids, _COLUMNS.id).order_by(_COLUMNS.id)
    return set(session.scalars(locked.with_for_update(skip_locked=True)))


def ids_after(session: Session, *, after: int, limit: int) -> Sequence[int]:
    """Return the ids of the next ``limit`` schedules after an id."""
    ids = force_index(select(_COLUMNS.id), SCHEDULES, "PRIMARY").where(_COLUMNS.id > after)
    return session.scalars(ids.order_by(_COLUMNS.id).limit(limit)).all()


def _is_zoned(now: datetime) -> Sequence[ColumnElement[bool]]:
    """Return the conditions that a schedule has a future run that depends on a time zone."""
    in_zone = or_(
        and_(_COLUMNS.timezone != "UTC", _COLUMNS.trigger_kind.not_in(("once", "solar"))),
        # Their parts may name zones.
        _COLUMNS.trigger_kind.in_(("any_of", "excluding", "on_business_day")),
        _COLUMNS.quiet_hours.is_not(None),
    )
    return (
        _COLUMNS.next_run_at.is_not(None),
        _COLUMNS.next_fire_at > now,
        _COLUMNS.held_at.is_(None),
        _has_supported_trigger(),
        in_zone,
    )


def zoned_ids(session: Session, schedule_ids: Collection[int], *, now: datetime) -> Sequence[int]:
    """Return which of the schedules have a future run that depends on a zone, without locks."""
    return session.scalars(_by_ids(schedule_ids, _COLUMNS.id).where(*_is_zoned(now))).all()


def lock_zoned(
    session: Session, schedule_ids: Collection[int], *, now: datetime
) -> Sequence[DueSchedule]:
    """Return which of the schedules have a future run that depends on a time zone, by id.

    They are locked in the same way as in ``lock_due``.
    """
    zoned = _by_ids(schedule_ids, *_DUE_COLUMNS).where(*_is_zoned(now)).order_by(_COLUMNS.id)
    return read(session, zoned.with_for_update(skip_locked=True), make=DueSchedule._make)


def _by_ids(schedule_ids: Collection[int], *columns: Any) -> Select[Any]:
    statement = force_index(select(*columns), SCHEDULES, "PRIMARY")
    return statement.where(_COLUMNS.id.in_(schedule_ids))


def has_calendars(session: Session) -> bool:
    """Return whether there is any calendar."""
    # Their model is not used, because most beats never need it.
    names = db.table_names()
    calendars = table(names.of("calendar"), schema=names.schema)
    found = select(literal(1)).select_from(calendars).limit(1)
    return session.scalar(found, bind_arguments=statements.BIND) is not None


def _except(ids: Collection[int]) -> Sequence[ColumnElement[bool]]:
    return (_COLUMNS.id.not_in(ids),) if ids else ()


def first_unplanned_id(*, except_ids: Collection[int] = ()) -> Any:
    """Return a subquery for the id of an unplanned schedule, NULL if there is none."""
    unplanned = force_index(select(_COLUMNS.id), SCHEDULES, _UNPLANNED_INDEX)
    return (
        unplanned.where(*_unplanned(), *_except(except_ids))
        .order_by(*_UNPLANNED)
        .limit(1)
        .scalar_subquery()
    )


def earliest_next_run_at(*, since: Any = None, except_ids: Collection[int] = ()) -> Any:
    """Return a subquery for the earliest ``next_run_at``, from ``since`` on if it is given."""
    # min() is not used, because with another condition, MariaDB reads the whole index for it.
    at = _COLUMNS.next_run_at
    earliest = force_index(select(at), SCHEDULES, _DUE_INDEX)
    earliest = earliest.where(at.is_not(None), _has_supported_trigger(), *_except(except_ids))
    if since is not None:
        earliest = earliest.where(at >= since)
    return earliest.order_by(at, _COLUMNS.id).limit(1).scalar_subquery()


def find_unsupported(session: Session, *, now: datetime, limit: int) -> Sequence[Row[Any]]:
    """Return id, owner, name and kind of up to ``limit`` schedules with unsupported triggers.

    Only due and unplanned schedules are searched: the first UNSUPPORTED_SEARCH_LIMIT rows of each.
    Unsupported rows stay at the start of the index, because beat claims all the others.
    """
    columns = (_COLUMNS.id, _COLUMNS.owner, _COLUMNS.name, _COLUMNS.trigger_kind)
    due = (_COLUMNS.next_run_at.is_not(None), _COLUMNS.next_run_at <= now)
    searches = (
        (_DUE_INDEX, due, (_COLUMNS.next_run_at, _COLUMNS.id)),
        (_UNPLANNED_INDEX, _is_unplanned_of_any_kind(), _UNPLANNED),
    )
    unsupported: list[Any] = []
    for index, conditions, order in searches:
        first = (
            force_index(select(*columns), SCHEDULES, index)
            .where(*conditions)
            .order_by(*order)
            .limit(UNSUPPORTED_SEARCH_LIMIT)
            .subquery()
        )
        statement = select(first).where(first.c.trigger_kind.not_in(KINDS)).limit(limit)
        unsupported += session.execute(statement).all()
    return unsupported[:limit]


def _unplanned() -> tuple[Any, ...]:
    return (*_is_unplanned_of_any_kind(), _has_known_trigger())


def _has_known_trigger() -> ColumnElement[bool]:
    # A manually inserted row may have another spelling. Beat stores the canonical one. Due rows are
    # compared without functions, so that an index serves them.
    typed = func.lower(func.trim(_COLUMNS.trigger_kind))
    return is_one_of(typed, KINDS)


def _is_unplanned_of_any_kind() -> tuple[Any, ...]:
    return (
        _COLUMNS.enabled,
        _COLUMNS.next_run_at.is_(None),
        _COLUMNS.finished_at.is_(None),
        _COLUMNS.error.is_(None),
    )


def advance(session: Session, changes: Sequence[Mapping[str, Any]]) -> None:
    """Update schedules by ``id`` with what beat decided. All changes have the same columns."""
    if not changes:
        return
    statements.update_each(session, SCHEDULES, changes)


def quarantine(session: Session, *, schedule_id: int, version: int, error: str) -> bool:
    """Quarantine a schedule with ``error``. Return False if it was edited since ``version``.

    Raises RowLockedError if another transaction has locked it.
    """
    lock = select(Schedule.version, Schedule.enabled).where(Schedule.id == schedule_id)
    row = session.execute(lock.with_for_update(skip_locked=True)).one_or_none()
    if row is None:
        check_deleted(session, schedule_id=schedule_id)
    if row is None or row.version != version or not row.enabled:
        return False
    quarantined = update(Schedule).where(Schedule.id == schedule_id)
    execute_dml(session, quarantined.values(next_run_at=None, held_at=None, error=error))
    return True


#: A transaction may commit an instant this much later; reading from the watermark still finds it.
IN_FLIGHT = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Watermark:
    """Instants before which the last query found nothing due and nothing overdue.

    Before them the index contains only dead entries, which the database cannot remove while a long
    transaction is open. A scan that starts at the watermark does not read them. Only a query
    without a watermark finds an earlier instant that is committed later. None means not known.
    """

    no_due_before: datetime | None = None
    no_overdue_before: datetime | None = None


NO_WATERMARK = Watermark()


@dataclass(frozen=True, slots=True)
class PendingWork:
    """The earliest instant of each kind of work, or None if there is none.

    During a hold of everything, ``next_run_at`` is not before its end. The next query may start at
    ``watermark``. ``has_deferred`` is true if schedules of ended runs must be corrected
    (``store.failing``). Beat resumes the first paused schedule at ``pause_ends_at``.
    """

    next_run_at: datetime | None
    overdue_at: datetime | None
    unplanned: bool
    watermark: Watermark = NO_WATERMARK
    has_deferred: bool = False
    pause_ends_at: datetime | None = None

    def earliest(self) -> datetime | None:
        """Return the earliest instant at which beat has work, or None."""
        instants = (self.next_run_at, self.overdue_at, self.pause_ends_at)
        return min((at for at in instants if at is not None), default=None)


def read_pending(
    session: Session,
    *,
    now: datetime,
    until: datetime,
    watermark: Watermark = NO_WATERMARK,
    except_ids: frozenset[int] = frozenset(),
    except_runs: frozenset[str] = frozenset(),
) -> PendingWork:
    """Return the pending work at ``now``, with overdue runs up to ``until``.

    The schedules in ``except_ids`` and the runs in ``except_runs`` are left out.
    """
    has_watermark = watermark != NO_WATERMARK
    values = {
        "now": now,
        "until": until,
        "recent": now - failing.RECENT,
        "due": watermark.no_due_before,
        "overdue": watermark.no_overdue_before,
    }
    if except_ids or except_runs:
        statement = _poll(
            has_watermark=has_watermark, except_ids=except_ids, except_runs=except_runs
        )
    else:
        statement = _POLL_SINCE if has_watermark else _FULL_POLL
    next_run_at, overdue_at, unplanned, *others = session.execute(statement, values).one()
    held_until, has_no_end, deferred_id, pause_ends_at = others
    reached = NO_WATERMARK
    # A run that reads as overdue since EARLIEST may be stored with an earlier instant (RunInstant).
    if overdue_at != EARLIEST:
        reached = Watermark(_watermark_at(next_run_at, now), _watermark_at(overdue_at, now))
    held_until = holds.NEVER if has_no_end else held_until
    if held_until is not None and next_run_at is not None:
        next_run_at = max(next_run_at, held_until)
    return PendingWork(
        next_run_at=next_run_at,
        overdue_at=overdue_at,
        unplanned=unplanned is not None,
        watermark=reached,
        has_deferred=deferred_id is not None,
        pause_ends_at=pause_ends_at,
    )


def _watermark_at(instant: datetime | None, now: datetime) -> datetime:
    return (now if instant is None else min(instant, now)) - IN_FLIGHT


def _poll(
    *,
    has_watermark: bool,
    except_ids: Collection[int] = (),
    except_runs: Collection[str] = (),
) -> Select[Any]:
    until = bindparam("until", type_=UtcDateTime)
    due_since = bindparam("due", type_=UtcDateTime) if has_watermark else None
    overdue_since = bindparam("overdue", type_=UtcDateTime) if has_watermark else None
    return select(
        type_coerce(earliest_next_run_at(since=due_since, except_ids=except_ids), UtcDateTime),
        type_coerce(
            runs.earliest_overdue_at(since=overdue_since, until=until, except_ids=except_runs),
            RunInstant,
        ),
        first_unplanned_id(except_ids=except_ids),
        type_coerce(holds.end_of_everything(_now), UtcDateTime),
        holds.everything_is_held_without_end(),
        failing.first_deferred_id(now=_now, since=bindparam("recent", type_=UtcDateTime)),
        type_coerce(earliest_end_of_pause(except_ids=except_ids), UtcDateTime),
    )


_FULL_POLL, _POLL_SINCE = _poll(has_watermark=False), _poll(has_watermark=True)
