"""The guard around the body of each task, which lets one message start a run.

``TaskGuard.wrap`` replaces ``run`` of a task before the pool forks. The message of a task that no
schedule sent has no run id; the guard calls the body and does nothing else.

    the run may start                    -> call the body (``start_decision``)
    the run must not start               -> raise Ignore: Celery acknowledges the message
    the database is unreachable          -> defer: publish a copy with the same id and the same
                                            count of retries, and acknowledge the original
    the broker is unreachable, too       -> raise Reject with requeue

A second copy is a harmless duplicate. If the start was committed and only the reply was lost, the
run is marked as ``running`` and no process executes it. The recorder undoes this start as soon as
the database answers.
"""

import logging
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial, wraps
from typing import Any, NoReturn

from billiard.einfo import ExceptionWithTraceback
from celery import Celery
from celery.app.task import Task
from celery.exceptions import Ignore, Reject
from kombu import Queue
from kombu.utils.imports import symbol_by_name

from celery_dynbeat.broker import (
    HEADER_DEFERRALS,
    HEADER_DEFERRED_AT,
    HEADER_EXPIRES_AT,
    HEADER_FIRE_AT,
    HEADER_REPLACES,
    HEADER_SENT_AT,
    admit,
    admitted_attempt,
    attempt_of,
    claimed_run_id,
    deferrals_of,
    headers_of,
    instant_in,
    next_attempt_of,
    retries_of,
    run_id_of,
    schedule_of,
    wants_pings,
)
from celery_dynbeat.process.context import Context
from celery_dynbeat.process.heartbeat import effective_node_timeout
from celery_dynbeat.store.runs import attempts
from celery_dynbeat.telemetry import emit, events, has_listeners
from celery_dynbeat.worker import PoolSlots, PostponeRun, SkipRun
from celery_dynbeat.worker.outcome_recorder import is_permanent
from celery_dynbeat.worker.replacement import carry_run
from celery_dynbeat.worker.signal_handlers import (
    OutcomeSignals,
    call_when_recorded,
    note_began,
    reporting,
)
from celery_dynbeat.worker.start_decision import (
    Delivery,
    StartAction,
    StartDecision,
    decide_start,
    process_exists,
    usual_start,
)

logger = logging.getLogger(__name__)

#: The delay of the copy that the guard publishes while the database is unreachable.
DEFER_SECONDS = 10
#: RabbitMQ's delayed delivery puts 28 bits in front of the routing key.
_DELAY = re.compile(r"(?:[01]\.){28}")
_lock = threading.Lock()


class RefusedMessage(Ignore):
    """The run of this message has ended or was cancelled; the worker drops the message."""


class DeferredMessage(Ignore):
    """The guard published a copy of this message with a delay."""


def guarded_request(
    base: Any, on_not_terminated: Callable[[Any, str, str], None], *, has_processes: bool
) -> type:
    """Return a subclass of the request class ``base``, which is a class or its path.

    It is for the main process. Celery sends ``task-started`` before the guard decides, and no event
    when the guard raises Ignore. Monitors would show a refused or deferred run as started
    permanently. The request therefore sends one more event, through the worker's own event
    dispatcher and with its settings:

        RefusedMessage  -> task-revoked     a monitor that has ``succeeded`` or ``failed`` keeps it
        SkipRun, in a run -> task-revoked
        DeferredMessage -> task-retried     the next task-received follows
        PostponeRun, in a run -> task-retried

    A pool that cannot terminate a task (threads) raises NotImplementedError in the remote control
    command. For a run, the request reports this to the recorder instead.

    ``on_not_terminated`` receives the request of a run that could not be terminated, the run's id,
    and the name of the pool. ``has_processes`` says that the pool has processes. Otherwise, the
    ``worker_pid`` of a request may be the id of a greenlet.
    """
    celery_request: Any = symbol_by_name(base)
    celery_request = getattr(celery_request, "dynbeat_base", celery_request)

    class GuardedRequest(celery_request):
        dynbeat_base = celery_request

        @property
        def _pool_pid(self) -> int | None:
            return self.worker_pid if has_processes else None

        def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
            """Handle an exception that a pool process raised, including Ignore and Reject."""
            with reporting(self._context, pid=self._pool_pid):
                result = super().on_failure(exc_info, *args, **kwargs)
            _send_event(self, exc_info.exception, is_run=claimed_run_id(self._context) is not None)
            return result

        def on_timeout(self, *args: Any, **kwargs: Any) -> Any:
            """Handle a time limit that the pool enforces."""
            with reporting(self._context, pid=self._pool_pid):
                return super().on_timeout(*args, **kwargs)

        def terminate(self, pool: Any, signal: Any = None) -> None:
            """Terminate the task, if the pool can."""
            try:
                super().terminate(pool, signal)
            except NotImplementedError:
                run_id = claimed_run_id(self._context)
                if run_id is None:
                    raise
                pool_name = type(pool).__module__.rpartition(".")[2]
                on_not_terminated(self._context, run_id, pool_name)

    return GuardedRequest


