"""Celery worker's adapter: the guard around each task's body and the recorder behind it.

``Dynbeat(app)`` adds DynbeatStep to the worker's blueprint. It wraps ``run`` of every task before
the pool forks, and listens to Celery's own signals for the outcomes. A task that no schedule sent
has no run id and passes through untouched.

When the guard cannot reach the database it decides nothing: the message is put off, by a copy with
the same id and the same count of retries, and the original is acknowledged. A copy too many is a
duplicate, and harmless.
"""

import logging
import os
import threading
from datetime import UTC, datetime
from functools import wraps
from typing import TYPE_CHECKING, Any

from celery import bootsteps, signals
from celery.app.task import Task
from celery.exceptions import Ignore, Reject
from sqlalchemy.exc import SQLAlchemyError

from celery_dynbeat import ids
from celery_dynbeat.client import Context, dynbeat_of
from celery_dynbeat.db.models import NodeKind, Status
from celery_dynbeat.events import Event
from celery_dynbeat.guard import Delivery, Verdict, judge, process_name
from celery_dynbeat.headers import (
    HEADER_PUT_OFF_AT,
    HEADER_PUT_OFF_BY,
    claimed_run_id,
    is_awaited,
    run_id_of,
)
from celery_dynbeat.heartbeat import Heartbeat
from celery_dynbeat.recorder import Outcome, Recorder

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

#: The guard could not reach the database: look again after this many seconds.
DATABASE_AWAY_PAUSE = 10
STOP_WITHIN = 5.0


