"""Store the facts that beat evaluates to alerts, in the transaction of the state change.

Without alerts, and in a transaction of the application, each call costs one comparison. A fact that
cannot be stored is logged and dropped: the state change is more important.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from celery_dynbeat.common.alert_kinds import AlertKind
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.run_states import Status
from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.dialects.base import RECORDS_FACTS
from celery_dynbeat.db.engine import savepoint
from celery_dynbeat.db.reasons import reason_of
from celery_dynbeat.planning.alerting import MIN_SLOW
from celery_dynbeat.telemetry import events
from celery_dynbeat.telemetry.emitting import emit_on_commit, has_listeners

logger = logging.getLogger(__name__)


def records(session: Session) -> bool:
    """Return whether facts are stored in the transactions of ``session``."""
    return bool(session.info.get(RECORDS_FACTS))


def fact(
    kind: AlertKind,
    schedule_id: int,
    *,
    at: datetime,
    run_id: str | None = None,
    value: float | None = None,
) -> Mapping[str, Any]:
    """Return the row of a fact."""
    return {
        "kind": kind.value,
        "schedule_id": schedule_id,
        "run_id": run_id,
        "at": at,
        "value": value,
    }


def add(
    session: Session, facts: Sequence[Mapping[str, Any]], *, enabled: bool | None = None
) -> None:
    """Store ``facts`` if alerts are on. One INSERT for all of them.

    ``enabled`` says whether they are, for a session that may be the caller's.
    """
    if facts and (records(session) if enabled is None else enabled):
        # A late import: a process without alerts does not need the queries.
        from celery_dynbeat.store import alert_events  # noqa: PLC0415

        _store(session, lambda: alert_events.add(session, facts))


def add_of_run(
    session: Session,
    kind: AlertKind,
    *,
    run_id: str,
    at: datetime,
    value: float | None = None,
    own_rule: str | None = None,
) -> None:
    """Store a fact of the schedule of a run if alerts are on. A deleted schedule has none.

    With ``own_rule`` it is stored only if the schedule's own rules name this rule.
    """
    if records(session):
        from celery_dynbeat.store import alert_events  # noqa: PLC0415

        given = {"kind": kind.value, "run_id": run_id, "at": at, "value": value}
        _store(session, lambda: alert_events.add_of_run(session, given, own_rule=own_rule))


def may_be_of_end(status: Status, duration: timedelta | None) -> bool:
    """Return whether the end of an attempt may be a fact: only then it needs a transaction."""
    return status == Status.FAILED or _is_long(status, duration)


def _is_long(status: str, duration: timedelta | None) -> bool:
    is_timed = status in {Status.SUCCEEDED, Status.FAILED}
    return is_timed and duration is not None and duration >= MIN_SLOW


def add_of_end(session: Session, event: events.RunEnded, *, slow_after: timedelta | None) -> None:
    """Store the facts of an end: the run failed, or it was slow."""
    if event.status == Status.FAILED:
        add_of_run(session, AlertKind.FAILED, run_id=event.run_id, at=event.at)
    duration = event.duration
    if duration is None or not _is_long(event.status, duration):
        return
    # The evaluation compares it with the schedule's own rule.
    is_slow = slow_after is not None and duration > slow_after
    add_of_run(
        session,
        AlertKind.SLOW,
        run_id=event.run_id,
        at=event.at,
        value=duration.total_seconds(),
        own_rule=None if is_slow else "slow_after",
    )


def _store(session: Session, insert: Callable[[], None]) -> None:
    try:
        with savepoint(session):
            insert()
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
