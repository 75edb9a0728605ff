"""The worker's request of a guarded task: Celery's own, in the main process of the worker.

Celery sends ``task-started`` before the guard decides, and nothing when it raises Ignore: monitors
would show a run that was refused as started for ever, and one that was put off, too. The events
that end or defer it go out by the worker's own dispatcher, and as it is configured.

    RunRefused -> task-revoked      Celery's monitors keep ``succeeded`` and ``failed`` over it
    RunPutOff  -> task-retried      the next task-received follows

A pool that cannot end a task (threads) raises NotImplementedError in the remote control command.
For a run this is reported instead.
"""

from collections.abc import Callable
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from celery.exceptions import Ignore
from kombu.utils.imports import symbol_by_name

from celery_dynbeat.broker.headers import claimed_run_id


class RunRefused(Ignore):
    """The run of this message has ended, or was cancelled: the message is dropped."""


class RunDeferred(Ignore):
    """A copy of this message comes later."""


def guarded_request(base: Any, cannot_end: Callable[[str, str], None]) -> type:
    """Return a request class on top of ``base``, a class or its path.

    ``cannot_end`` is called with a run that was to be terminated and the name of the pool.
    """
    celerys: Any = symbol_by_name(base)
    celerys = getattr(celerys, "dynbeat_base", celerys)

    class GuardedRequest(celerys):
        dynbeat_base = celerys

        def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
            """Receive what a pool process raised, Ignore and Reject among it."""
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
                cannot_end(run_id, type(pool).__module__.rpartition(".")[2])

    return GuardedRequest


def _send_event(request: Any, exception: Any) -> None:
    if isinstance(exception, ExceptionWithTraceback):
        exception = exception.exc
    if isinstance(exception, RunRefused):
        request.send_event("task-revoked", terminated=False, signum=None, expired=False)
    elif isinstance(exception, RunDeferred):
        request.send_event("task-retried", exception=str(exception), traceback=None)
