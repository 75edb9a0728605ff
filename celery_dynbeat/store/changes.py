"""Queries on the audit: one row for each edit. Each order of a list is the order of an index."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, func, insert, or_, select
from sqlalchemy.orm import Session

from celery_dynbeat.common.filters import ChangeFilter
from celery_dynbeat.common.states import Action
from celery_dynbeat.db import statements
from celery_dynbeat.db.models import CHANGES, Change
from celery_dynbeat.db.statements import delete_ids, reading_latest

_NEWEST_FIRST = (Change.changed_at.desc(), Change.id.desc())
#: A constant: building it with its values takes longer than executing it.
_INSERT = insert(CHANGES)


def add(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert changes that all have the same columns."""
    if len(rows) == 1:
        session.execute(_INSERT, rows[0], bind_arguments=statements.BIND)
    elif rows:
        statements.insert(session, CHANGES, rows)


def page(
    session: Session,
    *,
    matching: ChangeFilter,
    after: tuple[datetime, int] | None,
    limit: int,
    latest: bool = False,
) -> Sequence[Change]:
    """Return up to ``limit`` matching changes, newest first, after the (changed_at, id) ``after``.

    A filter on the owner together with the actor, and a filter on the action, read on until they
    find ``limit`` changes. With ``latest``, changes that are newer than the caller's snapshot are
    read too.
    """
    statement = select(Change)
    statement = statement.where(*_conditions(matching))
    if after is not None:
        at, change_id = after
        # The first condition is a range of the index on each database; a comparison of rows is not.
        statement = statement.where(
            Change.changed_at <= at, or_(Change.changed_at < at, Change.id < change_id)
        )
    newest = statement.order_by(*_NEWEST_FIRST).limit(limit)
    return session.scalars(reading_latest(session, newest) if latest else newest).all()


def _conditions(matching: ChangeFilter) -> Sequence[ColumnElement[bool]]:
    equal = {
        Change.owner: matching.owner,
        Change.name: matching.name,
        Change.actor: matching.actor,
        Change.action: matching.action,
    }
    conditions = [column == value for column, value in equal.items() if value is not None]
    if matching.since is not None:
        conditions.append(Change.changed_at >= matching.since)
    if matching.until is not None:
        conditions.append(Change.changed_at < matching.until)
    if matching.owner is None and matching.actor:
        # The literal condition of the partial index.
        conditions.append(Change.actor != "")
    return conditions


def of_everything(session: Session, *, limit: int) -> Sequence[Change]:
    """Return the newest ``limit`` changes that concern everything, such as holds and calendars."""
    statement = select(Change).where(Change.owner.is_(None))
    return session.scalars(statement.order_by(*_NEWEST_FIRST).limit(limit)).all()


def new_triggers(
    session: Session, *, owner: str, name: str, actor: str, since: datetime, limit: int
) -> list[Any]:
    """Return the triggers that ``actor`` gave the schedule since ``since``, newest first."""
    found = (
        select(Change.new_values)
        .where(Change.owner == owner, Change.name == name, Change.changed_at >= since)
        .where(Change.action == Action.UPDATE, Change.actor == actor)
        .order_by(*_NEWEST_FIRST)
        .limit(limit)
    )
    return [each["trigger"] for each in session.scalars(found) if each and "trigger" in each]


def keys_before(
    session: Session, *, before: datetime, after: tuple[datetime, int] | None, limit: int
) -> Sequence[tuple[datetime, int]]:
    """Return ``changed_at`` and id of up to ``limit`` changes from before ``before``, oldest first.

    ``after`` is the last key of the page before.
    """
    old = select(Change.changed_at, Change.id)
    old = old.where(Change.changed_at < before).order_by(Change.changed_at, Change.id)
    if after is not None:
        at, change_id = after
        old = old.where(Change.changed_at >= at, or_(Change.changed_at > at, Change.id > change_id))
    return [(row.changed_at, row.id) for row in session.execute(old.limit(limit))]


def count_before(session: Session, *, before: datetime) -> int:
    """Return the number of changes from before ``before``."""
    old = select(func.count()).select_from(Change)
    return session.scalar(old.where(Change.changed_at < before)) or 0


def delete(session: Session, ids: Sequence[int]) -> int:
    """Delete changes; return their number. Rows that another transaction has locked stay."""
    free = select(Change.id).where(Change.id.in_(ids)).with_for_update(skip_locked=True)
    return delete_ids(session, CHANGES, session.scalars(free).all())


def delete_of_owner(session: Session, *, owner: str, limit: int) -> int:
    """Delete up to ``limit`` changes of an owner, except erasures; return their number."""
    ids = select(Change.id)
    ids = ids.where(Change.owner == owner, Change.action != Action.ERASE)
    oldest = ids.order_by(Change.changed_at, Change.id).limit(limit)
    return delete_ids(session, CHANGES, session.scalars(oldest).all())
