"""The tasks that this process knows: their names, and the arguments that they accept."""

import difflib
import inspect
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from celery import Celery

from celery_dynbeat.broker.task_message import argument_error
from celery_dynbeat.common.events import Event

logger = logging.getLogger(__name__)

#: One process warns of as many names. End users may choose names, so the set must be bounded.
MAX_WARNED = 100
_SUGGESTIONS = 3


class _Default:
    """The default of a parameter, whose value is not shown."""

    def __repr__(self) -> str:
        return "..."


class TaskNames:
    """Checks task names against the task registry of one application."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._warned: set[str] = set()

    def warn_if_unknown(self, name: str) -> None:
        """Log a warning, once per name, if the application has tasks but none with this name.

        Never raises. A process that imports no tasks cannot check names and never warns.
        """
        if name in self._warned or len(self._warned) >= MAX_WARNED:
            return
        known = self.known()
        if name in known:
            return
        own = [each for each in list(known) if not each.startswith("celery.")]
        if not own:
            return
        self._warned.add(name)
        near = difflib.get_close_matches(name, own, n=_SUGGESTIONS)
        logger.warning(
            "task %r is not registered in this process%s; its runs fail with NotRegistered if no"
            " worker registers it",
            name,
            f" (did you mean {' or '.join(map(repr, near))}?)" if near else "",
            extra={"event": Event.TASK_UNKNOWN, "task": name},
        )

    def argument_error(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> str | None:
        """Return why the task refuses the arguments, with its signature; None if it accepts them.

        The result is also None if this process cannot check: see ``argument_error``.
        """
        if name not in self.known():
            return None
        task = self._app.tasks[name]
        error = argument_error(task, args, kwargs)
        if error is None:
            return None
        return f"{error}; the task {name!r} accepts {_parameters(task.__header__)}"

    def known(self) -> Collection[str]:
        """Return the names of the registered tasks; none if the registry cannot be read."""
        # With autofinalize=False the registry is not complete before the application finalizes it.
        if not (self._app.finalized or self._app.autofinalize):
            return ()
        try:
            known: Collection[str] = self._app.tasks
        # Reading the registry evaluates declared tasks, which runs code of the application.
        except Exception:
            logger.warning("the task registry of %r cannot be read", self._app.main, exc_info=True)
            return ()
        return known


def _parameters(check: Callable[..., Any]) -> str:
    """Return the parameters of a task, such as ``(user_id, *, force=...)``.

    Celery's ``check`` has other defaults than the task.
    """
    shown = [
        each if each.default is each.empty else each.replace(default=_Default())
        for each in inspect.signature(check).parameters.values()
    ]
    return str(inspect.Signature(shown))
