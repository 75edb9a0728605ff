"""A warning for the name of a task that this process does not know: often a typo."""

import difflib
import logging
from collections.abc import Collection

from celery import Celery

from celery_dynbeat.common.events import Event

logger = logging.getLogger(__name__)

#: Names that one process warns of. End users may choose them, and the set must stay bounded.
MAX_WARNED = 100
_SUGGESTIONS = 3


class TaskNames:
    """Compares names of tasks with the registry of one application."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._warned: set[str] = set()

    def warn_if_unknown(self, name: str) -> None:
        """Log a warning, once for each name, if the application has tasks and none of this name.

        Never raises. A process that imports no tasks knows none, and warns of none.
        """
        if name in self._warned or len(self._warned) >= MAX_WARNED:
            return
        known = self._known()
        if name in known:
            return
        own = [each for each in list(known) if not each.startswith("celery.")]
        if not own:
            return
        self._warned.add(name)
        near = difflib.get_close_matches(name, own, n=_SUGGESTIONS)
        logger.warning(
            "task %r is not among the tasks that this process knows%s; a worker that does not know"
            " it either fails its runs with NotRegistered",
            name,
            f" (did you mean {' or '.join(map(repr, near))}?)" if near else "",
            extra={"event": Event.TASK_UNKNOWN, "task": name},
        )

    def _known(self) -> Collection[str]:
        # With autofinalize=False the registry is not ready before the application says so.
        if not (self._app.finalized or self._app.autofinalize):
            return ()
        try:
            known: Collection[str] = self._app.tasks
        # Reading the registry evaluates the tasks that are declared: code of the application.
        except Exception:
            logger.warning("the tasks of %r cannot be read", self._app.main, exc_info=True)
            return ()
        return known