class WorkerSide:
    """What one worker node holds; its pool processes inherit it when they are forked."""

    def __init__(self, context: Context, hostname: str) -> None:
        self.context = context
        self.hostname = hostname
        self.main_pid = os.getpid()
        self.recorder = self._new_recorder()
        self._in_progress: set[str] = set()

    def _new_recorder(self) -> Recorder:
        context = self.context
        return Recorder(
            context.database,
            settings=context.settings,
            # Looked up when it is used: what the notifier connects belongs to the process.
            announce=lambda session: self.context.notifier.announce(session),  # noqa: PLW0108
        )

    def guard(self, task: Task) -> None:
        """Wrap the body of ``task``, once."""
        run: Callable[..., Any] = task.run
        if getattr(run, "dynbeat_guarded_by", None) is self:
            return
        body = getattr(run, "dynbeat_body", run)

        @wraps(body)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            run_id = run_id_of(task.request)
            if run_id is None:
                return body(*args, **kwargs)
            if getattr(task.request, "dynbeat_admitted", False):
                # A __call__ of the task's own that runs its body again.
                return body(*args, **kwargs)
            self._admit(task, run_id)
            task.request.dynbeat_admitted = True
            self._in_progress.add(run_id)
            try:
                return body(*args, **kwargs)
            finally:
                self._in_progress.discard(run_id)

        guarded.dynbeat_guarded_by = self  # type: ignore[attr-defined]
        guarded.dynbeat_body = body  # type: ignore[attr-defined]
        task.run = guarded

    def _admit(self, task: Task, run_id: str) -> None:
        """Return when the run may start. Raises Ignore when it may not, or not yet."""
        request = task.request
        try:
            verdict = self._judge(request, run_id)
        # The database is away, or whatever else: what is not decided is not started.
        except Exception as error:  # noqa: BLE001
            self._put_off(task, DATABASE_AWAY_PAUSE, f"not decided: {type(error).__name__}")
        if verdict is Verdict.PUT_OFF:
            timeout = self.context.settings.node_timeout.total_seconds()
            self._put_off(task, timeout, "another worker may still be running it")
        if verdict is Verdict.REFUSE:
            logger.info(
                "run %s refused: cancelled, or started before",
                run_id,
                extra={"event": Event.RUN_REFUSED, "run_id": run_id},
            )
            msg = f"run {run_id} was cancelled, or was started before"
            raise Ignore(msg)

    def _judge(self, request: Any, run_id: str) -> Verdict:
        info = request.delivery_info or {}
        put_off_at = (request.headers or {}).get(HEADER_PUT_OFF_AT)
        delivery = Delivery(
            run_id=run_id,
            retries=request.retries or 0,
            redelivered=bool(info.get("redelivered")),
            put_off_at=None if put_off_at is None else datetime.fromisoformat(put_off_at),
            put_off_by=(request.headers or {}).get(HEADER_PUT_OFF_BY),
            worker=self.hostname,
            main_pid=self.main_pid,
            pid=os.getpid(),
            runs_here=lambda: run_id in self._in_progress,
        )
        now = self.context.clock.now()
        timeout = self.context.settings.node_timeout
        return self.context.database.run(
            lambda session: judge(session, delivery, now=now, timeout=timeout),
        )

    def _put_off(self, task: Task, seconds: float, reason: str) -> None:
        request = task.request
        logger.warning(
            "run %s put off by %s s: %s",
            request.id,
            seconds,
            reason,
            extra={"event": Event.RUN_PUT_OFF, "run_id": request.id},
        )
        headers = {
            **(request.headers or {}),
            HEADER_PUT_OFF_AT: self._now().isoformat(),
            HEADER_PUT_OFF_BY: process_name(self.hostname, os.getpid()),
        }
        copy = task.signature_from_request(
            request,
            countdown=seconds,
            retries=request.retries,
            headers=headers,
        )
        try:
            copy.apply_async()
        except Exception as error:
            # The broker is away too. With acks_late it delivers again; else the sweep does.
            raise Reject(error, requeue=True) from error
        msg = f"run {request.id} put off: {reason}"
        raise Ignore(msg)

    def _now(self) -> datetime:
        try:
            return self.context.clock.now()
        except SQLAlchemyError:
            return datetime.now(UTC)

    def record(self, run_id: str, status: Status, **details: Any) -> None:
        """Record how the attempt ended that this node ran."""
        details.setdefault("retries", None)
        outcome = Outcome(
            run_id=run_id,
            worker=self.hostname,
            status=status,
            at=self._now(),
            **details,
        )
        self.recorder.record(outcome)

    def on_success(self, sender: Task, **_: Any) -> None:
        """Receive task_success, in the process that ran the body."""
        run_id = run_id_of(sender.request)
        if run_id is not None:
            self.record(
                run_id,
                Status.SUCCEEDED,
                retries=sender.request.retries or 0,
                awaited=is_awaited(sender.request),
            )

    def on_failure(self, sender: Task, task_id: str, exception: Any, einfo: Any, **_: Any) -> None:
        """Receive task_failure: in the process that ran the body, or for one that is gone."""
        if not ids.is_run_id(task_id):
            return
        here = run_id_of(sender.request) == task_id
        self.record(
            task_id,
            Status.FAILED,
            retries=(sender.request.retries or 0) if here else None,
            awaited=here and is_awaited(sender.request),
            error=f"{type(exception).__name__}: {exception}",
            traceback=str(einfo) if einfo is not None else None,
        )

    def on_retry(
        self, sender: Task, request: Any, reason: Any, einfo: Any = None, **_: Any
    ) -> None:
        """Receive task_retry: the attempt ended, Celery has sent the next."""
        del sender
        run_id = run_id_of(request)
        if run_id is not None:
            self.record(
                run_id,
                Status.RETRYING,
                retries=request.retries or 0,
                error=str(reason),
                traceback=str(einfo) if einfo is not None else None,
            )

    def on_revoked(self, sender: Task, request: Any, expired: bool, **details: Any) -> None:  # noqa: FBT001
        """Receive task_revoked: revoked or expired before the start, or terminated later."""
        del sender
        # Not run_id_of: to Celery, the request of a message that never ran is "called directly".
        run_id = claimed_run_id(request)
        if run_id is None:
            return
        if expired:
            self.record(run_id, Status.EXPIRED, started=False, error="not started in time")
            return
        if details.get("terminated"):
            self.record(run_id, Status.REVOKED, error="terminated", awaited=is_awaited(request))
        # Before its start, or between the two: whichever of these finds the run ends it.
        self.record(run_id, Status.REVOKED, started=False, error="revoked before it started")

    def on_postrun(self, sender: Task, state: str, retval: Any = None, **_: Any) -> None:
        """Receive task_postrun, for the ends that have no signal of their own."""
        run_id = run_id_of(sender.request)
        # A run that the guard refused was never begun here, and finish() does not touch it.
        if run_id is None or not getattr(sender.request, "dynbeat_admitted", False):
            return
        retries = sender.request.retries or 0
        if state == "IGNORED":
            self.record(
                run_id,
                Status.SUCCEEDED,
                retries=retries,
                error="the task raised Ignore",
                awaited=is_awaited(sender.request),
            )
        elif state == "REJECTED" and getattr(retval, "requeue", False):
            resend_at = self._now() + self.context.settings.resend_after
            self.record(run_id, Status.SENT, retries=retries, resend_at=resend_at)

    def on_process_init(self, **_: Any) -> None:
        """Receive worker_process_init: what the parent keeps is the parent's to write."""
        self.recorder = self._new_recorder()

    def on_process_shutdown(self, **_: Any) -> None:
        """Receive worker_process_shutdown."""
        self.recorder.close()

    def on_unknown(self, id: str, name: str, **_: Any) -> None:  # noqa: A002 - Celery's name
        """Receive task_unknown: the message was dropped because no such task is registered."""
        if ids.is_run_id(id):
            self.record(id, Status.FAILED, started=False, error=f"NotRegistered: {name}")


