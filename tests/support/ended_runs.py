"""Runs that a worker starts and ends, written without a worker."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import update

from celery_dynbeat import Dynbeat
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run
from celery_dynbeat.store import runs
from celery_dynbeat.store.runs import attempts


def start(dynbeat: Dynbeat, run_id: str, *, after: int = 0) -> bool:
    """Start the attempt ``after`` another one; return False if the guard refuses it."""
    first = attempts.AttemptStart(
        run_id=run_id, expected_attempt=after, retries=after, worker="w", pid=1
    )
    now = dynbeat.context.clock.now()
    return bool(
        dynbeat.context.database.run(lambda session: attempts.start(session, first, now=now))
    )


def end(dynbeat: Dynbeat, run_id: str, status: str, *, attempt: int = 1) -> None:
    """End an attempt of a started run, or revoke or expire it."""
    now = dynbeat.context.clock.now()

    def work(session: Any) -> None:
        if status in {Status.SUCCEEDED, Status.FAILED, Status.REVOKED}:
            attempt_end = attempts.AttemptEnd(
                run_id=run_id, attempt=attempt, worker="w", status=Status(status), at=now
            )
            attempts.finish(session, attempt_end)
        else:
            values = {"status": status, "finished_at": now, "overdue_at": None}
            runs.execute_dml(session, update(Run).where(Run.id == run_id).values(**values))

    dynbeat.context.database.run(work)


def end_all(dynbeat: Dynbeat, sent: Iterable[Any], status: str) -> None:
    """Start and end each of the sent runs that has not started."""
    for run in sent:
        if start(dynbeat, run.run_id):
            end(dynbeat, run.run_id, status)
