"""Celery's signals in a worker, as outcomes of runs for the recorder."""

import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from celery import signals
from celery.app.task import Task
from celery.exceptions import Reject, TimeLimitExceeded, WorkerShutdown, WorkerTerminate
from celery.states import SUCCESS
from celery.utils.time import maybe_make_aware
from celery.worker import state as worker_state

from celery_dynbeat.broker import (
    admitted_attempt,
    attempt_of,
    claimed_run_id,
    is_awaited,
    next_attempt_of,
    retry_at_of,
    run_id_of,
    schedule_of,
    wants_pings,
)
from celery_dynbeat.common.run_ids import is_run_id
from celery_dynbeat.common.states import Status
from celery_dynbeat.process.context import Context
from celery_dynbeat.telemetry import emit, events
from celery_dynbeat.worker import REASON_LENGTH, PoolChannel, PostponeRun, SkipRun, note_of
from celery_dynbeat.worker.outcome_recorder import Recorder
from celery_dynbeat.worker.outcomes import UNKNOWN, Outcome, Subject
from celery_dynbeat.worker.replacement import (
    AwaitingRun,
    is_replaced,
    is_replaced_by_task,
    run_awaiting,
)

_BEGAN = "dynbeat_began"
_HAS_SUCCEEDED = "dynbeat_has_succeeded"
_WHEN_RECORDED = "dynbeat_when_recorded"
# The request whose end the main process reports in this thread.
_reported = threading.local()


@contextmanager
def reporting(request: Any, *, pid: int | None) -> Iterator[None]:
    """Tell the receivers about the request for which the main process sends signals now.

    ``task_failure`` itself does not name the request of a pool process that died. ``pid`` is the id
    of that process, if it is known.
    """
    _reported.request, _reported.pid = request, pid
    try:
        yield
    finally:
        _reported.request = _reported.pid = None


def note_began(request: Any) -> None:
    """Note that the body of a task begins now."""
    setattr(request, _BEGAN, time.monotonic())


def call_when_recorded(request: Any, callback: Callable[[], None]) -> None:
    """Call ``callback`` when the outcome of the attempt is recorded or buffered."""
    setattr(request, _WHEN_RECORDED, callback)


def subject_of(task: str, request: Any = None) -> Subject:
    """Return the subject of an outcome. ``request`` is None if the message is gone."""
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
        pings=wants_pings(request),
    )


