"""Call the methods by which an application overrides how Celery sends a task.

A task class may override ``apply_async`` or ``shadow_name``, an application ``send_task``. A
library may replace these methods for all tasks. Beat then calls them with the run id as
``task_id``, the headers of the run and its own ``producer``. The outcomes:

- The call publishes a message with the run id, on any connection of Celery: the run is sent.
- It returns without such a message: the application decided not to send (NotPublishedError).
- It raises: the publisher decides. Beat may call it again for the same run.

If the call drops beat's headers, beat restores them. Without them no worker recognises the run: the
task would run without the guard, and beat would send the run again.
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
    """An overridden method returned without a message that has the run id."""


def is_overridden(app: Celery, task: Task | None) -> bool:
    """Return whether the application overrides a method by which Celery sends ``task``.

    ``task`` is None when it is not registered in this process. Then only ``send_task`` counts.
    """
    if not is_from(Celery.__module__, app.send_task):
        return True
    if task is None:
        return False
    return not (
        is_from(Task.__module__, task.apply_async) and is_from(Task.__module__, task.shadow_name)
    )


def is_from(module: str, method: Any) -> bool:
    """Return whether ``module`` defines the function or method, so that none replaces it."""
    # A comparison with the attribute of Celery's class fails: a library may have replaced that one.
    # ``__module__`` fails too: functools.wraps copies it.
    function = getattr(method, "__func__", method)
    return isinstance(function, FunctionType) and function.__globals__.get("__name__") == module


def apply_async(
    app: Celery, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], options: dict[str, Any]
) -> None:
    """Send a task, registered or not, as a caller in this process would."""
    task = app.tasks.get(name)
    if task is None:
        app.send_task(name, list(args), dict(kwargs), **options)
    else:
        task.apply_async(list(args), dict(kwargs), **options)


def accepts_arguments(task: Task | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether ``task`` accepts the arguments, by the check of Task.apply_async.

    True when this process cannot check: an unknown task, or ``typing=False``.
    """
    check = getattr(task, "__header__", None)
    if task is None or check is None or not task.typing:
        return True
    try:
        check(*args, **kwargs)
    except TypeError:
        return False
    return True


class PublishWatch:
    """Record the messages that this thread publishes through Celery, on any connection.

    Restores the reserved ones of ``headers`` on the message whose id is ``run_id``.
    """

    def __init__(self, run_id: str, headers: Mapping[str, Any]) -> None:
        self._run_id = run_id
        self._headers = {key: value for key, value in headers.items() if is_reserved(key)}
        self._thread = threading.get_ident()
        self._published: list[str] = []

    def __enter__(self) -> Self:
        before_task_publish.connect(self._restore_headers, weak=False)
        after_task_publish.connect(self._record, weak=False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        before_task_publish.disconnect(self._restore_headers)
        after_task_publish.disconnect(self._record)

    @property
    def is_published(self) -> bool:
        """Whether a message with the run id was published."""
        return self._run_id in self._published

    def check(self, task: str) -> None:
        """Raise NotPublishedError when no message with the run id was published."""
        if self.is_published:
            return
        reason = f"the application's own apply_async or send_task published no message of {task!r}"
        if self._published:
            others = ", ".join(self._published[:3])
            reason += (
                f" with the run id, but {len(self._published)} with other ids ({others}):"
                " pass task_id and **options on to Celery's method, so that the run is recorded"
            )
        raise NotPublishedError(reason)

    def _restore_headers(self, body: Any, headers: dict[str, Any], **_: Any) -> None:
        if threading.get_ident() == self._thread and _id_of(body, headers) == self._run_id:
            headers.update(self._headers)

    def _record(self, body: Any, headers: dict[str, Any], **_: Any) -> None:
        if threading.get_ident() == self._thread:
            self._published.append(_id_of(body, headers))


def _id_of(body: Any, headers: Mapping[str, Any]) -> str:
    # Celery's protocol 1 keeps the id in the body.
    return str(body.get("id") if isinstance(body, dict) else headers.get("id"))
