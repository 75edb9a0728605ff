"""The facts that beat evaluates to alerts. Everything that stores one is in this module.

    emit_on_commit(event)  --_OF_EVENTS-->  facts: rows of dynbeat_alert_fact
                                             |  the evaluation: lock, apply, delete
                                             alerts

``store`` is a listener of transactions. The facts of an event join the transaction of the state
change, so that neither is without the other. All facts of one ``emit_on_commit`` whose schedules
are known need one INSERT. Facts are stored only in sessions with LIMITS in their ``info``. A
Context makes such sessions if its settings turn alerts on. A fact that cannot be stored is logged
and dropped, because the state change is more important.

A run is late by the time from when its schedule was due to its claim. After an outage, a claim
stores facts of only the MAX_FACTS latest runs. The other late schedules open an alert only if their
next runs are late too.
"""

import heapq
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Insert, Text, and_, bindparam, cast, insert, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from celery_dynbeat.common.alert_kinds import AlertKind
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.settings import MIN_SLOW, Settings
from celery_dynbeat.common.states import Status
from celery_dynbeat.db import statements
from celery_dynbeat.db.alert_models import ALERT_FACTS
from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.engine import reason_of, savepoint
from celery_dynbeat.db.models import RUNS, SCHEDULES, Schedule
from celery_dynbeat.db.statements import Row, in_index_order, read
from celery_dynbeat.telemetry import emit_on_commit, events, has_listeners, subscribe_in_transaction

logger = logging.getLogger(__name__)

#: Late runs that one claim stores.
MAX_FACTS = 100
#: Schedules whose own rules one statement compares.
_IDS = 1_000
#: The key of the Limits in ``Session.info``. Facts are stored in no other session.
LIMITS = "dynbeat_alert_limits"

_FACT, _RUN = ALERT_FACTS.c, RUNS.c


@dataclass(frozen=True, slots=True)
class Limits:
    """A run that is later or slower than this is a fact. None means that there is no such limit."""

    late_after: timedelta | None
    slow_after: timedelta | None


class NewFact(NamedTuple):
    """A fact to store. ``value`` is in seconds.

    ``schedule_id=None`` is the schedule of the run ``run_id``; a deleted schedule has no facts.
    With ``own_rule`` the fact is stored only if the schedule's own alert rules name this rule.
    """

    kind: AlertKind
    at: datetime
    schedule_id: int | None = None
    run_id: str | None = None
    value: float | None = None
    own_rule: str | None = None


def _of_quarantine(event: events.ScheduleQuarantined, _: Limits) -> Iterable[NewFact]:
    yield NewFact(AlertKind.QUARANTINED, event.at, event.schedule_id)


def _of_loss(event: events.RunLost, _: Limits) -> Iterable[NewFact]:
    # The schedule of a run may have been deleted.
    if not event.sent_again and event.schedule_id is not None:
        yield NewFact(AlertKind.LOST, event.at, event.schedule_id, event.run_id)


def _of_pause(event: events.SchedulePaused, _: Limits) -> Iterable[NewFact]:
    if event.automatic:
        yield NewFact(AlertKind.PAUSED, event.at, event.schedule_id)


def _of_late_runs(event: events.RunsLate, limits: Limits) -> Iterable[NewFact]:
    limit = limits.late_after
    for run in event.runs:
        is_late = limit is not None and run.late_by > limit
        yield NewFact(
            AlertKind.LATE,
            event.at,
            run.schedule_id,
            run.run_id,
            value=run.late_by.total_seconds(),
            # The evaluation compares it with the schedule's own rule.
            own_rule=None if is_late else "late_after",
        )


def _of_end(event: events.RunEnded, limits: Limits) -> Iterable[NewFact]:
    if event.status == Status.FAILED:
        yield NewFact(AlertKind.FAILED, event.at, run_id=event.run_id)
    if event.duration is None or not _may_be_slow(event):
        return
    # The evaluation compares it with the schedule's own rule.
    is_slow = limits.slow_after is not None and event.duration > limits.slow_after
    yield NewFact(
        AlertKind.SLOW,
        event.at,
        run_id=event.run_id,
        value=event.duration.total_seconds(),
        own_rule=None if is_slow else "slow_after",
    )


def _may_be_slow(event: events.RunEnded) -> bool:
    is_timed = event.status in {Status.SUCCEEDED, Status.FAILED}
    return is_timed and event.duration is not None and event.duration >= MIN_SLOW


def _may_have_facts(event: object) -> bool:
    """Return whether an event may be a fact.

    Most runs end without a fact, so they do not have its cost.
    """
    if isinstance(event, events.RunEnded):
        return event.status == Status.FAILED or _may_be_slow(event)
    return True


