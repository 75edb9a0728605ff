"""A worker in the process of a test: it executes the tasks of the runs that beat sent.

The guard decides and the recorder writes as in a worker, so runs get their real statuses. Celery's
tracer runs the body as ``Task.apply`` does: the hooks and signals of the task are called, and no
message is published. A retry stays in a queue here until the clock has reached its time.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from celery.app.task import Context as TaskRequest
from celery.app.trace import build_tracer
from celery.exceptions import Reject, Retry
from celery.states import FAILURE

from celery_dynbeat.broker import (
    HEADER_EXPIRES_AT,
    admit,
    attempt_of,
    instant_in,
    run_headers,
)
from celery_dynbeat.broker.publisher import PublishResult
from celery_dynbeat.planning.plan import OutgoingRun
from celery_dynbeat.process.context import Context
from celery_dynbeat.worker.signal_handlers import OutcomeSignals
from celery_dynbeat.worker.start_decision import Delivery, StartAction, StartDecision, decide_start
from celery_dynbeat.worker.task_guard import emit_started

logger = logging.getLogger(__name__)

WORKER_NAME = "manual@test"


class RecordingPublisher:
    """A publisher that appends the runs that a broker would receive to ``sent``.

    ``terminated`` contains the ids of the runs that beat asks the workers to terminate.
    """

    def __init__(self) -> None:
        self.sent: list[OutgoingRun] = []
        self.terminated: list[str] = []
        self._failure: Exception | None = None

    def fail_with(self, error: Exception | None) -> None:
        """Raise ``error`` on each later use, like an unreachable broker. None raises no error."""
        self._failure = error

    def connect(self) -> None:
        """Raise the error set by ``fail_with``, if any."""
        if self._failure is not None:
            raise self._failure

    def publish(self, batch: Sequence[OutgoingRun]) -> PublishResult:
        """Append the batch to ``sent``."""
        self.connect()
        self.sent += batch
        return PublishResult(sent=[run.run_id for run in batch])

    def outage_delay(self) -> None:
        """Return None, because no run is held back."""

    def terminate(self, run_ids: Sequence[str]) -> None:
        """Append the ids to ``terminated``."""
        self.connect()
        self.terminated += run_ids


class QueuedMessage(NamedTuple):
    """A message as a worker receives it. A retry starts at ``not_before``."""

    run_id: str
    task: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    headers: Mapping[str, Any]
    retries: int
    not_before: datetime


class _Outcomes(OutcomeSignals):
    def _host_now(self) -> datetime:
        # A task computes the instant of its retry with the clock of the test.
        return self._context.clock.now()


class TaskRunner(RecordingPublisher):
    """A publisher that queues its messages; ``run_queued`` executes them."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._context = context
        # Import the task modules that the application names or discovers, as a worker does.
        context.app.loader.import_default_modules()
        self._queue: list[QueuedMessage] = []
        self._outcomes = _Outcomes(context, WORKER_NAME)

    def publish(self, batch: Sequence[OutgoingRun]) -> PublishResult:
        """Queue the batch."""
        published = super().publish(batch)
        now = self._context.clock.now()
        self._queue += [
            QueuedMessage(
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
        self._queue = [message for message in self._queue if message.not_before > now]
        for message in ready:
            self._run(message)
        return len(ready)

    def _run(self, message: QueuedMessage) -> None:
        request = TaskRequest(
            {
                # A worker sets them as attributes of task.request and in request.headers.
                **message.headers,
                "headers": message.headers,
                "id": message.run_id,
                "root_id": message.run_id,
                "task": message.task,
                "retries": message.retries,
                "is_eager": True,
                "hostname": WORKER_NAME,
                "delivery_info": {"is_eager": True},
            }
        )
        if message.task not in self._context.app.tasks:
            logger.error(
                "run %s failed: task %r is not registered; import its module", *message[:2]
            )
            self._outcomes.on_unknown(message.run_id, message.task, request)
            return
        decision = self._decide(message, request)
        if decision.action is StartAction.START:
            admit(request, decision.attempt)
            self._trace(message, request)

    def _decide(self, message: QueuedMessage, request: TaskRequest) -> StartDecision:
        delivery = Delivery(
            run_id=message.run_id,
            retries=message.retries,
            expected_attempt=attempt_of(request),
            redelivered=False,
            acks_late=False,
            expires_at=instant_in(request, HEADER_EXPIRES_AT),
            worker=WORKER_NAME,
            main_pid=os.getpid(),
            pid=os.getpid(),
            executes_here=lambda: False,
        )
        now, timeout = self._context.clock.now(), self._context.settings.node_timeout
        return self._context.database.run(
            lambda session: decide_start(session, delivery, now=now, timeout=timeout)
        )

    def _trace(self, message: QueuedMessage, request: TaskRequest) -> None:
        app, now = self._context.app, self._context.clock.now()
        task, attempt = app.tasks[message.task], (attempt_of(request) or 0)
        emit_started(task, request, run_id=message.run_id, attempt=attempt, now=now)
        self._outcomes.connect()
        try:
            # After the connect, because the tracer keeps the present lists of receivers.
            trace = build_tracer(task.name, task, eager=True, app=app)
            result = trace(message.run_id, list(message.args), dict(message.kwargs), vars(request))
        finally:
            self._outcomes.disconnect()
        error: Any = None if result.info is None else result.info.retval
        if isinstance(error, Retry):
            self._queue_retry(message, request, error)
        elif isinstance(error, Reject) and not error.requeue:
            self._outcomes.record_rejected(request, error)
        elif app.conf.task_eager_propagates and result.info and result.info.state == FAILURE:
            raise error

    def _queue_retry(self, message: QueuedMessage, request: TaskRequest, retry: Retry) -> None:
        sig: Any = retry.sig
        if sig is None:
            # The task raised Retry itself. Celery sends no message; beat resends the retry later.
            return
        self._queue.append(
            QueuedMessage(
                message.run_id,
                message.task,
                sig.args,
                sig.kwargs,
                request.headers,
                message.retries + 1,
                self._outcomes.retry_time(retry),
            )
        )
