"""The log records of events: one table, one listener.

A record has the fields of its event as attributes, and its name as ``event``. All records have the
logger ``celery_dynbeat.events``. docs/reference/logging.md
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from celery_dynbeat.common.events import Event
from celery_dynbeat.telemetry import events
from celery_dynbeat.telemetry.emitting import subscribe

logger = logging.getLogger("celery_dynbeat.events")


@dataclass(frozen=True, slots=True)
class Record:
    """How an event is logged. ``text`` is a ``%`` format of its fields.

    repr() of names, as in ``%(schedule)r``, escapes line breaks: no name can forge a log line.
    ``hidden`` fields are no attributes of the record.
    """

    name: Event
    level: int
    text: str
    hidden: frozenset[str] = frozenset()


RECORDS: Mapping[type, Record] = {
    events.RetriesResent: Record(
        Event.RETRIES_RESENT,
        logging.WARNING,
        "%(count)s retries did not start within %(resend_after)s after they were due and are sent"
        " again",
    ),
    events.HistoryPruned: Record(
        Event.HISTORY_PRUNED,
        logging.DEBUG,
        "%(count)s rows of table %(table)s older than %(older_than)s deleted",
    ),
    events.AlertMessageSent: Record(
        Event.ALERT_SENT, logging.INFO, "alert message %(message_id)s sent to target %(target)r"
    ),
    events.AlertMessageDropped: Record(
        Event.ALERT_DROPPED,
        logging.ERROR,
        "alert message %(message_id)s to target %(target)r dropped after %(attempts)s tries:"
        " %(error)s",
        hidden=frozenset({"error"}),
    ),
}


def connect() -> None:
    """Log the events of this process. A second call changes nothing."""
    subscribe(write, *RECORDS)


def write(event: Any) -> None:
    """Log an event of ``RECORDS``."""
    record = RECORDS[type(event)]
    if logger.isEnabledFor(record.level):
        values = {field.name: getattr(event, field.name) for field in fields(event)}
        shown = {name: value for name, value in values.items() if name not in record.hidden}
        logger.log(
            record.level,
            record.text,
            # logging formats a text without arguments only if there is none.
            *([values] if values else []),
            extra={"event": record.name, **shown},
        )
