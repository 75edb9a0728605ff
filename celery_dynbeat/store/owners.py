"""Queries on owners: time zones, quiet hours, and the locks of calls that depend on all schedules.

A create locks the owner's row in share mode, and exclusively when the number of schedules is
limited. A change of the zone or of quiet hours locks the row exclusively. So the change waits for
creates that have read the old values, and then sees their schedules. A create inserts the owner's
row if it needs the owner's zone. Without a row there is nothing to wait for.

The order of locks is: rows of owners by name, then rows of schedules. A transaction of the
application that locks in another order can end in a deadlock.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    delete,
    func,
    literal,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session

from celery_dynbeat.db import statements
from celery_dynbeat.db.dialects import OWN_TRANSACTION
from celery_dynbeat.db.models import OWNERS, SCHEDULES, Owner, Schedule
from celery_dynbeat.db.statements import Row, capabilities_in, connection_of, read

_BATCH = 500
_COUNT = select(func.count())


def lock(session: Session, owners: Collection[str]) -> None:
    """Lock the rows of the owners for this transaction, in the order of their names."""
    capabilities = capabilities_in(session)
    statement = capabilities.insert_or_lock(Owner.__table__)  # type: ignore[arg-type]
    connection_of(session).execute(statement, [{"owner": owner} for owner in sorted(owners)])


def lock_free(session: Session, *, owner: str) -> bool:
    """Lock the row of the owner, if it has one. Return False if another transaction has locked it.

    The lock is exclusive, because MySQL has no share locks that SQLAlchemy combines with SKIP
    LOCKED.
    """
    row = select(Owner.owner).where(Owner.owner == owner)
    free = session.scalar(row.with_for_update(skip_locked=True))
    return free is not None or session.scalar(row) is None


def with_schedules(session: Session, *, after: str | None = None, limit: int) -> Sequence[str]:
    """Return up to ``limit`` owners above ``after`` that have schedules, in order.

    Reads one index entry for each owner, not one for each schedule.
    """
    column = SCHEDULES.c.owner
    is_next = column >= "" if after is None else column > after
    read = select(column)
    if not capabilities_in(session).has_partial_indexes:
        # MySQL skips to the next owner in the index by itself, and not in a recursive query.
        owners = read.where(is_next).group_by(column).order_by(column).limit(limit)
    else:

        def next_owner(above: ColumnElement[bool]) -> Any:
            return read.where(above).order_by(column).limit(1).scalar_subquery()

        first = select(next_owner(is_next).label("owner"), literal(1).label("number"))
        cte = first.cte("owners", recursive=True)
        following = select(next_owner(column > cte.c.owner), cte.c.number + 1)
        cte = cte.union_all(following.where(cte.c.owner.is_not(None), cte.c.number < limit))
        owners = select(cte.c.owner).where(cte.c.owner.is_not(None))
    return session.scalars(owners).all()


def count_schedules(session: Session, owners: Collection[str]) -> Mapping[str, int]:
    """Return the number of schedules by locked owner. A number of 0 may be left out.

    All committed schedules count, even schedules newer than the caller's snapshot.
    """
    latest = capabilities_in(session).reading_latest
    counts: dict[str, int] = {}
    for names in statements.in_parts(sorted(owners), _BATCH):
        # One subquery per owner: GROUP BY would read the whole index.
        counted = latest(_COUNT.where(Schedule.owner == Owner.owner)).scalar_subquery()
        batch = select(Owner.owner, counted).where(Owner.owner.in_(names))
        counts.update((owner, count) for owner, count in session.execute(latest(batch)) if count)
    return counts


def count_unlocked(session: Session, owners: Collection[str]) -> Mapping[str, int]:
    """Return the number of schedules by owner, without locks."""
    return {owner: session.scalar(_COUNT.where(Schedule.owner == owner)) or 0 for owner in owners}


class OwnerValues(NamedTuple):
    """The values in the row of an owner. None means that a value is not set."""

    timezone: str | None
    quiet_hours: Mapping[str, Any] | None


def values_of(
    session: Session, owners: Collection[str], *, locked: Collection[str] = ()
) -> Mapping[str, OwnerValues]:
    """Return the values by owner, without new locks; owners without a row are left out.

    The rows of ``locked`` exist, and this transaction has locked them. Their values are the newest
    ones, also if the caller's snapshot is older.
    """
    if not locked or not _locks_gaps(session):
        return _rows(session, owners, for_share=False)
    newest = sorted(set(owners).intersection(locked))
    found = dict(_rows(session, set(owners).difference(locked), for_share=False))
    found.update(_rows(session, newest, for_share=True, exist=True))
    return found


def lock_values(
    session: Session, owners: Collection[str], *, inserted: Collection[str] = ()
) -> Mapping[str, OwnerValues]:
    """Return the values by owner. Owners without a row may be left out.

    The rows of ``inserted`` are inserted if they do not exist. All rows are locked in share mode
    for this transaction, so that a change waits for its end.
    """
    found = dict(_rows(session, {*owners, *inserted}, for_share=True))
    missing = sorted(set(inserted) - found.keys())
    if missing:
        rows = [{"owner": owner} for owner in missing]
        if statements.insert_new(session, OWNERS, rows) != len(missing):
            # Another transaction has inserted some of them in the meantime.
            found.update(_rows(session, missing, for_share=True, exist=True))
    return found


def set_timezone(session: Session, *, owner: str, timezone: str | None) -> None:
    """Set the time zone of a locked owner, if it differs."""
    differs = Owner.timezone.is_distinct_from(timezone)
    changed = update(Owner).where(Owner.owner == owner, differs).values(timezone=timezone)
    session.execute(changed, execution_options={"synchronize_session": False})


def set_quiet_hours(session: Session, *, owner: str, quiet_hours: Mapping[str, Any] | None) -> None:
    """Set the quiet hours of a locked owner."""
    changed = update(Owner).where(Owner.owner == owner)
    # SQL NULL, because None would be stored as JSON null.
    stored = null() if quiet_hours is None else quiet_hours
    session.execute(
        changed.values(quiet_hours=stored), execution_options={"synchronize_session": False}
    )


def first_with_quiet_calendar(session: Session, calendar: str) -> str | None:
    """Return an owner whose quiet hours name the calendar, or None.

    It reads the quiet hours of all owners, because no index serves a rare delete.
    """
    statement = select(Owner.owner, Owner.quiet_hours).where(Owner.quiet_hours.is_not(None))
    for owner, stored in session.execute(statement):
        if isinstance(stored, dict) and stored.get("calendar") == calendar:
            return str(owner)
    return None


def _rows(
    session: Session, owners: Collection[str], *, for_share: bool, exist: bool = False
) -> Mapping[str, OwnerValues]:
    """Return the values of the owners with a row. With ``exist``, all have one."""
    found: dict[str, OwnerValues] = {}
    for names in statements.in_parts(sorted(owners), _BATCH):
        statement = select(Owner.owner, Owner.timezone, Owner.quiet_hours)
        statement = statement.where(Owner.owner.in_(names))
        if for_share and not exist and _locks_gaps(session):
            # Only rows that exist are locked, each by its key.
            existing = [owner for owner, *_ in session.execute(statement)]
            if not existing:
                continue
            statement = statement.where(Owner.owner.in_(existing))
        if for_share:
            statement = statement.order_by(Owner.owner).with_for_update(read=True)
        found.update((owner, OwnerValues(*rest)) for owner, *rest in session.execute(statement))
    return found


def _locks_gaps(session: Session) -> bool:
    """Return whether a locking read may lock gaps; a transaction of the package does not."""
    is_own = session.info.get(OWN_TRANSACTION)
    return not is_own and capabilities_in(session).locks_gaps


def delete_row(session: Session, *, owner: str) -> None:
    """Delete the owner's row if it exists; wait for a transaction that has locked it."""
    session.execute(delete(Owner).where(Owner.owner == owner))


