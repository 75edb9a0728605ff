"""Queries that read the audit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, or_, select
from sqlalchemy.orm import Session

from celery_dynbeat.db.models import CHANGES, Change
from celery_dynbeat.db.statements import force_index, in_index_order, reading_latest
from celery_dynbeat.store import group_pages
from celery_dynbeat.store.group_pages import GroupRows, Key, OwnerRows, Place
from celery_dynbeat.store.owners import is_of, with_rows
from celery_dynbeat.store.schedules.changes import TIME_INDEX

ACTOR_INDEX = "ix_dynbeat_change_actor"
OWNER_INDEX = "ix_dynbeat_change_owner"
NAME_INDEX = "ix_dynbeat_change_owner_name"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeFilter:
    """The filter of a list of changes; None means any. since <= ``changed_at`` < until."""

    owner: str | None = None
    name: str | None = None
    actor: str | None = None
    action: str | None = None
    since: datetime | None = None
    until: datetime | None = None


@in_index_order
def page(
    session: Session,
    *,
    matching: ChangeFilter,
    after: tuple[datetime, int] | None,
    limit: int,
    latest: bool = False,
) -> Sequence[Change]:
    """Return up to ``limit`` matching changes, newest first, after the (changed_at, id) ``after``.

    Each order is the order of an index. A filter on the owner together with the actor, and a filter
    on the action, read on until they find ``limit`` changes. The owner of the filter is not a
    group. With ``latest``, changes that are newer than the caller's snapshot are read too.
    """
    statement = _newest(select(Change), matching, after, limit)
    return session.scalars(reading_latest(session, statement) if latest else statement).all()


def page_of_group(
    session: Session, *, matching: ChangeFilter, group: str, place: Place | None, limit: int
) -> GroupRows:
    """Return up to ``limit`` matching changes of a group and its owners, newest first in a part."""

    def read(owner: str, key: Key | None, _number: int) -> OwnerRows:
        rows = _read_keys(session, replace(matching, owner=owner), key, limit + 1)
        return OwnerRows(rows[:limit], _key_of(rows[limit - 1]) if len(rows) > limit else None)

    def owners(above: str, number: int) -> Sequence[str]:
        owner = CHANGES.c.owner
        return with_rows(session, owner, OWNER_INDEX, within=group, after=above, limit=number)

    found = group_pages.page(
        owners=owners, read=read, key_of=_key_of, descending=True, place=place, limit=limit
    )
    ids = [row.id for row in found.rows]
    by_id = {row.id: row for row in session.scalars(select(Change).where(Change.id.in_(ids)))}
    return GroupRows([by_id[each] for each in ids if each in by_id], found.last)


@in_index_order
def _read_keys(session: Session, matching: ChangeFilter, after: Any, limit: int) -> Sequence[Any]:
    keys: Any = select(Change.changed_at, Change.id)
    return session.execute(_newest(keys, matching, after, limit)).all()


def _key_of(row: Any) -> Key:
    return row.changed_at, row.id


def _newest(
    selected: Select[Any],
    matching: ChangeFilter,
    after: tuple[datetime, int] | None,
    limit: int,
) -> Select[Any]:
    statement: Select[Any] = force_index(selected, Change, _index_of(matching))
    for condition in _conditions(matching):
        statement = statement.where(condition)
    if after is not None:
        statement = statement.where(_is_before(after))
    newest = statement.order_by(Change.changed_at.desc(), Change.id.desc())
    return newest.limit(limit)


def _index_of(matching: ChangeFilter) -> str:
    if matching.owner is not None:
        return OWNER_INDEX if matching.name is None else NAME_INDEX
    return ACTOR_INDEX if matching.actor else TIME_INDEX


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


def _is_before(key: tuple[datetime, int]) -> ColumnElement[bool]:
    # The first condition is a range of the index on each database; a comparison of rows is not.
    changed_at, change_id = key
    same_or_earlier = Change.changed_at <= changed_at
    return and_(same_or_earlier, or_(Change.changed_at < changed_at, Change.id < change_id))


def get(session: Session, *, change_id: int, owner: str | None) -> Change | None:
    """Return a change, or None. With ``owner``, it belongs to this owner or group."""
    statement = select(Change).where(Change.id == change_id)
    if owner is not None:
        statement = statement.where(is_of(Change.owner, owner))
    return session.scalars(statement).one_or_none()
