"""Send the signals of beat. Without receivers each call costs one comparison."""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from celery_dynbeat.broker.base import RunPublisher
from celery_dynbeat.broker.publisher import PublishResult
from celery_dynbeat.common.run_states import Status
from celery_dynbeat.planning.outgoing_run import OutgoingRun
from celery_dynbeat.telemetry import events
from celery_dynbeat.telemetry.emitting import emit, emit_on_commit, has_listeners


def report_published(
    outgoing: Sequence[OutgoingRun],
    published: PublishResult,
    *,
    publisher: RunPublisher,
    now: datetime,
    again: bool,
) -> None:
    """Report a published batch: the sent runs, and those that failed."""
    if has_listeners(events.RunsSent) and published.sent:
        ids = set(published.sent)
        sent = [_sent_run(run, publisher, now) for run in outgoing if run.run_id in ids]
        emit(events.RunsSent(runs=tuple(sent), again=again))
    if has_listeners(events.PublishFailed):
        _report_failed(outgoing, published)


def _sent_run(run: OutgoingRun, publisher: RunPublisher, now: datetime) -> events.SentRun:
    return events.SentRun(
        run_id=run.run_id,
        owner=run.owner,
        schedule=run.name,
        task=run.task,
        queue=publisher.queue_of(run),
        scheduled_for=run.scheduled_for,
        lag=now - run.scheduled_for,
        origin=run.origin,
        sent_before=run.unstarted_since is not None or run.attempt > 0,
    )


def _report_failed(outgoing: Sequence[OutgoingRun], published: PublishResult) -> None:
    for run in outgoing:
        if run.run_id in published.refused or run.run_id in published.delayed:
            event = events.PublishFailed(
                run_id=run.run_id,
                owner=run.owner,
                schedule=run.name,
                task=run.task,
                permanent=run.run_id in published.refused,
            )
            emit(event)


def report_pass(began: float, error: Exception | None = None) -> None:
    """Report a pass that began at ``began`` of the monotonic clock."""
    if has_listeners(events.PassEnded):
        event = events.PassEnded(
            duration=timedelta(seconds=time.monotonic() - began),
            error=None if error is None else type(error).__name__,
            is_database_error=isinstance(error, SQLAlchemyError),
        )
        emit(event)


def report_skipped(session: Session, records: Sequence[Mapping[str, Any]]) -> None:
    """Report the ``skipped`` rows in ``records`` after the commit."""
    if not has_listeners(events.FireTimesSkipped):
        return
    for record in records:
        if record["status"] == Status.SKIPPED:
            event = events.FireTimesSkipped(
                owner=record["owner"],
                schedule=record["name"],
                task=record["task"],
                scheduled_for=record["scheduled_for"],
                count=record["fire_count"],
                reason=record["error"],
            )
            emit_on_commit(session, event)


def report_quarantined(
    session: Session, *, schedule_id: int, owner: str | None, name: str | None, error: str
) -> None:
    """Report a quarantine after the commit. ``error`` is the text that is stored."""
    if has_listeners(events.ScheduleQuarantined):
        event = events.ScheduleQuarantined(
            schedule_id=schedule_id, owner=owner, schedule=name, error=error
        )
        emit_on_commit(session, event)
