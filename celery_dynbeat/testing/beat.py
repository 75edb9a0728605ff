"""A beat that makes its passes when a test tells it to."""

import re
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Generic, TypeVar, overload

from celery_dynbeat.beat.dispatcher import Dispatcher
from celery_dynbeat.broker.base import RunPublisher
from celery_dynbeat.client import Dynbeat
from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.db.dialects import is_embedded
from celery_dynbeat.db.engine import Database
from celery_dynbeat.testing.publisher import RecordingPublisher
from celery_dynbeat.testing.worker import TaskRunner

#: More passes than this without a pause are taken for a beat that never becomes idle.
PASSES = 10_000

P = TypeVar("P", bound=RunPublisher)


class ManualBeat(Generic[P]):
    """A beat that makes its passes when it is told to, by the clock of ``dynbeat``.

    ``publisher`` receives the runs; without one they are kept in ``publisher.sent``. ``reached`` is
    called with the name of each point at which a crash matters: "recorded", "committed", "swept",
    "published"; what it raises breaks off the pass there.

    With ``run_tasks`` each pass is followed by the bodies of the tasks that were sent, in this
    thread: with the headers, the guard and the recorder of a worker, and without a broker. A retry
    runs when the clock has reached its time. An exception of a body ends its run as ``failed``; it
    is raised, too, with Celery's own setting ``task_eager_propagates``.

    The passes dispatch everything that is due. So the database must be the test's own: SQLite in
    memory, or in the folder for temporary files, or a name with the word "test". Otherwise
    ConfigurationError is raised, unless ``any_database`` is true.
    """

    publisher: P

    @overload
    def __init__(
        self: "ManualBeat[RecordingPublisher]",
        dynbeat: Dynbeat,
        publisher: None = None,
        *,
        run_tasks: bool = False,
        any_database: bool = False,
        reached: Callable[[str], None] | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: "ManualBeat[P]",
        dynbeat: Dynbeat,
        publisher: P,
        *,
        any_database: bool = False,
        reached: Callable[[str], None] | None = None,
    ) -> None: ...

    def __init__(
        self,
        dynbeat: Dynbeat,
        publisher: RunPublisher | None = None,
        *,
        run_tasks: bool = False,
        any_database: bool = False,
        reached: Callable[[str], None] | None = None,
    ) -> None:
        if not any_database:
            _check_own(dynbeat.context.database)
        self._runner = TaskRunner(dynbeat.context) if run_tasks else None
        self.publisher = publisher or self._runner or RecordingPublisher()  # type: ignore[assignment]
        self._context = dynbeat.context
        self._dispatcher = Dispatcher(
            database=dynbeat.context.database,
            publisher=self.publisher,
            clock=dynbeat.context.clock,
            settings=dynbeat.context.settings,
            reached=reached or (lambda _point: None),
        )

    def tick(self) -> timedelta:
        """Make one pass and return how long beat could sleep after it; zero: there may be more.

        Raises what the publisher or the database raises.
        """
        self._context.prepare()
        # A test may change rows without a notification.
        self._dispatcher.look_everywhere()
        pause = self._dispatcher.run_pass()
        if self._runner is not None and self._runner.run_queued():
            return timedelta(0)
        return pause

    def run_until_idle(self) -> None:
        """Make passes until nothing is left to do at this instant.

        Raises RuntimeError after 10,000 passes: the clock moves, and schedules fire faster than
        they can be sent.
        """
        for _ in range(PASSES):
            if self.tick() > timedelta(0):
                return
        msg = f"beat is not idle after {PASSES} passes: freeze the clock, or look at what is due"
        raise RuntimeError(msg)


def _check_own(database: Database) -> None:
    """Raise ConfigurationError for a database that is perhaps not the test's own."""
    url = database.engine.url
    name = url.database or ""
    if is_embedded(database.engine.dialect.name):
        # "" and ":memory:" are databases in memory.
        path = Path(name.removeprefix("file:"))
        folder = Path(tempfile.gettempdir()).resolve()
        is_own = name in {"", ":memory:"} or "mode=memory" in str(url)
        is_own = is_own or path.resolve().is_relative_to(folder) or _names_test(path.name)
    else:
        is_own = _names_test(name)
    if not is_own:
        raise ConfigurationError(
            f"ManualBeat dispatches everything that is due in {database.shown_url}, and this does"
            ' not look like the database of a test: use one with the word "test" in its name, such'
            " as test_app, or SQLite in a temporary folder; or pass any_database=True",
        )


def _names_test(name: str) -> bool:
    """Return whether ``test`` is a word of ``name``: in test_app it is, in contest it is not."""
    words = re.split("[^a-z]+", name.lower())
    return any(re.fullmatch("test(s|ing|db)?", word) for word in words)
