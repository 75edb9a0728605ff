"""A beat whose passes a test calls."""

import re
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from celery_dynbeat.api import Dynbeat
from celery_dynbeat.beat.dispatcher import Dispatcher
from celery_dynbeat.broker.publisher import RunPublisher
from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.db.dialects import is_embedded
from celery_dynbeat.db.engine import Database
from celery_dynbeat.testing.worker import RecordingPublisher, TaskRunner

#: After this many passes without a pause, the beat counts as never idle.
MAX_PASSES = 10_000


class ManualBeat:
    """A beat that makes a pass each time the test calls it, with the clock of ``dynbeat``.

    ``publisher`` receives the runs. The default publisher appends them to ``publisher.sent``.
    ``failpoint`` is called with the name of each point of a pass at which a crash matters:
    "recorded", "committed", "swept", "published". If it raises an exception, the pass ends there.

    With ``run_tasks``, each pass then executes the tasks that it has sent, in this thread. They
    have the headers, the guard and the recorder of a worker, but need no broker. A retry runs when
    the clock has reached its time. If a task raises an exception, its run ends as ``failed``. With
    Celery's setting ``task_eager_propagates``, the exception is also raised.

    A pass dispatches everything that is due, so the database must belong to the test. It must be
    SQLite in memory or in the folder for temporary files, or a database with the word "test" in its
    name. Any other database raises ConfigurationError, unless ``any_database`` is true.
    """

    def __init__(
        self,
        dynbeat: Dynbeat,
        publisher: RunPublisher | None = None,
        *,
        run_tasks: bool = False,
        any_database: bool = False,
        failpoint: Callable[[str], None] | None = None,
    ) -> None:
        if not any_database:
            _check_test_database(dynbeat.context.database)
        self._runner = TaskRunner(dynbeat.context) if run_tasks else None
        receives: Any = publisher or self._runner or RecordingPublisher()
        #: What receives the runs. Another publisher that the caller gave has its own attributes.
        self.publisher: RecordingPublisher = receives
        self._context = dynbeat.context
        self._dispatcher = Dispatcher(
            database=dynbeat.context.database,
            publisher=receives,
            clock=dynbeat.context.clock,
            settings=dynbeat.context.settings,
            failpoint=failpoint or (lambda _point: None),
        )

    def tick(self) -> timedelta:
        """Make one pass, and return how long beat could sleep after it.

        Zero means that more may be due. Raises the errors of the publisher and of the database.
        """
        self._context.prepare()
        # A test may change rows without a notification.
        self._dispatcher.reset_poller()
        pause = self._dispatcher.run_pass()
        if self._runner is not None and self._runner.run_queued():
            return timedelta(0)
        return pause

    def run_until_idle(self) -> None:
        """Make passes until nothing is due at the current instant.

        Raises RuntimeError after 10,000 passes, because the clock is then not frozen, and schedules
        fire faster than beat sends their runs.
        """
        for _ in range(MAX_PASSES):
            if self.tick() > timedelta(0):
                return
        msg = f"beat is not idle after {MAX_PASSES} passes: use a FrozenClock, or a longer interval"
        raise RuntimeError(msg)


def _check_test_database(database: Database) -> None:
    """Raise ConfigurationError for a database that may not belong to the test."""
    url = database.engine.url
    name = url.database or ""
    if is_embedded(database.engine.dialect.name):
        # "" and ":memory:" are in-memory databases.
        path = Path(name.removeprefix("file:"))
        folder = Path(tempfile.gettempdir()).resolve()
        is_test = name in {"", ":memory:"} or "mode=memory" in str(url)
        is_test = is_test or path.resolve().is_relative_to(folder) or _names_test(path.name)
    else:
        is_test = _names_test(name)
    if not is_test:
        raise ConfigurationError(
            f"ManualBeat dispatches everything that is due in {database.shown_url}, which may not"
            ' be a test database: use one with the word "test" in its name, such as test_app, or'
            " SQLite in a temporary folder; or pass any_database=True",
        )


def _names_test(name: str) -> bool:
    """Return whether ``name`` contains the word test, as test_app does and contest does not."""
    words = re.split("[^a-z]+", name.lower())
    return any(re.fullmatch("test(s|ing|db)?", word) for word in words)
