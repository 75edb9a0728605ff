"""``Task.replace()`` in a run. The replacement has the id of the run, and is its next attempt.

    the replacement is a task               -> its message follows the attempt that sent it
    a chain, group or chord                 -> the message of its last task does
    another task of it fails                -> no last task starts: the run fails with that error

Celery sends the replacement before the attempt ends. The guard therefore starts it even if the end
of that attempt is not recorded, as it does with a retry.
"""

from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

from celery import group
from celery.app.task import Task
from celery.exceptions import Ignore

from celery_dynbeat.broker import (
    HEADER_ATTEMPT,
    HEADER_RUN_ID,
    admitted_attempt,
    replacement_headers,
    run_id_of,
)
from celery_dynbeat.common.run_ids import is_run_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MARK = "dynbeat_replaced_by"


class AwaitingRun(NamedTuple):
    """A run whose last task has not started, and the attempt that was replaced."""

    run_id: str
    attempt: int


def carry_run(task: Task) -> None:
    """Make ``task.replace()`` in a run send the headers of the run. A second call is harmless."""
    replace: Callable[..., Any] = getattr(task.replace, "dynbeat_body", task.replace)

    @wraps(replace)
    def replace_in_run(sig: Any) -> Any:
        request = task.request
        if run_id_of(request) is None or admitted_attempt(request) is None:
            return replace(sig)
        # Celery does the same a moment later, because the task that it adds has the id of the run.
        if isinstance(sig, group):
            sig |= task.app.tasks["celery.accumulate"].s(index=0)
        elif sig.get("subtask_type") == "chain" and isinstance(sig.tasks[-1], group):
            sig.tasks = [
                *sig.tasks[:-1],
                sig.tasks[-1] | task.app.tasks["celery.accumulate"].s(index=0),
            ]
        last = _last_of(sig)
        headers = {**(last["options"].get("headers") or {}), **replacement_headers(request)}
        last["options"] = {**last["options"], "headers": headers}
        try:
            return replace(sig)
        except Ignore:
            setattr(request, _MARK, "task" if last is sig else "canvas")
            raise

    replace_in_run.dynbeat_body = replace  # type: ignore[attr-defined]
    task.replace = replace_in_run


def is_replaced(request: Any) -> bool:
    """Return whether the attempt has sent its replacement."""
    return hasattr(request, _MARK)


def is_replaced_by_task(request: Any) -> bool:
    """Return whether the replacement is one task, so that its message waits in a queue."""
    return getattr(request, _MARK, None) == "task"


def run_awaiting(request: Any) -> AwaitingRun | None:
    """Return the run whose last task waits for the task of ``request``, or None."""
    sig = next(iter(request.chain or ()), None) or request.chord
    while sig:
        last = _last_of(sig)
        options: Mapping[str, Any] = last["options"]
        headers = options.get("headers") or {}
        run_id, attempt = headers.get(HEADER_RUN_ID), headers.get(HEADER_ATTEMPT)
        if (
            run_id is not None
            and is_run_id(run_id)
            and run_id == options.get("task_id")
            and isinstance(attempt, int)
        ):
            return AwaitingRun(run_id, attempt)
        sig = options.get("chord")
    return None


def _last_of(sig: Any) -> Any:
    """Return the signature that gets the id of ``sig``: Celery's chains and chords are mappings."""
    kind = sig.get("subtask_type")
    if kind == "chain":
        return _last_of(sig["kwargs"]["tasks"][-1])
    return _last_of(sig["kwargs"]["body"]) if kind == "chord" else sig
