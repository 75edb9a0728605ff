"""The log records of events: one table and one listener.

A record has the fields of its event as attributes, and its name as ``event``. All records have the
logger ``celery_dynbeat.events``. docs/reference/logging.md

A batch of at most MAX_NAMED_RUNS sent runs names its runs at INFO. A larger one has counts only, so
that the cost of the record does not grow with the batch. At DEBUG each run has its own record.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from celery_dynbeat.common.events import Event
from celery_dynbeat.telemetry import events, subscribe

logger = logging.getLogger("celery_dynbeat.events")

MAX_NAMED_RUNS = 10
#: Fields that no record has as attributes. A record has its own time.
_HIDDEN = frozenset({"at", "error", "exception"})


@dataclass(frozen=True, slots=True)
class Record:
    """The log record of an event. ``text`` is a ``%`` format of its fields.

    repr() of names, as in ``%(schedule)r``, escapes line breaks: no name can forge a log line.
    Name, level and text may depend on the event; without a level it is not logged. The record does
    not hold ``hidden`` fields at all. The traceback of the field ``exception`` is logged if the
    logger is enabled for ``traceback_level``.
    """

    name: Event | Callable[[Any], Event]
    level: int | Callable[[Any], int | None]
    text: str | Callable[[Any], str]
    hidden: frozenset[str] = frozenset()
    traceback_level: int = logging.DEBUG


def _level_of_pass(event: events.PassEnded) -> int | None:
    return None if event.error is None else logging.ERROR


def _level_of_pause(event: events.SchedulePaused) -> int | None:
    return logging.WARNING if event.automatic else None


def _level_of_termination(event: events.TerminationFailed) -> int:
    return logging.DEBUG if event.repeated else logging.WARNING


def _text_of_loss(event: events.RunLost) -> str:
    result = "sent again" if event.sent_again else "lost"
    return f"run %(run_id)s is {result}: %(reason)s (worker %(worker)r)"


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
    events.PassEnded: Record(
        Event.PASS_FAILED,
        _level_of_pass,
        "pass failed, next try in %(retry_seconds).1f s: %(reason)s",
    ),
    events.PassRecovered: Record(Event.PASS_RECOVERED, logging.INFO, "beat works again"),
    events.DutyFailed: Record(
        Event.DUTY_FAILED,
        logging.ERROR,
        "the duty %(duty)r failed, next try in %(retry_seconds).0f s: %(reason)s",
    ),
    events.RowLeftOut: Record(
        Event.ROW_LEFT_OUT,
        logging.ERROR,
        "%(kind)s %(id)s (%(schedule)r of owner %(owner)r) is left out and tried again later:"
        " %(reason)s",
    ),
    events.RunUnpublishable: Record(
        Event.RUN_UNPUBLISHABLE,
        logging.ERROR,
        "run %(run_id)s of schedule %(schedule)r of owner %(owner)r has failed, because it cannot"
        " be published: %(error)s",
    ),
    events.RunDeclined: Record(
        Event.RUN_DECLINED, logging.INFO, "run %(run_id)s not sent: %(reason)s"
    ),
    events.RunLost: Record(Event.RUN_LOST, logging.WARNING, _text_of_loss),
    events.ReplacedRunLost: Record(
        Event.RUN_LOST,
        logging.WARNING,
        "run %(run_id)s is revoked: %(reason)s (worker %(worker)r)",
    ),
    events.ScheduleQuarantined: Record(
        Event.SCHEDULE_QUARANTINED,
        logging.ERROR,
        "schedule %(schedule_id)s (%(schedule)r of owner %(owner)r) is quarantined: %(error)s",
        traceback_level=logging.ERROR,
    ),
    events.SchedulePaused: Record(
        Event.SCHEDULE_PAUSED,
        _level_of_pause,
        "schedule %(schedule)r of owner %(owner)r is paused: %(failures)s failures in a row",
        # The error of a task can contain its arguments.
        hidden=frozenset({"reason"}),
    ),
    events.SchedulesHeld: Record(
        Event.SCHEDULES_HELD, logging.INFO, "%(schedules)s due schedules of held owners wait"
    ),
    events.PausesEnded: Record(
        Event.PAUSES_ENDED, logging.INFO, "%(schedules)s schedules resumed: their pause has ended"
    ),
    events.CalendarInForce: Record(
        Event.CALENDAR_IN_FORCE,
        logging.INFO,
        "version %(version)s of the calendar %(calendar)r is in force for all its schedules"
        " %(after)s after the edit",
    ),
    events.TriggerUnsupported: Record(
        Event.TRIGGER_UNSUPPORTED,
        logging.WARNING,
        "schedule %(schedule)r of owner %(owner)r does not run: unsupported trigger kind"
        " %(trigger_kind)r; this version supports %(supported)s. Start a beat of a newer version,"
        " or correct trigger_kind",
    ),
    events.OwnerCostly: Record(
        Event.OWNER_COSTLY,
        logging.WARNING,
        "schedules of owner %(owner)r take long to plan: other owners come first for"
        " %(second_for)s",
    ),
    events.TerminationFailed: Record(
        Event.TERMINATE_FAILED,
        _level_of_termination,
        "%(count)s replaced runs continue: %(reason)s",
    ),
    events.RunRefused: Record(
        _name_of_refusal,
        _level_of_refusal,
        "run %(run_id)s refused: %(reason)s (schedule %(schedule)r of owner %(owner)r)",
        # The name and the level already contain this.
        hidden=frozenset({"redelivered", "undecided"}),
    ),
    events.RunDeferred: Record(
        Event.RUN_DEFERRED,
        logging.WARNING,
        "run %(run_id)s deferred by %(seconds)s s: %(reason)s",
    ),
    events.RunNotTerminated: Record(
        Event.RUN_NOT_TERMINATED,
        _warning_once,
        "run %(run_id)s cannot be terminated by the %(pool)r pool: use -P prefork, or another"
        " overlap",
        hidden=frozenset({"repeated"}),
    ),
    events.OutcomeBuffered: Record(
        Event.OUTCOME_BUFFERED,
        logging.WARNING,
        "outcome of run %(run_id)s buffered until %(until)s: %(error)s",
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
    events.AlertOpened: Record(
        Event.ALERT_OPENED,
        logging.INFO,
        "alert %(kind)s of schedule %(schedule)r of owner %(owner)r",
    ),
    events.AlertRecovered: Record(
        Event.ALERT_RECOVERED,
        logging.INFO,
        "alert %(kind)s of schedule %(schedule)r of owner %(owner)r has ended",
    ),
    events.AlertMessageSent: Record(
        Event.ALERT_SENT, logging.INFO, "%(alerts)s alerts sent to URL %(url)s"
    ),
    events.AlertMessageDropped: Record(
        Event.ALERT_DROPPED,
        logging.ERROR,
        "%(alerts)s alerts were not delivered to URL %(url)s of dynbeat_alert_urls: %(error)s",
    ),
}
#: The records of the kinds of batches.
BATCHES: Mapping[events.BatchKind, Event] = {
    events.BatchKind.DUE: Event.RUNS_DISPATCHED,
    events.BatchKind.OVERDUE: Event.RUNS_REPUBLISHED,
}


def connect() -> None:
    """Log the events of this process. A second call changes nothing."""
    subscribe(write, *RECORDS)
    subscribe(write_batch, events.RunsSent)


def fields_of(event: Any, record: Record) -> list[str]:
    """Return the names of the fields that ``record`` has as attributes."""
    hidden = _HIDDEN | record.hidden
    return [field.name for field in fields(event) if field.name not in hidden]


def name_of(event: Any, record: Record) -> Event:
    """Return the name of the record of an event."""
    return record.name(event) if callable(record.name) else record.name


def write(event: Any) -> None:
    """Log an event of ``RECORDS``."""
    record = RECORDS[type(event)]
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
