"""The task that the present thread or greenlet executes."""

from collections import Counter
from typing import Any, NamedTuple

from celery._state import _task_stack
from celery.app.task import Task

from celery_dynbeat.broker import admitted_attempt, attempt_of


class ExecutedTask(NamedTuple):
    """A task and the request of its message."""

    task: Task
    request: Any


def executed_task() -> ExecutedTask | None:
    """Return the task that a message started, or None outside of a task.

    A task that another task calls as a function belongs to the caller's message.
    """
    # Celery keeps one stack of tasks for each thread or greenlet, and one of requests for each task
    # in it.
    depths: Counter[str] = Counter()
    for task in reversed(_task_stack.stack):
        depths[task.name] += 1
        request = task.request_stack.stack[-depths[task.name]]
        if not request.called_directly:
            return ExecutedTask(task, request)
    return None


def present_attempt(request: Any) -> int:
    """Return the number of the attempt that executes the request of a run."""
    admitted = admitted_attempt(request)
    if admitted is not None:
        return admitted
    # ManualBeat sets the number of the present attempt. In a worker, before the guard has decided,
    # the header has the number of the attempt before.
    return (attempt_of(request) or 0) + (not request.is_eager)
