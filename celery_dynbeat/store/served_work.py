"""A sample of the work that beat sends, and the queues and tasks of the workers.

The health check compares them. Each query reads the start of an index up to a limit. Workers are
the exception: their number is that of the processes within nodes.NODE_RETENTION.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Select, and_, or_, select
from sqlalchemy.orm import Session

from celery_dynbeat.common.run_states import Status
from celery_dynbeat.db.index_order import in_index_order
from celery_dynbeat.db.models import Node, NodeKind, Run, Schedule

#: Waiting runs, and schedules that are due next.
MAX_SAMPLE = 1_000
#: Workers. If there are more, the health check makes no statement about queues and tasks.
MAX_WORKERS = 500


def read_workers(
    session: Session, *, seen_since: datetime, stopped_since: datetime
) -> Sequence[Row[str | None, str | None]]:
    """Return the queues and the tasks of the workers that are alive or have just ended.

    They are JSON arrays, or None. One row more than MAX_WORKERS means that there are more.
    """
    is_alive = and_(Node.stopped_at.is_(None), Node.seen_at >= seen_since)
    statement = (
        select(Node.queues, Node.tasks)
        .where(Node.kind == NodeKind.WORKER, or_(is_alive, Node.stopped_at >= stopped_since))
        .limit(MAX_WORKERS + 1)
    )
    return session.execute(statement).all()


@in_index_order
def read_waiting(session: Session, *, with_arguments: bool) -> Sequence[Row[Any]]:
    """Return what runs are sent with that no worker has started, those sent first, first.

    The columns are task and options, and with ``with_arguments`` args and kwargs.
    """
    # A run that has not started is in the index of overdue runs.
    return session.execute(waiting_statement(with_arguments=with_arguments)).all()


@in_index_order
def read_due(session: Session, *, with_arguments: bool) -> Sequence[Row[Any]]:
    """Return the same columns and next_run_at of the schedules that are due next."""
    return session.execute(due_statement(with_arguments=with_arguments)).all()


def waiting_statement(*, with_arguments: bool) -> Select[Any]:
    """Return the SELECT of ``read_waiting``."""
    unstarted = (
        select(Run.schedule_id, Run.status, Run.overdue_at)
        .where(Run.overdue_at.is_not(None))
        .order_by(Run.overdue_at)
        .limit(2 * MAX_SAMPLE)
        .subquery()
    )
    return (
        select(*_sent_columns(with_arguments=with_arguments))
        .join(unstarted, unstarted.c.schedule_id == Schedule.id)
        .where(unstarted.c.status == Status.SENT)
        .limit(MAX_SAMPLE)
    )


def due_statement(*, with_arguments: bool) -> Select[Any]:
    """Return the SELECT of ``read_due``."""
    return (
        select(*_sent_columns(with_arguments=with_arguments), Schedule.next_run_at)
        .where(Schedule.next_run_at.is_not(None))
        .order_by(Schedule.next_run_at, Schedule.id)
        .limit(MAX_SAMPLE)
    )


def _sent_columns(*, with_arguments: bool) -> tuple[Any, ...]:
    arguments = (Schedule.args, Schedule.kwargs) if with_arguments else ()
    return (Schedule.task, Schedule.options, *arguments)
