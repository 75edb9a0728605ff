"""Queries of ``dynbeat import``."""

from collections.abc import Collection, Mapping

from sqlalchemy import and_, false, or_, select
from sqlalchemy.orm import Session

from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.index_order import in_index_order
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.db.tables import SCHEDULES
from celery_dynbeat.store.rows import load_or_null


def named(
    session: Session, keys: Collection[tuple[str, str]], *, lock: bool
) -> Mapping[tuple[str, str], Schedule]:
    """Return the schedules with these (owner, name) that exist, in one query.

    With ``lock`` they are locked for this transaction.
    """
    names: dict[str, list[str]] = {}
    for owner, name in sorted(keys):
        names.setdefault(owner, []).append(name)
    # Not a list of pairs: PostgreSQL and MariaDB then read all schedules of an owner. For the same
    # reason there is no ORDER BY: PostgreSQL without statistics would scan the index for it.
    terms = (and_(Schedule.owner == each, Schedule.name.in_(names[each])) for each in names)
    statement = (
        select(Schedule).where(or_(false(), *terms)).execution_options(populate_existing=True)
    )
    if lock:
        statement = statement.with_for_update()
    # PostgreSQL combines the terms of several owners in a bitmap, which an index order excludes.
    load = _load_in_index_order if len(names) == 1 else load_or_null
    rows = load(session, statement, for_edit=lock)
    return {(row.owner, row.name): row for row in rows}


_load_in_index_order = in_index_order(load_or_null)


def refresh_statistics(session: Session) -> None:
    """Let the planner know the new schedules. Without it, ``named`` reads all of an owner."""
    capabilities_of(session.get_bind().dialect).refresh_statistics(session, SCHEDULES)