class OutcomeSignals:
    """The signal receivers of one worker node. Its pool processes inherit it when they are forked.

    ``channel`` is None if the node has no such processes.
    """

    def __init__(
        self, context: Context, hostname: str, *, channel: PoolChannel[Outcome] | None = None
    ) -> None:
        self._context = context
        self._hostname = hostname
        self._channel = channel
        self._recorder = self._new_recorder()
        self._has_reported_pool = False

    def _new_recorder(self, *, is_pool_process: bool = False) -> Recorder:
        context = self._context
        return Recorder(
            context.database,
            settings=context.settings,
            # Read at use: the connections of the notifier belong to the process that opened them.
            notify=lambda session: context.notifier.notify(session),  # noqa: PLW0108
            channel=self._channel,
            is_pool_process=is_pool_process,
        )

    def connect(self) -> None:
        """Connect the receivers to Celery's signals."""
        for signal, receiver in self._receivers():
            signal.connect(receiver, weak=False)

    def disconnect(self) -> None:
        """Disconnect the receivers."""
        for signal, receiver in self._receivers():
            signal.disconnect(receiver)

    def _receivers(self) -> list[tuple[Any, Any]]:
        return [
            (signals.task_success, self.on_success),
            (signals.task_failure, self.on_failure),
            (signals.task_retry, self.on_retry),
            (signals.task_revoked, self.on_revoked),
            (signals.task_postrun, self.on_postrun),
            (signals.task_unknown, self.on_unknown),
            (signals.worker_process_init, self.on_process_init),
        ]

    def start(self) -> None:
        """Start the thread that writes outcomes, in the main process and after its pool forked."""
        self._recorder.start()

    def has_outcome(self, run_id: str) -> bool:
        """Return whether an outcome of the run waits to be written, as far as known here."""
        return self._recorder.has(run_id)

    def undo_start(self, task: Task, run_id: str, *, began_at: datetime) -> None:
        """Record that this process does not execute the run, even if its row is ``running``.

        A start after ``began_at`` stays.
        """
        self._record(
            run_id,
            Status.SENT,
            started=False,
            attempt=attempt_of(task.request),
            at=began_at,
            subject=subject_of(task.name, task.request),
        )

    def record_not_terminated(self, request: Any, run_id: str, pool: str) -> None:
        """Record that a run continues because this kind of pool cannot terminate it."""
        owner, name = schedule_of(request)
        emit(
            events.RunNotTerminated(
                run_id=run_id,
                owner=owner,
                schedule=name,
                attempt=next_attempt_of(request),
                pool=pool,
                repeated=self._has_reported_pool,
            )
        )
        self._has_reported_pool = True
        error = f"overlap: a newer run was sent, and the {pool!r} pool cannot end this one"
        self._record(
            run_id,
            Status.RUNNING,
            error=error,
            subject=subject_of(getattr(request, "task", ""), request),
        )

    def close(self) -> None:
        """Write the outcomes that wait, those of ended pool processes included."""
        self._recorder.close()
        if self._channel is not None:
            self._channel.close()

    def _record(
        self,
        run_id: str,
        status: Status,
        *,
        attempt: int | None = None,
        started: bool = True,
        at: datetime | None = None,
        error: str | None = None,
        traceback: str | None = None,
        note: str | None = None,
        resend_at: datetime | None = None,
        retry_at: datetime | None = None,
        sent_by_beat: bool = False,
        retries: int | None = None,
        pid: int | None = None,
        awaited: bool = False,
        may_wait: bool = False,
        subject: Subject = UNKNOWN,
    ) -> None:
        """Record an outcome of this node.

        ``at=None`` means now. ``may_wait`` has the same meaning as for the recorder.
        """
        outcome = Outcome(
            run_id=run_id,
            attempt=attempt,
            worker=self._hostname,
            pid=pid if started else os.getpid(),
            status=status,
            at=at or self._context.now_or_host_time(),
            started=started,
            error=error,
            traceback=traceback,
            note=note,
            resend_at=resend_at,
            retry_at=retry_at,
            sent_by_beat=sent_by_beat,
            retries=retries,
            awaited=awaited,
            subject=subject,
        )
        self._recorder.record(outcome, may_wait=may_wait)

    def on_success(self, sender: Task, result: Any = None, **_: Any) -> None:
        """Receive task_success, in the process that ran the body."""
        run_id = _ended_run(sender.request)
        if run_id is None:
            return
        setattr(sender.request, _HAS_SUCCEEDED, True)
        if inspect.iscoroutine(result):
            # Celery has not awaited the body. A pool that awaits it passes on the result.
            result.close()
            self._record(run_id, Status.FAILED, error=not_awaited(sender.name), **_end_of(sender))
        else:
            self._record(
                run_id,
                Status.SUCCEEDED,
                # An early acknowledged message does not come again. The retry that
                # task_always_eager executes ends before its attempt.
                may_wait=not sender.acks_late and admitted_attempt(sender.request) is not None,
                **_end_of(sender),
            )

    def on_failure(self, sender: Task, task_id: str, exception: Any, einfo: Any, **_: Any) -> None:
        """Receive task_failure: in the process that ran the body, or for a process that died."""
        awaiting = run_awaiting(sender.request)
        if awaiting is not None:
            self._record_replacement_failed(awaiting, exception)
        if not is_run_id(task_id) or _is_requeued(sender, exception):
            return
        here = _ended_run(sender.request) == task_id
        if worker_state.should_terminate and not here:
            # The shutdown ended the process. ``PoolCheck.end_interrupted`` ends the run.
            return
        request = sender.request if here else getattr(_reported, "request", None)
        if request is not None and claimed_run_id(request) != task_id:
            # A receiver of the reported signal executes another task, which fails.
            request = None
        self._record_failed(
            task_id,
            request,
            exception,
            # The process may have died after the end of its attempt, while a later one runs.
            pid=None if here or request is None else _reported.pid,
            # Celery reports a rejected message as a failure.
            may_retry=not isinstance(exception, Reject),
            attempt=_ended_attempt(sender.request) if here else None,
            awaited=here and is_awaited(sender.request),
            note=note_of(sender.request) if here else None,
            subject=subject_of(sender.name, sender.request if here else None),
            traceback=None if einfo is None else _text_of(einfo),
        )

    def _record_failed(
        self, run_id: str, request: Any, exception: Any, *, may_retry: bool, **details: Any
    ) -> None:
        """Record that an attempt failed. Either the run ends, or beat starts it again.

        ``request=None`` means that the message is gone, and with it the policy.
        """
        at = self._context.now_or_host_time()
        retry_at = None
        if may_retry and request is not None:
            retry_at = retry_at_of(request, now=at)
        self._record(
            run_id,
            Status.FAILED if retry_at is None else Status.RETRYING,
            at=at,
            retry_at=retry_at,
            sent_by_beat=retry_at is not None,
            # A retry that task_always_eager executes counts in the request, but not in the row.
            retries=None if retry_at is None or _is_eager_retry(request) else request.retries,
            error=f"{type(exception).__name__}: {_text_of(exception)}",
            **details,
        )

    def _record_replacement_failed(self, awaiting: AwaitingRun, exception: Any) -> None:
        """Record the failure of a task of a replacement, whose last task then never starts."""
        # The end of the replaced attempt may not be recorded yet. One of the two outcomes finds
        # a row to change.
        for started in (True, False):
            self._record(
                awaiting.run_id,
                Status.FAILED,
                started=started,
                attempt=awaiting.attempt,
                awaited=True,
                error=f"{type(exception).__name__}: {_text_of(exception)}",
            )

    def on_retry(
        self, sender: Task, request: Any, reason: Any = None, einfo: Any = None, **_: Any
    ) -> None:
        """Receive task_retry.

        The attempt has ended, and Celery has sent the message of the next attempt.

        The main process also sends this signal, for a pool process that died. When it cancels the
        tasks of a lost broker connection, it sends the signal and no message. ``TaskGuard`` does
        not number such an attempt, and the redelivery by the broker ends it.
        """
        run_id, attempt = claimed_run_id(request), admitted_attempt(request)
        if run_id is not None and attempt is not None:
            self._record(
                run_id,
                Status.RETRYING,
                attempt=attempt,
                note=note_of(request),
                subject=subject_of(sender.name, request),
                retry_at=self.retry_time(reason),
                error=_text_of(reason),
                traceback=None if einfo is None else _text_of(einfo),
            )

    def on_revoked(self, sender: Task, request: Any, expired: bool, **details: Any) -> None:  # noqa: FBT001
        """Receive task_revoked: revoked or expired before the start, or terminated later."""
        # run_id_of does not work here, because to Celery, the request of a message that never ran
        # is "called directly".
        run_id = claimed_run_id(request)
        if run_id is None:
            return
        if expired:
            self._record_dropped(sender.name, request, Status.EXPIRED, "not started in time")
            return
        if details.get("terminated"):
            self._record(
                run_id,
                Status.REVOKED,
                error="terminated",
                awaited=is_awaited(request),
                subject=subject_of(sender.name, request),
            )
        # The run may not have started, or may be between two attempts. Only one of the two outcomes
        # finds a row to change.
        self._record_dropped(sender.name, request, Status.REVOKED, "revoked before it started")

    def _record_dropped(self, task: str, request: Any, status: Status, error: str) -> None:
        self._record(
            request.id,
            status,
            started=False,
            attempt=attempt_of(request),
            error=error,
            subject=subject_of(task, request),
        )

    def on_postrun(self, sender: Task, state: str | None, retval: Any = None, **_: Any) -> None:
        """Receive task_postrun, which comes after all other signals of an executed message."""
        request = sender.request
        try:
            self._record_other_end(sender, state, retval)
        finally:
            when_recorded = getattr(request, _WHEN_RECORDED, None)
            if callable(when_recorded):
                delattr(request, _WHEN_RECORDED)
                when_recorded()

    def _record_other_end(self, sender: Task, state: str | None, retval: Any) -> None:
        """Record an outcome that has no other signal."""
        run_id = claimed_run_id(sender.request)
        # Without an attempt, the guard refused the run.
        if run_id is None or admitted_attempt(sender.request) is None:
            return
        if state is None:
            self._record_unusual_end(sender, run_id, sys.exc_info()[1])
        elif state == SUCCESS and not hasattr(sender.request, _HAS_SUCCEEDED):
            self._record_failed_success(sender, run_id, sys.exc_info()[1])
        elif is_replaced(sender.request):
            self._record(
                run_id,
                Status.RETRYING,
                # The last task of a canvas can start after any amount of time, so beat sends no
                # further message.
                retry_at=self._context.now_or_host_time()
                if is_replaced_by_task(sender.request)
                else None,
                error="the task was replaced",
                **_end_of(sender),
            )
        elif isinstance(retval, PostponeRun):
            self._record(run_id, Status.PENDING, resend_at=retval.until, **_end_of(sender))
        elif state == "IGNORED":
            status, error = ignored_end(retval)
            self._record(run_id, status, error=error, **_end_of(sender))
        elif state == "REJECTED" and getattr(retval, "requeue", False):
            resend_at = self._context.now_or_host_time() + self._context.settings.resend_after
            self._record(run_id, Status.SENT, resend_at=resend_at, **_end_of(sender))

    def _record_failed_success(self, task: Task, run_id: str, error: BaseException | None) -> None:
        """Record the error of a hook or of the result backend, after the body has returned."""
        if not isinstance(error, Exception) or isinstance(error, (MemoryError, Reject)):
            self._record_unusual_end(task, run_id, error)
            return
        # Celery sends task_failure after this, when the request is gone.
        self._record_failed(run_id, task.request, error, may_retry=False, **_end_of(task))

    def _record_unusual_end(self, task: Task, run_id: str, error: BaseException | None) -> None:
        """Record the end of a body that raised a BaseException, for which Celery has no signal.

        In a pool process the main process reports it. A shutdown ends the whole worker.
        """
        if self._channel is not None or isinstance(error, (WorkerShutdown, WorkerTerminate)):
            return
        if error is None or isinstance(error, Exception) or _is_requeued(task, error):
            return
        if type(error).__name__ == "GreenletExit":
            text = f"{type(error).__name__}: {_text_of(error)}"
            self._record(run_id, Status.REVOKED, error=text, **_end_of(task))
        else:
            self._record_failed(run_id, task.request, error, may_retry=True, **_end_of(task))

    def retry_time(self, reason: Any) -> datetime:
        """Return when Celery's retry starts; ``reason`` is its Retry exception."""
        when, now = getattr(reason, "when", None), self._context.now_or_host_time()
        if isinstance(when, datetime):
            aware: datetime = maybe_make_aware(when, self._context.app.timezone)
            return now + (aware - self._host_now())
        return now + timedelta(seconds=when or 0)

    def _host_now(self) -> datetime:
        return datetime.now(UTC)

    def record_rejected(self, request: Any, error: Reject) -> None:
        """Record that the task rejected its message, which the broker does not deliver again."""
        self._record_failed(
            request.id,
            request,
            error,
            may_retry=False,
            attempt=admitted_attempt(request),
            awaited=is_awaited(request),
            subject=subject_of(request.task, request),
        )

    def record_stored_result(self, run_id: str, *, attempt: int) -> None:
        """Record that an attempt succeeded whose process died after its result was stored."""
        self._record(
            run_id,
            Status.SUCCEEDED,
            attempt=attempt,
            error="its pool process died after the result was stored",
            # The header that says so is lost. True costs one more query.
            awaited=True,
        )

    def on_process_init(self, **_: Any) -> None:
        """Receive worker_process_init: leave what this process does not write to the main one."""
        if self._channel is not None:
            self._channel.close_receiver()
            self._context.database.keep_connection()
        self._recorder = self._new_recorder(is_pool_process=self._channel is not None)

    def on_unknown(self, id: str, name: str, message: Any = None, **_: Any) -> None:  # noqa: A002 - Celery's name
        """Receive task_unknown. The worker dropped the message of a task that is not registered."""
        if is_run_id(id):
            attempt, error = attempt_of(message), f"NotRegistered: {name}"
            subject = subject_of(name, message)
            self._record(
                id,
                Status.FAILED,
                started=False,
                attempt=attempt,
                error=error,
                subject=subject,
            )


