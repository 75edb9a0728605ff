"""Queries that read the audit."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, or_, select
from sqlalchemy.orm import Session

from celery_dynbeat.db.models import Change
from celery_dynbeat.db.statements import force_index, in_index_order, reading_latest
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
    on the action, read on until they find ``limit`` changes. With ``latest``, changes that are
    newer than the caller's snapshot are read too.
    """
    statement = _newest(select(Change), matching, after, limit)
    return session.scalars(reading_latest(session, statement) if latest else statement).all()


@in_index_order
def of_everything(session: Session, *, limit: int) -> Sequence[Change]:
    """Return the newest ``limit`` changes that concern everything, such as holds and calendars."""
    statement = force_index(select(Change), Change, OWNER_INDEX).where(Change.owner.is_(None))
    newest = statement.order_by(Change.changed_at.desc(), Change.id.desc()).limit(limit)
    return session.scalars(newest).all()


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
