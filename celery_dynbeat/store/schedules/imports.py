"""Queries of ``dynbeat import``."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import and_, case, false, or_, select
from sqlalchemy.orm import Session

from celery_dynbeat.db.models import SCHEDULES, Schedule
from celery_dynbeat.db.statements import capabilities_in, force_index, given_rows
from celery_dynbeat.store.holds import OWNER_NAME_INDEX

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
    statement = select(Schedule).execution_options(populate_existing=True)
    values: Mapping[str, Any] = {}
    if capabilities_in(session).has_json_recordset:
        # PostgreSQL would read all schedules for a condition with the names of several owners.
        columns = {"owner": SCHEDULES.c.owner, "name": SCHEDULES.c.name}
        given, values = given_rows(columns, [{"owner": each, "name": name} for each, name in keys])
        same = and_(Schedule.owner == given.c.owner, Schedule.name == given.c.name)
        statement = statement.join(given, same)
    else:
        names: dict[str, list[str]] = {}
        for owner, name in sorted(keys):
            names.setdefault(owner, []).append(name)
        # Not a list of pairs: MariaDB would read all schedules of an owner.
        terms = (and_(Schedule.owner == each, Schedule.name.in_(names[each])) for each in names)
        statement = statement.where(or_(false(), *terms))
    if lock:
        statement = statement.with_for_update(of=Schedule)
    rows = session.scalars(statement, values).all()
    return {(row.owner, row.name): row for row in rows}


@dataclass(frozen=True, slots=True)
class KeyPage:
    """The keys of a page, and the key after which the next one starts; None after the last."""

    keys: Sequence[Key]
    last_key: Key | None


def tagged_page(session: Session, *, tag: str, after: Key | None) -> KeyPage:
    """Return the keys with the tag among the next PAGE_SIZE schedules after the key ``after``.

    The order is the order of the index of owner and name. A page without keys can have a next page.
    """
    capabilities = capabilities_in(session)
    key = Schedule.owner, Schedule.name
    # A column, not a condition: LIMIT counts the schedules that are read.
    is_tagged = case((capabilities.has_tag(Schedule.tags, tag), 1), else_=0)
    # Each page is a range of this index, in its order.
    statement: Any = force_index(select(*key, is_tagged), Schedule, OWNER_NAME_INDEX)
    if after is not None:
        statement = statement.where(capabilities.row_after(key, after))
    found = session.execute(statement.order_by(*key).limit(PAGE_SIZE)).all()
    keys = [(owner, name) for owner, name, has_tag in found if has_tag]
    return KeyPage(keys, tuple(found[-1][:2]) if len(found) == PAGE_SIZE else None)


def refresh_statistics(session: Session) -> None:
    """Let the planner know the new schedules. Without it, ``named`` reads all of an owner."""
    capabilities_in(session).refresh_statistics(session, SCHEDULES)
