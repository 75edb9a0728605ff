"""Admission of messages to a worker: the guard around each task's body.

``guard`` wraps ``run`` of a task before the pool forks. A task that no schedule sent has no run id
and passes through untouched.

When the guard cannot reach the database it decides nothing: the message is put off, by a copy with
the same id and the same count of retries, and the original is acknowledged. A copy too many is a
duplicate, and harmless. Should the commit have taken place, and only its answer be lost, the run is
marked as running here, and nobody runs it: it is disowned as soon as the database answers.
"""

import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn

from celery.app.task import Task
from celery.exceptions import Ignore, Reject

from celery_dynbeat.broker.headers import (
    HEADER_EXPIRES_AT,
    HEADER_PUT_OFF_AT,
    admit,
    admitted_attempt,
    attempt_of,
    claimed_run_id,
    instant_in,
    run_id_of,
)
from celery_dynbeat.client import Context
from celery_dynbeat.common.events import Event
from celery_dynbeat.runtime.node_timeout import longest_silence
from celery_dynbeat.store import attempts
from celery_dynbeat.worker.pool_slots import PoolSlots
from celery_dynbeat.worker.signal_handlers import Outcomes
from celery_dynbeat.worker.start_decision import Decision, Delivery, Verdict, is_process, judge
from celery_dynbeat.worker.task_request import RunDeferred, RunRefused, guarded_request

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

#: The guard could not reach the database: look again after this many seconds.
DATABASE_AWAY_PAUSE = 10
_lock = threading.Lock()


