"""Questions to the table of owners: whose turn it is to create, where their number is limited.

The order of locks is: rows of owners, by name, then rows of schedules. A transaction of the
application that takes them in another order may be the victim of a deadlock.
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
    """Take the owners' turn until the transaction ends; waits for those who have it."""
    capabilities = capabilities_of(session.get_bind().dialect)
    statement = capabilities.insert_or_lock(Owner.__table__)  # type: ignore[arg-type]
    session.connection().execute(statement, [{"owner": owner} for owner in sorted(owners)])


@in_index_order
def count_schedules(session: Session, owners: Collection[str]) -> Mapping[str, int]:
    """Return how many schedules owners have whose turn was taken; one without any is left out.

    What others have committed counts, even when the caller's snapshot is older.
    """
    latest = capabilities_of(session.get_bind().dialect).reading_latest
    names = sorted(owners)
    found: dict[str, int] = {}
    for start in range(0, len(names), _BATCH):
        # For each owner by itself: grouped, the whole index is read in its order.
        of_owner = force_index(select(func.count()), Schedule, OWNER_NAME_INDEX)
        counted = latest(of_owner.where(Schedule.owner == Owner.owner)).scalar_subquery()
        batch = select(Owner.owner, counted).where(Owner.owner.in_(names[start : start + _BATCH]))
        found.update((owner, count) for owner, count in session.execute(latest(batch)) if count)
    return found


def delete_row(session: Session, *, owner: str) -> None:
    """Delete the owner's row, if there is one; waits for who has the owner's turn."""
    session.execute(delete(Owner).where(Owner.owner == owner))
