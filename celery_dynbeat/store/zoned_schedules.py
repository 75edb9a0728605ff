"""The schedules of an owner that follow the owner's time zone."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from celery_dynbeat.db import batches
from celery_dynbeat.db.index_order import force_index, in_index_order
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.db.tables import SCHEDULES
from celery_dynbeat.store.owners import OWNER_NAME_INDEX
from celery_dynbeat.store.rows import LockedRows, read

#: The columns that a new plan needs.
_SELECT: Any = select(
    Schedule.id,
    Schedule.owner,
    Schedule.name,
    Schedule.task,
    Schedule.trigger_kind,
    Schedule.trigger_spec,
    Schedule.timezone,
    Schedule.anchor_at,
    Schedule.enabled,
    Schedule.start_at,
    Schedule.end_at,
    Schedule.max_runs,
    Schedule.run_count,
    Schedule.catch_up,
    Schedule.catch_up_window,
    Schedule.overlap,
    Schedule.max_run_time,
    Schedule.jitter,
    Schedule.next_fire_at,
    Schedule.next_run_at,
    Schedule.held_at,
    Schedule.skipped_until,
    Schedule.last_run_at,
    Schedule.finished_at,
    Schedule.error,
    Schedule.version,
    Schedule.created_at,
    Schedule.updated_at,
)


@in_index_order
def lock(session: Session, *, owner: str, timezone: str, after: str, limit: int) -> LockedRows:
    """Return up to ``limit`` schedules that follow the owner's zone and are not in ``timezone``.

    They are locked for this transaction, in the order of their names, from the name after ``after``
    on. It waits for a beat that has locked one.
    """
    statement = (
        force_index(_SELECT, Schedule, OWNER_NAME_INDEX)
        .where(
            Schedule.owner == owner,
            Schedule.name > after,
            Schedule.inherits_timezone,
            Schedule.timezone != timezone,
        )
        .order_by(Schedule.name)
        .limit(limit)
        .with_for_update()
    )
    return read(session, statement, key=Schedule.id)


def replan(session: Session, changes: Sequence[Mapping[str, Any]]) -> None:
    """Update locked schedules by ``id``. All changes have the same columns."""
    # The caller's session may choose its database by the mapped class.
    connection = session.connection(bind_arguments={"mapper": Schedule})
    batches.update_each(connection, SCHEDULES, changes)


def set_timezone(session: Session, *, schedule_ids: Sequence[int], timezone: str) -> None:
    """Set the zone of locked schedules that cannot be read; they are not planned."""
    changed = update(Schedule).where(Schedule.id.in_(schedule_ids))
    changed = changed.values(timezone=timezone, version=Schedule.version + 1)
    session.execute(changed, execution_options={"synchronize_session": False})
