"""Send the signals of a worker. Without receivers each call costs one comparison."""

import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from celery import Celery
from celery.app.task import Task

from celery_dynbeat.broker.headers import (
    HEADER_SCHEDULED_FOR,
    HEADER_SENT_AT,
    instant_in,
    schedule_of,
    traceparent_of,
)
from celery_dynbeat.common.run_states import Status
from celery_dynbeat.telemetry import events
from celery_dynbeat.telemetry.emitting import emit, has_listeners
from celery_dynbeat.worker.delivered_queue import delivered_queue

_BEGAN = "dynbeat_began"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What the signals say about the run of an outcome.

    ``owner`` and ``schedule`` are None if the message is gone, ``task`` is then perhaps "".
    ``duration`` is that of the body, None if this process did not run it. ``traceparent`` is the
    trace that the message carries.
    """

    task: str = ""
    owner: str | None = None
    schedule: str | None = None
    duration: timedelta | None = None
    traceparent: str | None = None


UNKNOWN = Subject()


def subject_of(task: str, request: Any = None) -> Subject:
    """Return the subject of an outcome. ``request`` None: the message is gone."""
    if request is None:
        return Subject(task=task)
    owner, schedule = schedule_of(request)
    began = getattr(request, _BEGAN, None)
    duration = None if began is None else timedelta(seconds=time.monotonic() - began)
    return Subject(
        task=task,
        owner=owner,
        schedule=schedule,
        duration=duration,
        traceparent=traceparent_of(request),
    )


def report_start(task: Task, request: Any, *, run_id: str, attempt: int, now: datetime) -> None:
    """Note that the body starts now, and report it."""
    setattr(request, _BEGAN, time.monotonic())
    if not has_listeners(events.RunStarted):
        return
    owner, schedule = schedule_of(request)
    sent_at = instant_in(request, HEADER_SENT_AT)
    # A retry has the header of the first message.
    waited = None if sent_at is None or request.retries else max(now - sent_at, timedelta(0))
    event = events.RunStarted(
        run_id=run_id,
        owner=owner,
        schedule=schedule,
        task=task.name,
        queue=_queue_of(task.app, request),
        scheduled_for=instant_in(request, HEADER_SCHEDULED_FOR),
        attempt=attempt,
        waited=waited,
    )
    emit(event)


def _queue_of(app: Celery, request: Any) -> str | None:
    # A copy: another thread may add a queue.
    consumed = list(app.amqp.queues.consume_from.values())
    return delivered_queue(request.delivery_info or {}, consumed)


def report_refused(task: str, request: Any, *, run_id: str, reason: str, duplicate: bool) -> None:
    """Report that the guard dropped a message."""
    if has_listeners(events.RunRefused):
        owner, schedule = schedule_of(request)
        event = events.RunRefused(
            run_id=run_id,
            owner=owner,
            schedule=schedule,
            task=task,
            reason=reason,
            duplicate=duplicate,
        )
        emit(event)


def report_deferred(task: str, request: Any, *, run_id: str) -> None:
    """Report that the guard published a copy of a message for a later start."""
    if has_listeners(events.RunDeferred):
        owner, schedule = schedule_of(request)
        event = events.RunDeferred(run_id=run_id, owner=owner, schedule=schedule, task=task)
        emit(event)


def report_end(
    subject: Subject, *, run_id: str, status: Status, attempt: int | None, error: str | None
) -> None:
    """Report the written end of an attempt."""
    if not has_listeners(events.RunEnded):
        return
    event = events.RunEnded(
        run_id=run_id,
        owner=subject.owner,
        schedule=subject.schedule,
        task=subject.task,
        status=status.value,
        attempt=attempt,
        duration=subject.duration,
        error=error,
    )
    emit(event)
