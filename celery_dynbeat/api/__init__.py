"""Dynbeat: the API of an application. It also installs the guard and recorder in its workers."""

from contextlib import AbstractContextManager
from functools import cached_property

from celery import Celery
from sqlalchemy import Engine

from celery_dynbeat.api.audit import acting
from celery_dynbeat.api.calendars import Calendars
from celery_dynbeat.api.fields import Changes, Fields, NewFields, TaskLike, TriggerLike
from celery_dynbeat.api.many import NewSchedule
from celery_dynbeat.api.owner import OwnerSchedules
from celery_dynbeat.api.schedules import Schedules
from celery_dynbeat.common.clock import Clock
from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.process.context import Context, CurrentSession

WORKER_STEP = "celery_dynbeat.worker.bootsteps:DynbeatStep"
CONSUMER_STEP = "celery_dynbeat.worker.bootsteps:ProgressStep"


class Dynbeat:
    """The schedules of a Celery application. Create one in the module that defines the app.

    - A Dynbeat adds two things to each worker of the application: the guard, which lets each run
      start once, and the recorder of outcomes.
    - ``engine`` is an SQLAlchemy engine to share. If it is not given, dynbeat creates an engine
      from dynbeat_database_url.
    - ``clock`` replaces the clock of the database, for tests.
    - ``current_session`` is a function without arguments that returns the SQLAlchemy session of the
      application's current transaction, or None. Calls without ``session=`` join that transaction,
      or run in a separate one if the function returns None. For Django, use
      ``celery_dynbeat.django.current_session``.

    A Dynbeat connects to the database and reads settings only when it is first used. Raises
    ConfigurationError if ``app`` is not a Celery application, if ``engine`` is asynchronous or not
    an engine, or if ``current_session`` is not a function. A call raises the same error if the
    function returns something other than a session, or a session for another database.
    """

    def __init__(
        self,
        app: Celery,
        *,
        engine: Engine | None = None,
        clock: Clock | None = None,
        current_session: CurrentSession | None = None,
    ) -> None:
        if not hasattr(app, "conf"):
            raise ConfigurationError(
                f"app = {shorten(app)}: must be the Celery application, such as Celery('proj')"
            )
        self.app = app
        #: The settings, database, clock and notifier of the application.
        self.context = Context(app, engine, clock, current_session)
        app.dynbeat = self
        # These are names: only a worker imports its package.
        app.steps["worker"].add(WORKER_STEP)
        app.steps["consumer"].add(CONSUMER_STEP)

    @cached_property
    def schedules(self) -> Schedules:
        """The schedules of all owners."""
        return Schedules(self.context)

    @cached_property
    def calendars(self) -> Calendars:
        """The shared calendars of the application. Triggers refer to them by name."""
        return Calendars(self.context)

    @staticmethod
    def acting(*, actor: str | None, reason: str = "") -> AbstractContextManager[None]:
        """Record ``actor`` and ``reason`` in the audit of each edit in the block.

        ``actor``, such as the name of a user, has at most 255 characters, and ``reason`` has at
        most 1,024. None means that no user is known. Blocks can be nested. Each thread and each
        asyncio task has its own actor and reason. Raises InvalidArgumentError with field
        ``"actor"`` or ``"reason"``.
        """
        return acting(actor=actor, reason=reason)


def dynbeat_of(app: Celery) -> Dynbeat:
    """Return the application's Dynbeat. Raises ConfigurationError if it has none."""
    dynbeat = getattr(app, "dynbeat", None)
    if not isinstance(dynbeat, Dynbeat):
        msg = (
            f"the Celery application {app.main!r} has no Dynbeat: add `dynbeat = Dynbeat(app)` to"
            " the module that -A names; without it, workers do not guard and record runs"
        )
        raise ConfigurationError(msg)
    return dynbeat


__all__ = [
    "Calendars",
    "Changes",
    "Dynbeat",
    "Fields",
    "NewFields",
    "NewSchedule",
    "OwnerSchedules",
    "Schedules",
    "TaskLike",
    "TriggerLike",
    "dynbeat_of",
]
