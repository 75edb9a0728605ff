"""A worker in the process of a test: it executes the tasks of the runs that beat sent.

The guard decides and the recorder writes as in a worker, so runs get their real statuses. Celery's
tracer runs the body as ``Task.apply`` does: the hooks and signals of the task are called, and no
message is published. A retry stays in a queue here until the clock has reached its time.
"""

import inspect
import logging
import os
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from celery import signals
from celery import states as celery_states
from celery.app.task import Context as TaskRequest
from celery.app.task import Task
from celery.app.trace import build_tracer
from celery.exceptions import Ignore, Reject
from celery.utils.time import maybe_make_aware

from celery_dynbeat.broker import (
    HEADER_ATTEMPT,
    HEADER_EXPIRES_AT,
    HEADER_OVERLAP,
    retry_at_of,
    run_headers,
)
from celery_dynbeat.broker.publisher import PublishResult
from celery_dynbeat.common.states import Status
from celery_dynbeat.planning.plan import OutgoingRun
from celery_dynbeat.process.context import Context
from celery_dynbeat.testing.publisher import RecordingPublisher
from celery_dynbeat.worker import PostponeRun, note_of, set_note
from celery_dynbeat.worker.outcome_recorder import Outcome, Recorder
from celery_dynbeat.worker.signal_handlers import ignored_end, not_awaited, subject_of
from celery_dynbeat.worker.start_decision import Delivery, StartAction, StartDecision, decide_start
from celery_dynbeat.worker.task_guard import emit_started

logger = logging.getLogger(__name__)

WORKER_NAME = "manual@test"


class Message(NamedTuple):
    """A message as a worker receives it. A retry starts at ``not_before``."""

    run_id: str
    task: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    headers: Mapping[str, Any]
    retries: int
    not_before: datetime


