"""A warning for a task name that is not registered in this process: often a typo."""

import difflib
import logging
from collections.abc import Collection

from celery import Celery

from celery_dynbeat.common.events import Event

logger = logging.getLogger(__name__)

#: One process warns of as many names. End users may choose names, so the set must be bounded.
MAX_WARNED = 100
_SUGGESTIONS = 3


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
