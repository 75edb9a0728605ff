"""The log records of events: one table, one listener.

A record has the fields of its event as attributes, and its name as ``event``. All records have the
logger ``celery_dynbeat.events``. docs/reference/logging.md
"""

import logging
from collections.abc import Callable, Mapping
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
    Name, level and text may depend on the event; without a level it is not logged. ``hidden``
    fields are no attributes of the record.
    """

    name: Event | Callable[[Any], Event]
    level: int | Callable[[Any], int | None]
    text: str | Callable[[Any], str]
    hidden: frozenset[str] = frozenset()


def _name_of_refusal(event: events.RunRefused) -> Event:
    return Event.RUN_REDELIVERED if event.redelivered else Event.RUN_REFUSED


def _level_of_refusal(event: events.RunRefused) -> int:
    return logging.ERROR if event.undecided else logging.INFO


def _text_of_dropped(event: events.OutcomesDropped) -> str:
    ids = ", ".join(run["run_id"] for run in event.runs)
    more = ", ..." if event.count > len(event.runs) else ""
    return f"%(count)s outcomes of runs dropped: %(reason)s ({ids}{more})"


def _warning_once(event: events.RunNotTerminated | events.PingFailed) -> int:
    return logging.INFO if event.repeated else logging.WARNING


def _level_of_dropped_pings(event: events.PingsDropped) -> int | None:
    return None if event.repeated else logging.WARNING


def _text_of_failed_ping(event: events.PingFailed) -> str:
    to = "" if event.host is None else " to %(host)s"
    return f"ping %(ping)s of run %(run_id)s{to} failed: %(reason)s"


RECORDS: Mapping[type, Record] = {
    events.RunRefused: Record(
        _name_of_refusal,
        _level_of_refusal,
        "run %(run_id)s refused: %(reason)s (schedule %(schedule)r of owner %(owner)r)",
        # Name and level say so.
        hidden=frozenset({"redelivered", "undecided"}),
    ),
    events.RunDeferred: Record(
        Event.RUN_DEFERRED,
        logging.WARNING,
        "run %(run_id)s deferred by %(seconds)s s: %(reason)s",
    ),
    events.RunNotTerminated: Record(
        Event.TERMINATE_FAILED,
        _warning_once,
        "run %(run_id)s cannot be terminated by the %(pool)r pool: use -P prefork, or another"
        " overlap",
        hidden=frozenset({"repeated"}),
    ),
    events.OutcomeBuffered: Record(
        Event.OUTCOME_BUFFERED,
        logging.WARNING,
        "outcome of run %(run_id)s buffered until %(until)s: %(error)s",
        hidden=frozenset({"until", "error"}),
    ),
    events.OutcomesDropped: Record(Event.OUTCOME_DROPPED, logging.ERROR, _text_of_dropped),
    events.OutcomesHandedOver: Record(
        Event.OUTCOMES_HANDED_OVER,
        logging.INFO,
        "%(count)s outcomes of runs handed over to the main process",
    ),
    events.PoolCheckFailed: Record(
        Event.POOL_CHECK_FAILED,
        logging.WARNING,
        "runs of %(node)s not compared with its pool: %(error)s",
        hidden=frozenset({"error"}),
    ),
    events.PingsDropped: Record(
        Event.PING_DROPPED,
        _level_of_dropped_pings,
        "%(count)s pings of runs dropped: %(reason)s",
        hidden=frozenset({"repeated"}),
    ),
    events.PingFailed: Record(
        Event.PING_FAILED, _warning_once, _text_of_failed_ping, hidden=frozenset({"repeated"})
    ),
    events.HistoryUnreadable: Record(
        Event.HISTORY_UNREADABLE,
        logging.ERROR,
        "whether schedule %(schedule)r of owner %(owner)r fails cannot be read from its history:"
        " %(error)s",
        hidden=frozenset({"error"}),
    ),
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
    level = record.level(event) if callable(record.level) else record.level
    if level is None or not logger.isEnabledFor(level):
        return
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    shown = {name: value for name, value in values.items() if name not in record.hidden}
    logger.log(
        level,
        record.text(event) if callable(record.text) else record.text,
        # logging formats a text without arguments only if there is none.
        *([values] if values else []),
        extra={"event": record.name(event) if callable(record.name) else record.name, **shown},
    )
