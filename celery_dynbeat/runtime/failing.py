"""Keep ``failing_since`` of schedules up to date when their runs end."""

from collections.abc import Iterable
from functools import partial

from celery_dynbeat import signals
from celery_dynbeat.common.run_states import Status
from celery_dynbeat.db.engine import Database
from celery_dynbeat.signals.sending import send
from celery_dynbeat.store import failing


def note_end(database: Database, *, run_id: str, status: Status) -> None:
    """Correct ``failing_since`` of the schedule whose run has ended with ``status``.

    Call it after the commit of the end. Other statuses than succeeded, failed and lost do not
    matter. In the usual case this is one read.
    """
    if status not in failing.OUTCOMES:
        return
    failed = status != Status.SUCCEEDED
    schedule_id = database.read(
        partial(failing.outdated_schedule, run_id=run_id, failed=failed),
    )
    if schedule_id is not None:
        refresh_all(database, [schedule_id])


def refresh_all(database: Database, schedule_ids: Iterable[int]) -> None:
    """Set ``failing_since`` of each schedule from its history, one by one."""
    for schedule_id in schedule_ids:
        recovered = database.run(partial(failing.refresh, schedule_id=schedule_id))
        if recovered is not None and signals.schedule_recovered.receivers:
            event = signals.ScheduleRecovered(
                schedule_id=schedule_id,
                owner=recovered.owner,
                schedule=recovered.name,
                failing_since=recovered.failing_since,
            )
            send(signals.schedule_recovered, event)
