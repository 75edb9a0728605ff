"""The facts that beat evaluates to alerts: a listener of the transactions that report events.

``FACTS`` says which facts an event is. They join the transaction of the state change. The facts of
one ``emit_on_commit`` whose schedules are known need one INSERT. Facts are stored only in
transactions of a Database with ``fact_limits``. A fact that cannot be stored is logged and dropped:
the state change is more important.

A run is late by the time from when its schedule was due to its claim. After an outage a claim
stores the MAX_FACTS latest runs. The other schedules are late, too, but open no alert unless the
next runs are late as well.
"""

import heapq
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from celery_dynbeat.common.alert_kinds import AlertKind
from celery_dynbeat.common.alert_settings import FactLimits
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.run_states import Status
from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.dialects.base import FACT_LIMITS
from celery_dynbeat.db.engine import savepoint
from celery_dynbeat.db.reasons import reason_of
from celery_dynbeat.planning.alerting import MIN_SLOW
from celery_dynbeat.telemetry import events
from celery_dynbeat.telemetry.emitting import (
    emit_on_commit,
    has_listeners,
    subscribe_in_transaction,
)

logger = logging.getLogger(__name__)

#: Late runs that one claim stores.
MAX_FACTS = 100


class NewFact(NamedTuple):
    """A fact to store. ``value`` is in seconds.

    ``schedule_id`` None is the schedule of the run ``run_id``; a deleted schedule has no facts.
    With ``own_rule``, which needs a run, the fact is stored only if the schedule's own alert rules
    name this rule.
    """

    kind: AlertKind
    at: datetime
    schedule_id: int | None = None
    run_id: str | None = None
    value: float | None = None
    own_rule: str | None = None


def _of_quarantine(event: events.ScheduleQuarantined, _: FactLimits) -> Iterable[NewFact]:
    yield NewFact(AlertKind.QUARANTINED, event.at, event.schedule_id)


def _of_loss(event: events.RunLost, _: FactLimits) -> Iterable[NewFact]:
    # The schedule of a run may have been deleted.
    if not event.sent_again and event.schedule_id is not None:
        yield NewFact(AlertKind.LOST, event.at, event.schedule_id, event.run_id)


def _of_pause(event: events.SchedulePaused, _: FactLimits) -> Iterable[NewFact]:
    if event.automatic:
        yield NewFact(AlertKind.PAUSED, event.at, event.schedule_id)


def _of_late_runs(event: events.RunsLate, limits: FactLimits) -> Iterable[NewFact]:
    limit = limits.late_after
    late = [
        (run.late_by, run.schedule_id, run.run_id)
        for run in event.runs
        # The evaluation compares it with the schedule's own rule.
        if run.has_own_rule or (limit is not None and run.late_by > limit)
    ]
    for late_by, schedule_id, run_id in heapq.nlargest(MAX_FACTS, late):
        seconds = late_by.total_seconds()
        yield NewFact(AlertKind.LATE, event.at, schedule_id, run_id, seconds)


def may_be_of_end(status: Status, duration: timedelta | None) -> bool:
    """Return whether the end of an attempt may be a fact: only then it needs a transaction."""
    return status == Status.FAILED or _is_long(status, duration)


def _is_long(status: str, duration: timedelta | None) -> bool:
    is_timed = status in {Status.SUCCEEDED, Status.FAILED}
    return is_timed and duration is not None and duration >= MIN_SLOW


def _of_end(event: events.RunEnded, limits: FactLimits) -> Iterable[NewFact]:
    if event.status == Status.FAILED:
        yield NewFact(AlertKind.FAILED, event.at, run_id=event.run_id)
    duration = event.duration
    if duration is None or not _is_long(event.status, duration):
        return
    # The evaluation compares it with the schedule's own rule.
    is_slow = limits.slow_after is not None and duration > limits.slow_after
    yield NewFact(
        AlertKind.SLOW,
        event.at,
        run_id=event.run_id,
        value=duration.total_seconds(),
        own_rule=None if is_slow else "slow_after",
    )


#: Event type -> the facts that an event is.
FACTS: Mapping[type, Callable[[Any, FactLimits], Iterable[NewFact]]] = {
    events.ScheduleQuarantined: _of_quarantine,
    events.RunLost: _of_loss,
    events.RunEnded: _of_end,
    events.SchedulePaused: _of_pause,
    events.RunsLate: _of_late_runs,
}


def connect() -> None:
    """Store the facts of this process. A second call changes nothing."""
    subscribe_in_transaction(store, *FACTS)


def store(session: Session, reported: Sequence[Any]) -> None:
    """Store the facts of the events that a transaction reports."""
    limits: FactLimits | None = session.info.get(FACT_LIMITS)
    if limits is not None:
        add(session, [fact for event in reported for fact in FACTS[type(event)](event, limits)])


def records(session: Session) -> bool:
    """Return whether facts are stored in the transactions of ``session``."""
    return session.info.get(FACT_LIMITS) is not None


def add(session: Session, facts: Sequence[NewFact], *, enabled: bool | None = None) -> None:
    """Store ``facts`` if alerts are on.

    ``enabled`` says whether they are, for a session that may be the caller's.
    """
    if not facts or not (records(session) if enabled is None else enabled):
        return
    try:
        with savepoint(session):
            _insert(session, facts)
    except DBAPIError as error:
        capabilities = capabilities_of(session.get_bind().dialect)
        if error.connection_invalidated or capabilities.is_transient(error):
            raise
        logger.warning(
            "a fact for alerts was not stored: %s",
            reason_of(error),
            extra={"event": Event.ALERT_FACT_DROPPED},
        )
        return
    if has_listeners(events.AlertFactsStored):
        emit_on_commit(session, events.AlertFactsStored())


def _insert(session: Session, facts: Sequence[NewFact]) -> None:
    # A late import: a process without alerts does not need the queries.
    from celery_dynbeat.store import alert_events  # noqa: PLC0415

    of_schedules = []
    for fact in facts:
        row = {"kind": fact.kind.value, "run_id": fact.run_id, "at": fact.at, "value": fact.value}
        if fact.schedule_id is None:
            alert_events.add_of_run(session, row, own_rule=fact.own_rule)
        else:
            of_schedules.append({**row, "schedule_id": fact.schedule_id})
    alert_events.add(session, of_schedules)