#: Event type -> the facts that an event is.
_OF_EVENTS: Mapping[type, Callable[[Any, Limits], Iterable[NewFact]]] = {
    events.ScheduleQuarantined: _of_quarantine,
    events.RunLost: _of_loss,
    events.RunEnded: _of_end,
    events.SchedulePaused: _of_pause,
    events.RunsLate: _of_late_runs,
}


def connect(settings: Settings) -> Mapping[str, Any]:
    """Store the facts of this process. A second call changes nothing.

    Return the entries that a session's ``info`` must contain so that its facts are stored.
    """
    subscribe_in_transaction(store, *_OF_EVENTS, wants=_may_have_facts)
    return {LIMITS: Limits(settings.alert_late_after, settings.alert_slow_after)}


def store(session: Session, reported: Sequence[Any]) -> None:
    """Store the facts of the events that a transaction reports."""
    limits: Limits | None = session.info.get(LIMITS)
    if limits is None:
        return
    facts = [fact for event in reported for fact in _OF_EVENTS[type(event)](event, limits)]
    if not facts:
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
    of_schedules = []
    for fact in facts:
        if fact.schedule_id is None:
            values = {**_columns(fact), "of": fact.run_id}
            session.execute(_insert_of_run(fact.own_rule), values)
        else:
            of_schedules.append(fact)
    kept = _latest(session, of_schedules)
    add(session, [{**_columns(fact), "schedule_id": fact.schedule_id} for fact in kept])


def _columns(fact: NewFact) -> dict[str, Any]:
    return {"kind": fact.kind.value, "run_id": fact.run_id, "at": fact.at, "value": fact.value}


def _latest(session: Session, facts: Sequence[NewFact]) -> Sequence[NewFact]:
    """Return the facts. Late runs that no rule names, or beyond MAX_FACTS, are left out."""
    asked = [fact.schedule_id for fact in facts if fact.own_rule is not None]
    named: set[int | None] = set()
    for ids in statements.in_parts(asked, _IDS):
        own = select(SCHEDULES.c.id).where(SCHEDULES.c.id.in_(ids), _names_rule("late_after"))
        named.update(session.scalars(own))
    late = [
        fact
        for fact in facts
        if fact.kind is AlertKind.LATE and (fact.own_rule is None or fact.schedule_id in named)
    ]
    others = [fact for fact in facts if fact.kind is not AlertKind.LATE]
    return [*others, *heapq.nlargest(MAX_FACTS, late, key=lambda fact: fact.value or 0)]


def _names_rule(rule: str) -> ColumnElement[bool]:
    """Return the condition that the rules of the schedule itself name ``rule``.

    The column is compared as text: rules that Python cannot read do not matter here.
    """
    rules = SCHEDULES.c.alerts
    return and_(rules.is_not(None), cast(rules, Text).like(f'%"{rule}"%'))


# Cached: building it takes longer than executing it.
@cache
def _insert_of_run(own_rule: str | None) -> Insert:
    names = ("kind", "run_id", "at", "value")
    values = [bindparam(name, type_=_FACT[name].type) for name in names]
    source = select(_RUN.schedule_id, *values)
    source = source.where(_RUN.id == bindparam("of"), _RUN.schedule_id.is_not(None))
    if own_rule is not None:
        source = source.join(SCHEDULES, SCHEDULES.c.id == _RUN.schedule_id)
        source = source.where(_names_rule(own_rule))
    return insert(ALERT_FACTS).from_select(["schedule_id", *names], source)


def add(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert facts that all have the same columns: kind, schedule_id, run_id, at, value."""
    if rows:
        # The caller's session may choose its database by the mapped class.
        connection = session.connection(bind_arguments={"mapper": Schedule})
        statements.insert(connection, ALERT_FACTS, rows)


def has_any(session: Session) -> bool:
    """Return whether there is a fact to evaluate. Reads one row."""
    return session.scalar(select(_FACT.id).order_by(_FACT.id).limit(1)) is not None


@in_index_order
def lock(session: Session, *, limit: int) -> Sequence[Row]:
    """Return up to ``limit`` facts, the oldest first, locked for this transaction.

    Facts that another beat evaluates are skipped.
    """
    statement = select(ALERT_FACTS).order_by(_FACT.id).limit(limit)
    return read(session, statement.with_for_update(skip_locked=True))


def delete(session: Session, ids: Sequence[int]) -> None:
    """Delete locked facts."""
    if ids:
        connection = session.connection(bind_arguments={"mapper": Schedule})
        capabilities_of(connection.dialect).delete(connection, ALERT_FACTS, ids)
