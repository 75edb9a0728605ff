"""The listener that logs events. Each class of ``events`` has its record.

A record has the fields of its event as attributes, and its name as ``event``. All records have the
logger ``celery_dynbeat.events``. docs/reference/logging.md

A batch of at most MAX_NAMED_RUNS sent runs names its runs at INFO. A larger one has counts only, so
that the cost of the record does not grow with the batch. At DEBUG each run has its own record.
"""

import logging
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from celery_dynbeat.common.events import Event
from celery_dynbeat.telemetry import events, subscribe

logger = logging.getLogger("celery_dynbeat.events")

MAX_NAMED_RUNS = 10
#: Fields that no record has as attributes. A record has its own time.
_HIDDEN = frozenset({"at", "error", "exception"})


#: The types that are logged.
LOGGED: tuple[Any, ...] = tuple(
    each for each in vars(events).values() if isinstance(each, type) and getattr(each, "log", None)
)
#: The records of the kinds of batches.
BATCHES: Mapping[events.BatchKind, Event] = {
    events.BatchKind.DUE: Event.RUNS_DISPATCHED,
    events.BatchKind.OVERDUE: Event.RUNS_REPUBLISHED,
}


def connect() -> None:
    """Log the events of this process. A second call changes nothing."""
    subscribe(write, *LOGGED)
    subscribe(write_batch, events.RunsSent)


def fields_of(event: Any, record: events.Record) -> list[str]:
    """Return the names of the fields that ``record`` has as attributes."""
    hidden = _HIDDEN | record.hidden
    return [field.name for field in fields(event) if field.name not in hidden]


def name_of(event: Any, record: events.Record) -> Event:
    """Return the name of the record of an event."""
    return record.name(event) if callable(record.name) else record.name


def write(event: Any) -> None:
    """Log an event that has a record."""
    record: events.Record = event.log
    level = record.level(event) if callable(record.level) else record.level
    if level is None or not logger.isEnabledFor(level):
        return
    names = (field.name for field in fields(event))
    values = {name: getattr(event, name) for name in names if name not in record.hidden}
    exception = values.get("exception") if logger.isEnabledFor(record.traceback_level) else None
    logger.log(
        level,
        record.text(event) if callable(record.text) else record.text,
        # The logging module leaves a text unformatted if there are no arguments.
        *([values] if values else []),
        exc_info=exception,
        extra={
            "event": name_of(event, record),
            **{name: values[name] for name in fields_of(event, record)},
        },
    )


def write_batch(event: events.RunsSent) -> None:
    """Log a batch of runs. Only a small one, and DEBUG, read the runs."""
    if not logger.isEnabledFor(logging.INFO):
        return
    name = BATCHES[event.kind]
    named = event.runs if event.claimed <= MAX_NAMED_RUNS else ()
    # repr() escapes line breaks and control characters: no name can forge a log line.
    names = dict.fromkeys(f"{run.schedule!r} of owner {run.owner!r}" for run in named)
    logger.info(
        "%s %s of %s%s",
        name.replace("_", " "),
        event.sent,
        event.claimed,
        f": {', '.join(names)}" if names else "",
        extra={
            "event": name,
            "sent": event.sent,
            "claimed": event.claimed,
            "runs": [_run_fields(run) for run in named],
        },
    )
    if logger.isEnabledFor(logging.DEBUG):
        for run in event.runs:
            logger.debug(
                "sent run %s of %r (%r)",
                run.run_id,
                run.schedule,
                run.task,
                extra=_run_fields(run),
            )


def _run_fields(run: events.SentRun) -> Mapping[str, Any]:
    return {
        "owner": run.owner,
        "schedule": run.schedule,
        "run_id": run.run_id,
        "attempt": run.attempt,
        "task": run.task,
    }
