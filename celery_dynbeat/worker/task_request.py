"""The request class of guarded tasks, in the main process of the worker.

Celery sends ``task-started`` before the guard decides, and no event when the guard raises Ignore.
Monitors would show a refused or deferred run as started permanently. So the request sends one more
event, through the worker's own event dispatcher and with its settings:

    RefusedMessage  -> task-revoked     a monitor that has ``succeeded`` or ``failed`` keeps it
    DeferredMessage -> task-retried     the next task-received follows

A pool that cannot terminate a task (threads) raises NotImplementedError in the remote control
command. For a run, the request reports this to the recorder instead.
"""

from collections.abc import Callable
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from celery.exceptions import Ignore
from kombu.utils.imports import symbol_by_name

from celery_dynbeat.broker.headers import claimed_run_id


class RefusedMessage(Ignore):
    """The run of this message has ended or was cancelled; the worker drops the message."""


class DeferredMessage(Ignore):
    """The guard published a copy of this message with a delay."""


def guarded_request(base: Any, on_not_terminated: Callable[[Any, str, str], None]) -> type:
    """Return a subclass of the request class ``base``, which is a class or its path.

    ``on_not_terminated`` receives the request of a run that could not be terminated, the run's id,
    and the name of the pool.
    """
    celery_request: Any = symbol_by_name(base)
    celery_request = getattr(celery_request, "dynbeat_base", celery_request)

    class GuardedRequest(celery_request):
        dynbeat_base = celery_request

        def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
            """Handle what a pool process raised, Ignore and Reject included."""
            result = super().on_failure(exc_info, *args, **kwargs)
            _send_event(self, exc_info.exception)
            return result

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


def _send_event(request: Any, exception: Any) -> None:
    if isinstance(exception, ExceptionWithTraceback):
        exception = exception.exc
    if isinstance(exception, RefusedMessage):
        request.send_event("task-revoked", terminated=False, signum=None, expired=False)
    elif isinstance(exception, DeferredMessage):
        request.send_event("task-retried", exception=str(exception), traceback=None)