#: The columns on which the fire times of a schedule depend, and those that name it.
PLAN_COLUMNS = tuple(
    getattr(Schedule, name)
    for name in (
        *("id", "owner", "name", "task", "trigger_kind", "trigger_spec", "hash_name", "timezone"),
        *("quiet_hours", "anchor_at", "start_at", "end_at", "max_runs", "run_count", "window"),
        *("catch_up", "catch_up_window", "overlap", "max_run_time", "next_fire_at", "next_run_at"),
        *("held_at", "skips", "last_run_at", "created_at"),
    )
)
#: The columns that a new plan of a locked schedule also needs.
_STATE = (Schedule.enabled, Schedule.finished_at, Schedule.error)
_EDIT = (Schedule.version, Schedule.updated_at)


def lock_zoned(
    session: Session, *, owner: str, timezone: str, after: str, limit: int
) -> Sequence[Row]:
    """Return up to ``limit`` schedules that follow the owner's zone and are not in ``timezone``.

    They are locked as in ``lock_schedules``.
    """
    is_outside = (Schedule.inherits_timezone, Schedule.timezone != timezone)
    return _lock_part(session, *is_outside, owner=owner, after=after, limit=limit)


def lock_schedules(session: Session, *, owner: str, after: str, limit: int) -> Sequence[Row]:
    """Return up to ``limit`` schedules of an owner, from the name after ``after`` on.

    They are locked for this transaction, in the order of their names. It waits for a beat that has
    locked one.
    """
    return _lock_part(session, owner=owner, after=after, limit=limit)


def _lock_part(
    session: Session, *conditions: Any, owner: str, after: str, limit: int
) -> Sequence[Row]:
    part: Any = select(*PLAN_COLUMNS, *_STATE, *_EDIT)
    part = part.where(Schedule.owner == owner, Schedule.name > after, *conditions)
    return read(session, part.order_by(Schedule.name).limit(limit).with_for_update())


def lock_all_schedules(session: Session, *, owner: str, batch_size: int) -> None:
    """Lock the schedules of an owner for this transaction, in the order of their names."""
    after = ""
    while rows := lock_schedules(session, owner=owner, after=after, limit=batch_size):
        after = rows[-1].name


def replan(session: Session, changes: Sequence[Mapping[str, Any]]) -> None:
    """Update locked schedules by ``id``. All changes have the same columns."""
    if not changes:
        return
    statements.update_each(session, SCHEDULES, changes)


def has_text(*columns: Any, text: str) -> ColumnElement[bool]:
    """Return the condition that one of the columns contains ``text``, in any case.

    No index serves it.
    """
    return or_(*(column.icontains(text, autoescape=True) for column in columns))