class Admission:
    """The guard of one worker node; its pool processes inherit it when they are forked.

    They write what they execute in ``slots``.
    """

    def __init__(
        self,
        context: Context,
        hostname: str,
        outcomes: Outcomes,
        *,
        slots: PoolSlots | None = None,
    ) -> None:
        self._context = context
        self._slots = slots
        self._hostname = hostname
        self._outcomes = outcomes
        self._main_pid = os.getpid()
        # How many messages of each run this process has in hand, deciding or running.
        self._held: Counter[str] = Counter()

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
            if admitted_attempt(task.request) is not None:
                # A __call__ of the task's own that runs its body again.
                return body(*args, **kwargs)
            with self._holding(run_id):
                self._admit(task, run_id)
                return body(*args, **kwargs)

        guarded.dynbeat_guarded_by = self  # type: ignore[attr-defined]
        guarded.dynbeat_body = body  # type: ignore[attr-defined]
        task.run = guarded
        task.Request = guarded_request(task.Request, self._outcomes.cannot_end)
        self._number_retries(task)

    def _number_retries(self, task: Task) -> None:
        """Let the retry that Celery sends for a dead pool process follow the attempt that died.

        The main process has the message of that attempt, whose header names the one before.
        """
        sign = getattr(task.signature_from_request, "dynbeat_body", task.signature_from_request)

        @wraps(sign)
        def signature_from_request(request: Any = None, *args: Any, **options: Any) -> Any:
            run_id = None if request is None else claimed_run_id(request)
            # Only the main process has a request that was never executed.
            if run_id is not None and request.called_directly and options.get("retries"):
                admit(request, self._attempt_that_died(run_id) or (attempt_of(request) or 0) + 1)
            return sign(request, *args, **options)

        signature_from_request.dynbeat_body = sign  # type: ignore[attr-defined]
        task.signature_from_request = signature_from_request

    def _attempt_that_died(self, run_id: str) -> int | None:
        """Return the run's attempt if it was this node's and its process is gone, else None."""
        try:
            found = self._context.database.read(
                lambda session: attempts.begun_by(session, run_id=run_id, worker=self._hostname)
            )
        # Whatever the driver raises: the message gives the usual number.
        except Exception as error:  # noqa: BLE001
            logger.warning("attempt of run %s not read: %s", run_id, type(error).__name__)
            return None
        if found is None or self._executes(run_id, found.worker_pid):
            return None
        return int(found.attempt)

    def _executes(self, run_id: str, pid: int | None) -> bool:
        if pid == os.getpid():
            return self.holds(run_id)
        return pid is not None and is_process(pid)

    def holds(self, run_id: str) -> bool:
        """Return whether this process executes the body of a run, or decides about its message."""
        return self._held[run_id] > 0

    @contextmanager
    def _holding(self, run_id: str) -> Iterator[None]:
        # Held before it is decided: of two threads with one run, the second must see the first.
        with _lock:
            self._held[run_id] += 1
        if self._slots is not None:
            self._slots.begin(run_id)
        try:
            yield
        finally:
            if self._slots is not None:
                self._slots.end()
            with _lock:
                self._held[run_id] -= 1
                if not self._held[run_id]:
                    del self._held[run_id]

    def _is_elsewhere(self, run_id: str) -> bool:
        """Return whether this process has the run in hand beside the message that it looks at."""
        return self._held[run_id] > 1 or self._outcomes.has_buffered(run_id)

    def _admit(self, task: Task, run_id: str) -> None:
        """Return when the run may start. Raises Ignore when it may not, or not yet."""
        request, began_at = task.request, None
        try:
            began_at = self._context.clock.now()
            decision = self._judge(request, run_id, began_at)
        # The database is away, or whatever else: what is not decided is not started.
        except Exception as error:  # noqa: BLE001
            if began_at is not None and self._held[run_id] == 1:
                # Perhaps it was, and only the answer was lost.
                self._outcomes.undo_start(run_id, began_at=began_at)
            self._put_off(task, DATABASE_AWAY_PAUSE, f"not decided: {type(error).__name__}")
        if decision.verdict is Verdict.NOTED:
            self._drop_noted(run_id)
        if decision.verdict is Verdict.REFUSE:
            logger.info(
                "run %s refused: cancelled, or started before",
                run_id,
                extra={"event": Event.RUN_REFUSED, "run_id": run_id},
            )
            msg = f"run {run_id} was cancelled, or was started before"
            # To monitors an unfinished run is what the other message makes of it.
            raise Ignore(msg) if decision.unfinished else RunRefused(msg)
        admit(request, decision.attempt)

    def _judge(self, request: Any, run_id: str, now: datetime) -> Decision:
        info = request.delivery_info or {}
        delivery = Delivery(
            run_id=run_id,
            retries=request.retries or 0,
            after=attempt_of(request),
            redelivered=bool(info.get("redelivered")),
            put_off=HEADER_PUT_OFF_AT in (request.headers or {}),
            expires_at=instant_in(request, HEADER_EXPIRES_AT),
            worker=self._hostname,
            main_pid=self._main_pid,
            pid=os.getpid(),
            runs_here=lambda: self._is_elsewhere(run_id),
        )
        timeout = longest_silence(self._context.clock, self._context.settings)
        # Each transition is one conditional UPDATE, and no lock is held between two of them.
        return self._context.database.run_autocommit(
            lambda session: judge(session, delivery, now=now, timeout=timeout),
        )

    def _drop_noted(self, run_id: str) -> NoReturn:
        msg = f"run {run_id} was delivered again while it runs: it is sent again if its worker dies"
        logger.info(msg, extra={"event": Event.RUN_REDELIVERED, "run_id": run_id})
        raise Ignore(msg)

    def _put_off(self, task: Task, seconds: float, reason: str) -> None:
        request = task.request
        logger.warning(
            "run %s put off by %s s: %s",
            request.id,
            seconds,
            reason,
            extra={"event": Event.RUN_DEFERRED, "run_id": request.id},
        )
        headers = {
            **(request.headers or {}),
            HEADER_PUT_OFF_AT: self._context.present().isoformat(),
        }
        copy = task.signature_from_request(
            request,
            countdown=seconds,
            retries=request.retries,
            headers=headers,
        )
        try:
            # The message again, not a new call: an apply_async of the task's own might not send it,
            # or send it without the headers that make it this run's.
            Task.apply_async(task, copy.args, copy.kwargs, **copy.options)
        except Exception as error:
            # The broker is away too. With acks_late it delivers again; else the sweep does.
            raise Reject(error, requeue=True) from error
        msg = f"run {request.id} put off: {reason}"
        raise RunDeferred(msg)
