"""The queue of a task's messages, and the names that a worker reports."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from celery_dynbeat.broker.task_message import MessageSender, RoutingError
from celery_dynbeat.planning.plan import OutgoingRun


def reported_names(text: str | None) -> frozenset[str] | None:
    """Return the names of a node's row, or None if they are not known.

    ``text`` is an array of JSON, None if the node reports nothing. SQL by hand can damage it.
    """
    try:
        names = None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None
    return frozenset(map(str, names)) if isinstance(names, list) else None


def queue_of(
    sender: MessageSender,
    *,
    task: str,
    options: Mapping[str, Any],
    now: datetime,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> str | None:
    """Return the queue to which ``sender`` sends the task, or None if it is not known.

    Beat reports why such a task cannot be published.
    """
    run = OutgoingRun(
        run_id="",
        schedule_id=0,
        owner="",
        name="",
        version=0,
        task=task,
        args=args,
        kwargs=kwargs or {},
        options=options,
        scheduled_for=now,
    )
    try:
        return sender.queue(run)
    except RoutingError:
        return None