class DynbeatStep(bootsteps.StartStopStep):
    """A step of the worker's blueprint: created before the pool forks, started after it."""

    # After all that forks: what this step opens should not be open in a child.
    requires = ("celery.worker.components:Pool", "celery.worker.components:Beat")

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self.side = WorkerSide(dynbeat_of(parent.app).context, parent.hostname)
        self._worker = parent
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        for task in parent.app.tasks.values():
            self.side.guard(task)
        self._connect(connect=True)

    def start(self, parent: Any) -> None:
        """Register the node, and keep its row fresh from a thread."""
        context = self.side.context
        try:
            context.prepare()
        except SQLAlchemyError as error:
            # It is away, not wrong: until it is back the guard puts every run off.
            logger.warning("the database is away: %s", type(error).__name__)
        heartbeat = Heartbeat(
            database=context.database,
            clock=context.clock,
            kind=NodeKind.WORKER,
            name=parent.hostname,
            timeout=context.settings.node_timeout,
        )
        heartbeat.beat()
        self._thread = threading.Thread(
            target=self._live,
            args=(heartbeat,),
            name="dynbeat-heartbeat",
            daemon=True,
        )
        self._thread.start()

    def _end(self, sender: Any, **_: Any) -> None:
        """Receive worker_shutdown: say good-bye and write what outcomes are kept.

        Not ``stop``: steps stop in the reverse order of their start, this one before the pool,
        whose last tasks have yet to end.
        """
        if sender is not self._worker or self._stopping.is_set():
            return
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP_WITHIN)
        self._connect(connect=False)
        self.side.recorder.close()

    def _live(self, heartbeat: Heartbeat) -> None:
        while not self._stopping.wait(heartbeat.every.total_seconds()):
            heartbeat.beat()
        heartbeat.leave()

    def _connect(self, *, connect: bool) -> None:
        side = self.side
        for signal, receiver in (
            (signals.task_success, side.on_success),
            (signals.task_failure, side.on_failure),
            (signals.task_retry, side.on_retry),
            (signals.task_revoked, side.on_revoked),
            (signals.task_postrun, side.on_postrun),
            (signals.task_unknown, side.on_unknown),
            (signals.worker_process_init, side.on_process_init),
            (signals.worker_process_shutdown, side.on_process_shutdown),
            (signals.worker_shutdown, self._end),
        ):
            if connect:
                signal.connect(receiver, weak=False)
            else:
                signal.disconnect(receiver)