def _send_event(request: Any, exception: Any, *, is_run: bool) -> None:
    if isinstance(exception, ExceptionWithTraceback):
        exception = exception.exc
    if isinstance(exception, RefusedMessage) or (is_run and isinstance(exception, SkipRun)):
        request.send_event("task-revoked", terminated=False, signum=None, expired=False)
    elif isinstance(exception, DeferredMessage) or (is_run and isinstance(exception, PostponeRun)):
        request.send_event("task-retried", exception=str(exception), traceback=None)


class TaskGuard:
    """The guard of one worker node. Its pool processes inherit it when they are forked.

    Each pool process writes the run that it executes to ``slots``. ``main_pid`` is the id of the
    main process, or None for this process.
    """

    def __init__(
        self,
        context: Context,
        hostname: str,
        outcomes: OutcomeSignals,
        *,
        slots: PoolSlots | None = None,
        main_pid: int | None = None,
    ) -> None:
        self._context = context
        self._slots = slots
        self._hostname = hostname
        self._outcomes = outcomes
        self._main_pid = main_pid or os.getpid()
        # The messages that this process decides about, or whose outcome is not recorded, by run.
        self._handled: Counter[str] = Counter()

    def wrap(self, task: Task) -> None:
        """Wrap the body of ``task``. A second call for the same task changes nothing."""
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
                # The task's own __call__ runs the body again.
                return body(*args, **kwargs)
            with self._handling_until_start(run_id):
                self._require_start(task, run_id)
            # The hooks of the task and the result backend may need any time after the body.
            call_when_recorded(task.request, partial(self._stop_handling, run_id))
            return body(*args, **kwargs)

        guarded.dynbeat_guarded_by = self  # type: ignore[attr-defined]
        guarded.dynbeat_body = body  # type: ignore[attr-defined]
        task.run = guarded
        task.Request = guarded_request(
            task.Request,
            self._outcomes.record_not_terminated,
            has_processes=self._slots is not None,
        )
        self._number_retries(task)
        carry_run(task)

    def _number_retries(self, task: Task) -> None:
        """Make the retry that Celery sends for a dead pool process follow the dead attempt.

        The main process has only the message of that attempt, whose header names the attempt
        before it.
        """
        sign = getattr(task.signature_from_request, "dynbeat_body", task.signature_from_request)

        @wraps(sign)
        def signature_from_request(request: Any = None, *args: Any, **options: Any) -> Any:
            run_id = None if request is None else claimed_run_id(request)
            # Only the main process has a request that was never executed.
            if run_id is not None and request.called_directly and options.get("retries"):
                admit(request, self._dead_attempt(run_id) or next_attempt_of(request))
            return sign(request, *args, **options)

        signature_from_request.dynbeat_body = sign  # type: ignore[attr-defined]
        task.signature_from_request = signature_from_request

    def _dead_attempt(self, run_id: str) -> int | None:
        """Return the run's attempt if this node started it and its process is dead, else None."""
        try:
            last = self._context.database.read(
                lambda session: attempts.owned_attempt(
                    session, run_id=run_id, worker=self._hostname
                )
            )
        # The caller then uses the number that follows from the message.
        except Exception as error:  # noqa: BLE001
            logger.warning("attempt of run %s not read: %s", run_id, type(error).__name__)
            return None
        if last is None or self._executes(run_id, last.worker_pid):
            return None
        return int(last.attempt)

    def _executes(self, run_id: str, pid: int | None) -> bool:
        if pid == os.getpid():
            return self.is_handling(run_id)
        return pid is not None and process_exists(pid)

    def is_handling(self, run_id: str) -> bool:
        """Return whether this process decides about a message of the run, or has not recorded it.

        From the decision to start a run until its outcome is recorded or buffered.
        """
        return self._handled[run_id] > 0

    @contextmanager
    def _handling_until_start(self, run_id: str) -> Iterator[None]:
        """Handle a message of the run; stop if the block raises."""
        # Before the decision: of two threads with the same run, the second must see the first.
        with _lock:
            self._handled[run_id] += 1
        if self._slots is not None:
            self._slots.begin(run_id)
        try:
            yield
        except BaseException:
            self._stop_handling(run_id)
            raise

    def _stop_handling(self, run_id: str) -> None:
        if self._slots is not None:
            self._slots.end()
        with _lock:
            self._handled[run_id] -= 1
            if not self._handled[run_id]:
                del self._handled[run_id]

    def _handles_another_message(self, run_id: str) -> bool:
        """Return whether this process handles another message of the run, or has its outcome."""
        return self._handled[run_id] > 1 or self._outcomes.has_outcome(run_id)

    def _require_start(self, task: Task, run_id: str) -> None:
        """Return when the run may start. Raises Ignore when it must not start, or not yet."""
        request, began_at = task.request, None
        try:
            began_at = self._context.clock.now()
            decision = self._decide(task, run_id, began_at)
        # The database is unreachable, or the guard failed: without a decision no run starts.
        except Exception as error:  # noqa: BLE001
            reason = f"not decided: {type(error).__name__}"
            if is_permanent(error):
                # A later delivery raises it again. Beat resends the run after dynbeat_resend_after.
                self._refuse(task, run_id, _undecided(reason))
            if began_at is not None and self._handled[run_id] == 1:
                # The start may be committed, and only the reply lost.
                self._outcomes.undo_start(task, run_id, began_at=began_at)
            self._defer(task, run_id, DEFER_SECONDS, reason)
        if decision.action is not StartAction.START:
            self._refuse(task, run_id, decision)
        admit(request, decision.attempt)
        emit_started(task, request, run_id=run_id, attempt=decision.attempt or 0, now=began_at)

    def _decide(self, task: Task, run_id: str, now: datetime) -> StartDecision:
        request = task.request
        info, headers = request.delivery_info or {}, headers_of(request)
        retries = retries_of(request)
        if retries is None:
            reason = "its count of retries is malformed"
            return StartDecision(StartAction.REFUSE, unfinished=True, reason=reason)
        delivery = Delivery(
            run_id=run_id,
            retries=retries,
            expected_attempt=attempt_of(request),
            redelivered=bool(info.get("redelivered")) or HEADER_DEFERRED_AT in headers,
            acks_late=bool(task.acks_late),
            replaces=HEADER_REPLACES in headers,
            expires_at=instant_in(request, HEADER_EXPIRES_AT),
            worker=self._hostname,
            main_pid=self._main_pid,
            pid=os.getpid(),
            executes_here=lambda: self._handles_another_message(run_id),
        )
        # Each transition is one conditional UPDATE, and no lock is held between two of them.
        database = self._context.database
        usual = usual_start(delivery, now=now)
        if usual is not None and database.execute(*attempts.starting(usual, now=now)) == 1:
            return StartDecision(StartAction.START, usual.expected_attempt + 1)
        timeout = effective_node_timeout(self._context.clock, self._context.settings)
        return database.run_autocommit(
            lambda session: decide_start(session, delivery, now=now, timeout=timeout)
        )

    def _refuse(self, task: Task, run_id: str, decision: StartDecision) -> NoReturn:
        owner, name = schedule_of(task.request)
        emit(
            events.RunRefused(
                run_id=run_id,
                owner=owner,
                schedule=name,
                task=task.name,
                attempt=next_attempt_of(task.request),
                reason=decision.reason,
                duplicate=decision.duplicate,
                redelivered=decision.action is StartAction.NOTE_REDELIVERY,
                undecided=decision.undecided,
            )
        )
        msg = f"run {run_id} does not start: {decision.reason}"
        # Of an unfinished run another message sends the events that monitors show.
        raise Ignore(msg) if decision.unfinished else RefusedMessage(msg)

    def _defer(self, task: Task, run_id: str, seconds: float, reason: str) -> NoReturn:
        request = task.request
        if deferrals_of(request) * seconds >= self._context.settings.resend_after.total_seconds():
            # Beat sends the run again as soon as the database is reachable.
            self._refuse(task, run_id, _undecided(f"deferred for too long, {reason}"))
        headers = {
            **headers_of(request),
            HEADER_DEFERRED_AT: self._context.now_or_host_time().isoformat(),
            HEADER_DEFERRALS: deferrals_of(request) + 1,
        }
        copy = task.signature_from_request(
            request,
            countdown=seconds,
            retries=request.retries,
            headers=headers,
        )
        try:
            # task.apply_async may be overridden. An override may not send the message, or may send
            # it without the headers that assign it to this run.
            Task.apply_async(task, copy.args, copy.kwargs, **copy.options)
        except Exception as error:
            # The broker is also unreachable. With acks_late it delivers the message again. If
            # acks_late is off, the sweep sends the run again.
            logger.warning("run %s not deferred: %s", run_id, type(error).__name__)
            raise Reject(error, requeue=True) from error
        owner, name = schedule_of(request)
        emit(
            events.RunDeferred(
                run_id=run_id,
                owner=owner,
                schedule=name,
                task=task.name,
                attempt=next_attempt_of(request),
                seconds=seconds,
                reason=reason,
            )
        )
        msg = f"run {run_id} deferred: {reason}"
        raise DeferredMessage(msg)


