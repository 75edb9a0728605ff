"""What the records of Celery itself say about a task, without its arguments and its result.

Celery formats most of them with a mapping, which is also ``record.data``: ``Task %(name)s[%(id)s]
succeeded in %(runtime)ss: %(return_value)s``. An application may replace these formats. Other
records have the arguments, or the whole body of a message, as text at their end.
"""

import logging
from collections.abc import Mapping
from typing import Any

from celery_dynbeat.common.run_ids import is_run_id

HIDDEN = "(not logged)"
_SECRET_KEYS = ("args", "kwargs", "return_value")
#: A message of these loggers ends where one of these texts begins.
_ENDS = {
    "celery.worker.consumer.consumer": (
        "The full contents of the message body was:",
        # The error can also contain the body.
        "Can't decode message body:",
    ),
    "celery.worker.strategy": (" Task: {",),
    "celery.pool": (" (args:",),
}


def is_celerys(record: logging.LogRecord) -> bool:
    """Return whether Celery itself logged the record."""
    # Loggers of get_task_logger have the name that the application chose.
    return record.name.startswith("celery.") and record.name != "celery.redirected"


def message_of(record: logging.LogRecord) -> str:
    """Return the message of a record of Celery without arguments and results."""
    args = record.args
    if isinstance(args, Mapping):
        hidden = dict.fromkeys((key for key in _SECRET_KEYS if key in args), HIDDEN)
        return str(record.msg) % {**args, **hidden}
    message = record.getMessage()
    for end in _ENDS.get(record.name, ()):
        start, found, _ = message.partition(end)
        if found:
            return f"{start}{end.rstrip(' {')} {HIDDEN}"
    return message


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the task, task_id and run_id that a record of Celery is about."""
    data = getattr(record, "data", None)
    if not isinstance(data, Mapping) or "id" not in data:
        return {}
    task_id = data["id"]
    run = {"run_id": task_id} if is_run_id(task_id) else {}
    return {"task": data.get("name"), "task_id": task_id, **run}
