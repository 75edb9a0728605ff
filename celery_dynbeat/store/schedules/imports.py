"""Queries of ``dynbeat import``."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import Select, and_, case, false, or_, select
from sqlalchemy.orm import Session

from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.models import SCHEDULES, Schedule
from celery_dynbeat.db.statements import force_index, in_index_order
from celery_dynbeat.store.owners import OWNER_NAME_INDEX

#: Schedules that a page reads.
PAGE_SIZE = 5_000
#: The owner and the name of a schedule.
Key: TypeAlias = tuple[str, str]


def named(
    session: Session, keys: Collection[tuple[str, str]], *, lock: bool
) -> Mapping[tuple[str, str], Schedule]:
    """Return the schedules with these (owner, name) that exist, in one query.

    With ``lock`` they are locked for this transaction.
    """
    names: dict[str, list[str]] = {}
    for owner, name in sorted(keys):
        names.setdefault(owner, []).append(name)
    # A list of pairs is not used, because PostgreSQL and MariaDB would then read all schedules of
    # an owner. For the same reason there is no ORDER BY: PostgreSQL without statistics would scan
    # the index for it.
    terms = (and_(Schedule.owner == each, Schedule.name.in_(names[each])) for each in names)
    statement = (
        select(Schedule).where(or_(false(), *terms)).execution_options(populate_existing=True)
    )
    if lock:
        statement = statement.with_for_update()
    # PostgreSQL combines the terms of several owners in a bitmap, which an index order excludes.
    load = _load_in_index_order if len(names) == 1 else _load
    rows = load(session, statement)
    return {(row.owner, row.name): row for row in rows}


def _load(session: Session, statement: Select[Schedule]) -> Sequence[Schedule]:
    return session.scalars(statement).all()


_load_in_index_order = in_index_order(_load)


@dataclass(frozen=True, slots=True)
class KeyPage:
    """The keys of a page, and the key after which the next one starts; None after the last."""

    keys: Sequence[Key]
    last_key: Key | None


@in_index_order
def tagged_page(session: Session, *, tag: str, after: Key | None) -> KeyPage:
    """Return the keys with the tag among the next PAGE_SIZE schedules after the key ``after``.

    The order is the order of the index of owner and name. A page without keys can have a next page.
    """
    capabilities = capabilities_of(session.get_bind().dialect)
    key = Schedule.owner, Schedule.name
    # A column, not a condition: LIMIT counts the schedules that are read.
    is_tagged = case((capabilities.has_tag(Schedule.tags, tag), 1), else_=0)
    statement: Any = force_index(select(*key, is_tagged), Schedule, OWNER_NAME_INDEX)
    if after is not None:
        statement = statement.where(capabilities.row_after(key, after))
    found = session.execute(statement.order_by(*key).limit(PAGE_SIZE)).all()
    keys = [(owner, name) for owner, name, has_tag in found if has_tag]
    return KeyPage(keys, tuple(found[-1][:2]) if len(found) == PAGE_SIZE else None)


def refresh_statistics(session: Session) -> None:
    """Let the planner know the new schedules. Without it, ``named`` reads all of an owner."""
    capabilities_of(session.get_bind().dialect).refresh_statistics(session, SCHEDULES)
