"""The queues that this worker consumes and the tasks that it has registered, for its node row."""

import json
from collections.abc import Iterable
from typing import NamedTuple

from celery import Celery

#: Characters of a list. A longer one is not reported.
MAX_LENGTH = 65_536


class ReportedNames(NamedTuple):
    """JSON arrays of sorted names. None: the list is too long."""

    queues: str | None
    tasks: str | None


def reported_names(app: Celery) -> ReportedNames:
    """Return the names that the worker of ``app`` reports now.

    A broadcast queue has another name in each worker; its alias is reported.
    """
    # Copies: another thread may add a queue or a task.
    queues = list(app.amqp.queues.consume_from.values())
    return ReportedNames(
        queues=_as_json(queue.alias or queue.name for queue in queues),
        tasks=_as_json(list(app.tasks)),
    )


def _as_json(names: Iterable[str]) -> str | None:
    text = json.dumps(sorted(names), separators=(",", ":"))
    return text if len(text) <= MAX_LENGTH else None