class TaskRunner(RecordingPublisher):
    """A publisher that queues its messages; ``run_queued`` executes them."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._context = context
        # Import the task modules that the application names or discovers, as a worker does.
        context.app.loader.import_default_modules()
        self._queue: deque[Message] = deque()
        # Of the last task that was executed.
        self._request = TaskRequest()
        self._recorder = Recorder(
            context.database,
            settings=context.settings,
            notify=lambda session: context.notifier.notify(session),  # noqa: PLW0108 - at use
        )

    def publish(self, batch: Sequence[OutgoingRun]) -> PublishResult:
        """Queue the batch."""
        published = super().publish(batch)
        now = self._context.clock.now()
        self._queue += [
            Message(
                run.run_id,
                run.task,
                run.args,
                run.kwargs,
                run_headers(run, sent_at=now),
                run.retries,
                now,
            )
            for run in batch
        ]
        return published

    def run_queued(self) -> int:
        """Execute the queued messages that may start now; return their number.

        Messages that the tasks cause stay in the queue for the next call.
        """
        now = self._context.clock.now()
        ready = [message for message in self._queue if message.not_before <= now]
        for message in ready:
            self._queue.remove(message)
            self._run(message)
        return len(ready)

    def _run(self, message: Message) -> None:
        if message.task not in self._context.app.tasks:
            logger.error(
                "run %s failed: task %r is not registered; import its module", *message[:2]
            )
            self._record(
                message,
                Status.FAILED,
                started=False,
                attempt=message.headers[HEADER_ATTEMPT],
                error=f"NotRegistered: {message.task}",
            )
            return
        decision = self._decide(message)
        if decision.action is StartAction.START:
            assert decision.attempt is not None  # noqa: S101 - see StartDecision
            self._trace(message, decision.attempt)

    def _decide(self, message: Message) -> StartDecision:
        expires_at = message.headers.get(HEADER_EXPIRES_AT)
        delivery = Delivery(
            run_id=message.run_id,
            retries=message.retries,
            expected_attempt=message.headers[HEADER_ATTEMPT],
            redelivered=False,
            acks_late=False,
            expires_at=None if expires_at is None else datetime.fromisoformat(expires_at),
            worker=WORKER_NAME,
            main_pid=os.getpid(),
            pid=os.getpid(),
            executes_here=lambda: False,
        )
        now, timeout = self._context.clock.now(), self._context.settings.node_timeout
        return self._context.database.run(
            lambda session: decide_start(session, delivery, now=now, timeout=timeout)
        )

    def _trace(self, message: Message, attempt: int) -> None:
        app = self._context.app
        task = app.tasks[message.task]
        headers = {**message.headers, HEADER_ATTEMPT: attempt}
        request = {
            # A worker sets them as attributes of task.request and in request.headers.
            **headers,
            "headers": headers,
            "id": message.run_id,
            "root_id": message.run_id,
            "task": message.task,
            "retries": message.retries,
            "is_eager": True,
            "hostname": WORKER_NAME,
            "delivery_info": {"is_eager": True},
        }
        self._request = TaskRequest(request)
        now = self._context.clock.now()
        emit_started(task, self._request, run_id=message.run_id, attempt=attempt, now=now)

        def keep_note(sender: Task, task_id: str, **_: Any) -> None:
            # The tracer creates a request from this request.
            if task_id == message.run_id and (note := note_of(sender.request)):
                set_note(self._request, note)

        signals.task_postrun.connect(keep_note)
        # This comes after the connect, because the tracer keeps the present list of receivers, and
        # a connect can replace that list.
        trace = build_tracer(task.name, task, eager=True, app=app)
        try:
            result = trace(message.run_id, list(message.args), dict(message.kwargs), request)
        finally:
            signals.task_postrun.disconnect(keep_note)
        self._end(message, attempt, headers, result)

    def _end(self, message: Message, attempt: int, headers: Mapping[str, Any], result: Any) -> None:
        state = celery_states.SUCCESS if result.info is None else result.info.state
        end: dict[str, Any] = {"attempt": attempt, "awaited": HEADER_OVERLAP in headers}
        if inspect.iscoroutine(result.retval):
            # As in a worker, nothing has awaited the body.
            result.retval.close()
            self._record(message, Status.FAILED, error=not_awaited(message.task), **end)
            return
        if state == celery_states.SUCCESS:
            self._record(message, Status.SUCCEEDED, **end)
            return
        error = result.info.retval
        if state == celery_states.RETRY:
            self._retry(message, attempt, headers, error)
        elif isinstance(error, PostponeRun):
            self._record(message, Status.PENDING, attempt=attempt, resend_at=error.until)
        elif isinstance(error, Ignore):
            status, reason = ignored_end(error)
            self._record(message, status, error=reason, **end)
        elif state == celery_states.REJECTED and getattr(error, "requeue", False):
            resend_at = self._context.clock.now() + self._context.settings.resend_after
            self._record(message, Status.SENT, attempt=attempt, resend_at=resend_at)
        else:
            self._fail(message, error, result, end)

    def _fail(self, message: Message, error: Any, result: Any, end: Mapping[str, Any]) -> None:
        at = self._context.clock.now()
        retry_at = None if isinstance(error, Reject) else retry_at_of(self._request, now=at)
        self._record(
            message,
            Status.FAILED if retry_at is None else Status.RETRYING,
            at=at,
            retry_at=retry_at,
            sent_by_beat=retry_at is not None,
            retries=None if retry_at is None else self._request.retries,
            error=f"{type(error).__name__}: {error}",
            traceback=str(result.retval),
            **end,
        )
        if self._context.app.conf.task_eager_propagates and isinstance(error, BaseException):
            raise error

    def _retry(
        self, message: Message, attempt: int, headers: Mapping[str, Any], retry: Any
    ) -> None:
        at = self._context.clock.now() + self._delay(retry.when)
        self._record(message, Status.RETRYING, attempt=attempt, retry_at=at, error=str(retry))
        if retry.sig is None:
            # The task raised Retry itself. Celery sends no message; beat resends the retry later.
            return
        sig = retry.sig
        args, kwargs, retries = sig.args, sig.kwargs, message.retries + 1
        self._queue.append(
            Message(message.run_id, message.task, args, kwargs, headers, retries, at)
        )

    def _delay(self, when: Any) -> timedelta:
        """Return the delay of a retry; ``when`` is seconds, or an instant by the host's clock."""
        if isinstance(when, datetime):
            aware: datetime = maybe_make_aware(when, self._context.app.timezone)
            return aware - self._context.clock.now()
        return timedelta(seconds=when or 0)

    def _record(self, message: Message, status: Status, **details: Any) -> None:
        details.setdefault("at", self._context.clock.now())
        request = (
            self._request
            if self._request.id == message.run_id
            else TaskRequest(headers=message.headers)
        )
        self._recorder.record(
            Outcome(
                subject=subject_of(message.task, request),
                note=note_of(request),
                run_id=message.run_id,
                worker=WORKER_NAME,
                pid=os.getpid(),
                status=status,
                **details,
            )
        )
