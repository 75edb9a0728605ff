"""Queries on the facts that beat evaluates to alerts."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Insert, bindparam, insert, select
from sqlalchemy.orm import Session

from celery_dynbeat.db import batches
from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.index_order import in_index_order
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.db.tables import ALERT_EVENTS, RUNS, SCHEDULES
from celery_dynbeat.store.own_rules import names_rule
from celery_dynbeat.store.rows import LockedRows, read

_EVENT, _RUN = ALERT_EVENTS.c, RUNS.c


def add(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert facts that all have the same columns: kind, schedule_id, run_id, at, value.

    They join the transaction of the state change, so that neither is without the other.
    """
    if rows:
        # The caller's session may choose its database by the mapped class.
        connection = session.connection(bind_arguments={"mapper": Schedule})
        batches.insert(connection, ALERT_EVENTS, rows)


def add_of_run(session: Session, given: Mapping[str, Any], *, own_rule: str | None) -> None:
    """Insert a fact of the schedule of a run: kind, run_id, at, value.

    With ``own_rule`` only if the schedule's own rules name it.
    """
    session.execute(_insert_of_run(own_rule), {**given, "of": given["run_id"]})


# Cached: building it takes longer than executing it.
@cache
def _insert_of_run(own_rule: str | None) -> Insert:
    names = ("kind", "run_id", "at", "value")
    values = [bindparam(name, type_=_EVENT[name].type) for name in names]
    source = select(_RUN.schedule_id, *values)
    source = source.where(_RUN.id == bindparam("of"), _RUN.schedule_id.is_not(None))
    if own_rule is not None:
        source = source.join(SCHEDULES, SCHEDULES.c.id == _RUN.schedule_id)
        source = source.where(names_rule(own_rule))
    return insert(ALERT_EVENTS).from_select(["schedule_id", *names], source)


def has_any(session: Session) -> bool:
    """Return whether there is a fact to evaluate. Reads one row."""
    return session.scalar(select(_EVENT.id).order_by(_EVENT.id).limit(1)) is not None


@in_index_order
def lock(session: Session, *, limit: int) -> LockedRows:
    """Return up to ``limit`` facts, the oldest first, locked for this transaction.

    Facts that another beat evaluates are skipped.
    """
    statement = select(ALERT_EVENTS).order_by(_EVENT.id).limit(limit)
    return read(session, statement.with_for_update(skip_locked=True), key=_EVENT.id)


def delete(session: Session, ids: Sequence[int]) -> None:
    """Delete locked facts."""
    if ids:
        connection = session.connection(bind_arguments={"mapper": Schedule})
        capabilities_of(connection.dialect).delete(connection, ALERT_EVENTS, ids)