def not_awaited(task: str) -> str:
    """Return the error of a run whose body is a coroutine that nothing has awaited."""
    return (
        f"the task {task!r} is an `async def` function, which this worker calls and never awaits:"
        " define the task with `def`, and call asyncio.run() in it"
    )


def ignored_end(exception: object) -> tuple[Status, str]:
    """Return the status and the stored reason of an attempt that raised Celery's Ignore."""
    if isinstance(exception, SkipRun):
        reason = _text_of(exception)[:REASON_LENGTH].strip()
        return Status.SKIPPED, reason or "the task raised SkipRun"
    return Status.SUCCEEDED, "the task raised Ignore"


def _text_of(value: object) -> str:
    """Return the text of an object of the application, whose code can raise anything."""
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001
        return f"<{type(value).__name__} without text: {type(error).__name__}>"


def _ended_run(request: Any) -> str | None:
    """Return the run id of an executed task; also of a retry that ``task_always_eager`` executes.

    That retry is a part of its attempt. Celery then raises Retry in the attempt, which has ended.
    """
    return claimed_run_id(request) if request.is_eager else run_id_of(request)


def _ended_attempt(request: Any) -> int | None:
    return attempt_of(request) if _is_eager_retry(request) else admitted_attempt(request)


def _end_of(task: Task) -> dict[str, Any]:
    """Return the fields of the outcome of the attempt that ``task`` executes."""
    request = task.request
    return {
        "attempt": _ended_attempt(request),
        "awaited": is_awaited(request),
        "note": note_of(request),
        "subject": subject_of(task.name, request),
    }


def _is_eager_retry(request: Any) -> bool:
    return request.is_eager and admitted_attempt(request) is None


def _is_requeued(task: Task, exception: Any) -> bool:
    """Return whether Celery requeues the message of a failed attempt.

    Celery does so at a hard time limit, but sends task_failure. ``pool_check`` ends the attempt
    when its process is dead; the signal comes earlier.
    """
    # gevent's Timeout is how its pool raises the time limit in the body.
    exceeded = isinstance(exception, TimeLimitExceeded) or type(exception).__name__ == "Timeout"
    acks = getattr(task, "acks_on_timeout", None)
    if acks is None:
        # Celery before 5.7 has one setting for failures and time limits.
        acks = getattr(task, "acks_on_failure_or_timeout", True)
    return exceeded and bool(task.acks_late) and not acks
