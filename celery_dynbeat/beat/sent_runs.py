"""The log records of one published batch.

A batch of at most MAX_NAMED_RUNS names its runs at INFO. A larger one has counts only, so that the
cost of the record does not grow with the batch. At DEBUG each run has its own record.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from celery_dynbeat.broker.publisher import PublishResult
from celery_dynbeat.common.events import Event
from celery_dynbeat.planning.outgoing_run import OutgoingRun

logger = logging.getLogger(__name__)

MAX_NAMED_RUNS = 10


def log_sent(outgoing: Sequence[OutgoingRun], published: PublishResult, event: Event) -> None:
    """Log a published batch. ``event`` says what kind of batch it is."""
    # If all runs are delayed, the log has the start of the outage.
    if len(published.delayed) < len(outgoing) and logger.isEnabledFor(logging.INFO):
        _log_batch(outgoing, published, event)
    if logger.isEnabledFor(logging.DEBUG):
        for run in outgoing:
            logger.debug(
                "sent run %s of %r (%r)", run.run_id, run.name, run.task, extra=fields_of(run)
            )


def _log_batch(outgoing: Sequence[OutgoingRun], published: PublishResult, event: Event) -> None:
    named = _named_runs(outgoing, published)
    # repr() escapes line breaks and control characters: no name can forge a log line.
    names = dict.fromkeys(f"{run.name!r} of owner {run.owner!r}" for run in named)
    logger.info(
        "%s %s of %s%s",
        event.replace("_", " "),
        len(published.sent),
        len(outgoing),
        f": {', '.join(names)}" if names else "",
        extra={
            "event": event,
            "sent": len(published.sent),
            "claimed": len(outgoing),
            "runs": [fields_of(run) for run in named],
        },
    )


def _named_runs(outgoing: Sequence[OutgoingRun], published: PublishResult) -> Sequence[OutgoingRun]:
    if len(outgoing) > MAX_NAMED_RUNS:
        return ()
    return [run for run in outgoing if run.run_id in published.sent]


def fields_of(run: OutgoingRun) -> Mapping[str, Any]:
    """Return the fields of a log record about a run that beat sends."""
    return {
        "owner": run.owner,
        "schedule": run.name,
        "run_id": run.run_id,
        # Of the attempt that the message starts.
        "attempt": run.attempt + 1,
        "task": run.task,
    }


def log_declined(run: OutgoingRun, reason: str) -> None:
    """Log that the application's own code did not send a run."""
    logger.info(
        "run %s not sent: %s",
        run.run_id,
        reason,
        extra={
            "event": Event.RUN_DECLINED,
            "owner": run.owner,
            "schedule": run.name,
            "run_id": run.run_id,
            "attempt": run.attempt + 1,
        },
    )