def _undecided(reason: str) -> StartDecision:
    return StartDecision(StartAction.REFUSE, unfinished=True, reason=reason, undecided=True)


def emit_started(task: Task, request: Any, *, run_id: str, attempt: int, now: datetime) -> None:
    """Note that the body starts now, and report it."""
    note_began(request)
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
        queue=delivered_queue(request.delivery_info or {}, consumed_queues(task.app)),
        fire_at=instant_in(request, HEADER_FIRE_AT),
        attempt=attempt,
        waited=waited,
        pings=wants_pings(request),
    )
    emit(event)


def consumed_queues(app: Celery) -> list[Queue]:
    """Return the queues that the worker of ``app`` consumes now."""
    # A copy: remote control adds and cancels queues in another thread.
    return list(app.amqp.queues.consume_from.values())


def queue_name(queue: Any) -> str:
    """Return the name of a queue, as a node row and an event show it."""
    # A broadcast queue has another name in each worker.
    return str(queue.alias or queue.name)


def delivered_queue(delivery_info: Mapping[str, Any], queues: Iterable[Queue]) -> str | None:
    """Return the name of one of ``queues``, which the worker consumes, or None if it is unclear.

    Celery passes on the exchange and the routing key of a message, not its queue. A routing key
    such as ``reports.user.42`` has no bound on its values, so it is not a label of a metric.
    """
    exchange, key = delivery_info.get("exchange") or "", delivery_info.get("routing_key") or ""
    original = _DELAY.sub("", key, count=1)
    if not key:
        return None
    # A delayed message has the exchange of the delayed delivery.
    is_delayed = original != key

    def has_name(queue: Queue) -> bool:
        return (is_delayed or not exchange) and bool(queue.name == original)

    def has_key(queue: Queue) -> bool:
        matching = (
            is_delayed or bound == exchange for bound, key in _bindings(queue) if key == original
        )
        return any(matching)

    def has_exchange(queue: Queue) -> bool:
        return exchange != "" and exchange in {bound for bound, _ in _bindings(queue)}

    consumed = list(queues)
    for is_match in (has_name, has_key, has_exchange):
        if found := [queue for queue in consumed if is_match(queue)]:
            return queue_name(found[0]) if len(found) == 1 else None
    return queue_name(consumed[0]) if len(consumed) == 1 else None


def _bindings(queue: Queue) -> set[tuple[str, str]]:
    """Return the exchange and the routing key of each binding."""
    bindings = [(queue.exchange, queue.routing_key)]
    bindings += [(each.exchange, each.routing_key) for each in queue.bindings]
    return {(getattr(exchange, "name", "") or "", key or "") for exchange, key in bindings}
