"""The rows of a batch: the runs that one call of ``backfill()`` or ``rerun_many()`` records.

    recorded: pending, overdue at its turn -> the sweep asks as for each waiting run -> sent

A run has no place before it is sent. The turns are staggered, so that the runs do not flood the
queue. The ids of the runs and of their batch are made for the same instant: a range of the primary
key contains them.
"""

from datetime import datetime, timedelta
from typing import Any

from celery_dynbeat.common.run_ids import new_run_id
from celery_dynbeat.common.states import Origin, Status, Wait


class Batch:
    """Makes the rows of a batch created at ``now``, at most ``per_minute`` of them due per minute.

    Without ``per_minute``, which is the case of a single run, the batch has no ``id``.
    """

    def __init__(
        self,
        origin: Origin,
        *,
        now: datetime,
        ignores_quiet_hours: bool,
        per_minute: int | None = None,
        size: int = 1,
    ) -> None:
        self.id = None if per_minute is None else new_run_id(now)
        self._origin, self._now, self._per_minute = origin, now, per_minute or 1
        self._ignores_quiet_hours = ignores_quiet_hours
        # Their order is the order of the turns, also if another thread makes ids meanwhile.
        self._ids = iter(sorted(new_run_id(now) for _ in range(size)))
        self._made = 0

    def row(self, schedule: Any, scheduled_for: datetime) -> dict[str, Any]:
        """Return the next row, a run of the schedule."""
        # In whole seconds, so that one sweep sends the runs of a second.
        turn = timedelta(seconds=self._made * 60 // self._per_minute)
        self._made += 1
        return {
            "id": next(self._ids),
            "schedule_id": schedule.id,
            "owner": schedule.owner,
            "name": schedule.name,
            "task": schedule.task,
            "scheduled_for": scheduled_for,
            "status": Status.PENDING,
            "origin": self._origin,
            "created_at": self._now,
            "overdue_at": self._now + turn,
            "waited_for": Wait.BATCH,
            "batch_id": self.id,
            "ignores_quiet_hours": self._ignores_quiet_hours,
        }
