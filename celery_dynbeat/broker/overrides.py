"""What an application puts in place of Celery's own way to send a task.

A task class may override ``apply_async`` or ``shadow_name``, an application ``send_task``; a
library may replace these methods for all tasks. Then they are called, with the run's id as
``task_id``, the run's headers and beat's own ``producer``. What becomes of the run:

- The call publishes a message under the run's id, on any connection of Celery: the run is sent.
- It returns without such a message: the application decided not to send. NotPublishedError.
- It raises: the publisher decides. Beat may call it again for the same run.

Beat's own headers are put back where the call drops them: without them no worker knows the run, its
body would run unguarded, and beat would send it once more.
"""

import threading
from collections.abc import Mapping, Sequence
from types import FunctionType, TracebackType
from typing import Any, Self

from celery import Celery
from celery.app.task import Task
from celery.signals import after_task_publish, before_task_publish

from celery_dynbeat.broker.headers import is_reserved


class NotPublishedError(Exception):
    """A method of the application returned and published no message under the run's id."""


def is_overridden(app: Celery, task: Task | None) -> bool:
    """Return whether the application replaces a part of how Celery sends ``task``.

    ``task`` None: this process does not know the task, only ``send_task`` counts.
    """
    if not _is_celerys_own(app.send_task, Celery.__module__):
        return True
    if task is None:
        return False
    methods = (task.apply_async, task.shadow_name)
    return not all(_is_celerys_own(method, Task.__module__) for method in methods)


def _is_celerys_own(method: Any, module: str) -> bool:
    # Not a comparison with the attribute of Celery's class: a library may have replaced that one.
    # Nor by __module__, which functools.wraps copies.
    function = getattr(method, "__func__", method)
    return isinstance(function, FunctionType) and function.__globals__.get("__name__") == module


def apply_async(
    app: Celery, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], options: dict[str, Any]
) -> None:
    """Send a task as a caller in this process would, registered or not."""
    task = app.tasks.get(name)
    if task is None:
        app.send_task(name, list(args), dict(kwargs), **options)
    else:
        task.apply_async(list(args), dict(kwargs), **options)


def takes(task: Task | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether the arguments fit ``task``, as Task.apply_async checks, unless typing=False.

    True where that is not known.
    """
    check = getattr(task, "__header__", None)
    if task is None or check is None or not task.typing:
        return True
    try:
        check(*args, **kwargs)
    except TypeError:
        return False
    return True


class Watch:
    """Sees which messages this thread publishes by Celery, on whichever connection.

    ``headers`` are put back into the message under ``run_id`` where they are beat's own.
    """

    def __init__(self, run_id: str, headers: Mapping[str, Any]) -> None:
        self._run_id = run_id
        self._headers = {key: value for key, value in headers.items() if is_reserved(key)}
        self._thread = threading.get_ident()
        self._published: list[str] = []

    def __enter__(self) -> Self:
        before_task_publish.connect(self._put_back, weak=False)
        after_task_publish.connect(self._note, weak=False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        before_task_publish.disconnect(self._put_back)
        after_task_publish.disconnect(self._note)

    @property
    def has_seen_run(self) -> bool:
        """Whether a message under the run's id was published."""
        return self._run_id in self._published

    def check(self, task: str) -> None:
        """Raise NotPublishedError when no message under the run's id was published."""
        if self.has_seen_run:
            return
        reason = f"the application's own apply_async or send_task published no message of {task!r}"
        if self._published:
            others = ", ".join(self._published[:3])
            reason += (
                f" under the id of the run, but {len(self._published)} under others ({others}):"
                " to have the run followed, pass task_id and **options on to Celery's method"
            )
        raise NotPublishedError(reason)

    def _put_back(self, body: Any, headers: dict[str, Any], **_: Any) -> None:
        if threading.get_ident() == self._thread and _id_of(body, headers) == self._run_id:
            headers.update(self._headers)

    def _note(self, body: Any, headers: dict[str, Any], **_: Any) -> None:
        if threading.get_ident() == self._thread:
            self._published.append(_id_of(body, headers))


def _id_of(body: Any, headers: Mapping[str, Any]) -> str:
    # In Celery's protocol 1 it stands in the body.
    return str(body.get("id") if isinstance(body, dict) else headers.get("id"))
