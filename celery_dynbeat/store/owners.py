"""Queries on owners: the locks of creates where the number of schedules is limited.

The order of locks is: rows of owners by name, then rows of schedules. A transaction of the
application that locks in another order can end in a deadlock.
"""

from collections.abc import Collection, Mapping

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.index_order import force_index, in_index_order
from celery_dynbeat.db.models import Owner, Schedule

_BATCH = 500
OWNER_NAME_INDEX = "uq_dynbeat_schedule_owner_name"


def lock(session: Session, owners: Collection[str]) -> None:
    """Lock the rows of the owners for this transaction, in the order of their names."""
    capabilities = capabilities_of(session.get_bind().dialect)
    statement = capabilities.insert_or_lock(Owner.__table__)  # type: ignore[arg-type]
    session.connection().execute(statement, [{"owner": owner} for owner in sorted(owners)])


@in_index_order
def count_schedules(session: Session, owners: Collection[str]) -> Mapping[str, int]:
    """Return the number of schedules by locked owner; an owner without schedules is left out.

    All committed schedules count, also those newer than the caller's snapshot.
    """
    latest = capabilities_of(session.get_bind().dialect).reading_latest
    names = sorted(owners)
    counts: dict[str, int] = {}
    for start in range(0, len(names), _BATCH):
        # One subquery per owner: GROUP BY would read the whole index.
        of_owner = force_index(select(func.count()), Schedule, OWNER_NAME_INDEX)
        counted = latest(of_owner.where(Schedule.owner == Owner.owner)).scalar_subquery()
        batch = select(Owner.owner, counted).where(Owner.owner.in_(names[start : start + _BATCH]))
        counts.update((owner, count) for owner, count in session.execute(latest(batch)) if count)
    return counts


def delete_row(session: Session, *, owner: str) -> None:
    """Delete the owner's row if it exists; wait for a transaction that has locked it."""
    session.execute(delete(Owner).where(Owner.owner == owner))
