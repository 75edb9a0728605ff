"""Batches: the runs that one call of ``backfill()`` or ``rerun_many()`` has recorded."""

from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.calls import Calls
from celery_dynbeat.api.edit import audit
from celery_dynbeat.api.results import BatchInfo, BatchResult
from celery_dynbeat.api.results.base import as_json
from celery_dynbeat.common.errors import BatchNotFoundError
from celery_dynbeat.common.run_ids import created_at
from celery_dynbeat.common.states import Action
from celery_dynbeat.common.text import MAX_BATCH
from celery_dynbeat.process.context import Context
from celery_dynbeat.store.runs import run_pages


class BatchCalls(Calls):
    """The call for batches. The calls of one owner see the runs of that owner only."""

    def get_batch(self, batch_id: str) -> BatchInfo:
        """Return the number of runs of a batch by status.

        ``runs(batch_id=...)`` lists the runs, and ``cancel_runs(batch_id=...)`` cancels those that
        have not started. Raises BatchNotFoundError for a batch that has no run of the owner, or no
        longer.

        >>> result = mine.backfill(
        ...     "digest",
        ...     since=datetime(2025, 12, 1, tzinfo=UTC),
        ...     until=datetime(2025, 12, 8, tzinfo=UTC),
        ... )
        >>> mine.get_batch(result.batch_id).counts
        {'pending': 5}
        """
        batch_id = checks.check_run_id("batch_id", batch_id)

        def work(session: Session) -> BatchInfo:
            counts = run_pages.count_batch(session, batch_id=batch_id, owner=self._owner)
            if not counts:
                raise BatchNotFoundError(owner=self._owner, batch_id=batch_id)
            return BatchInfo(id=batch_id, created_at=created_at(batch_id), counts=counts)

        return self._read(work)


def check_pace(per_minute: object) -> None:
    """Raise InvalidScheduleError unless ``per_minute`` is a number of runs."""
    checks.check_integer("per_minute", per_minute, minimum=1, maximum=MAX_BATCH)


def recorded(
    context: Context,
    session: Session,
    result: BatchResult,
    *,
    owner: str | None,
    name: str | None,
    action: Action,
    at: datetime,
    **given: Any,
) -> BatchResult:
    """Write the batch to the audit, notify beat of it and return it."""
    new = {key: as_json(value) for key, value in {**given, **result.to_dict()}.items()}
    edit = audit.Edit(owner=owner, name=name or "", action=action, new=new)
    audit.record(context, session, [edit], now=at)
    if result.created:
        context.notifier.notify(session)
    return result
