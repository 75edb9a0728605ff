"""Dynbeat: the API of an application. It also installs the guard and recorder in its workers."""

from contextlib import AbstractContextManager
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING

from celery import Celery

from celery_dynbeat.common import lazy_exports
from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.common.text import shorten

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from celery_dynbeat.api.calendars import Calendars
    from celery_dynbeat.api.edit.conversion import TaskLike, TriggerLike
    from celery_dynbeat.api.edit.fields import Changes, Fields, NewFields
    from celery_dynbeat.api.edit.new_rows import NewSchedule
    from celery_dynbeat.api.filters import ChangeFilter, RunFilter, ScheduleFilter
    from celery_dynbeat.api.owner import OwnerSchedules
    from celery_dynbeat.api.results import (
        AlertInfo,
        BatchInfo,
        BatchResult,
        BoundedCount,
        BulkFailure,
        BulkResult,
        CalendarInfo,
        ChangeInfo,
        Explanation,
        FireTime,
        ForecastInfo,
        ForecastRow,
        HoldInfo,
        Info,
        LimitUsage,
        Page,
        Preview,
        PreviewedFireTime,
        QuietHoursInfo,
        RunInfo,
        ScheduleInfo,
        Usage,
    )
    from celery_dynbeat.api.schedules import Schedules
    from celery_dynbeat.common.clock import Clock
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
        engine: "Engine | None" = None,
        clock: "Clock | None" = None,
        current_session: "CurrentSession | None" = None,
    ) -> None:
        if not hasattr(app, "conf"):
            raise ConfigurationError(
                f"app = {shorten(app)}: must be the Celery application, such as Celery('proj')"
            )
        self.app = app
        self._given = (engine, clock, current_session)
        self._context: Context | None = None
        self._context_lock = Lock()
        if engine is not None or current_session is not None:
            # Check the arguments now. Their caller has imported SQLAlchemy already.
            _ = self.context
        app.dynbeat = self
        # These are names, so that a process that only calls the API does not import the worker
        # package.
        app.steps["worker"].add(WORKER_STEP)
        app.steps["consumer"].add(CONSUMER_STEP)

    @property
    def context(self) -> "Context":
        """The settings, database, clock and notifier of the application."""
        # A process that is forked while another thread holds the lock never gets it.
        if self._context is not None:
            return self._context
        with self._context_lock:
            if self._context is None:
                # A late import: each celery command imports the application, and SQLAlchemy costs
                # as much time as `celery --version`.
                from celery_dynbeat.process.context import Context  # noqa: PLC0415

                self._context = Context(self.app, *self._given)
            return self._context

    @cached_property
    def schedules(self) -> "Schedules":
        """The schedules of all owners."""
        # A late import: beat and workers do not call the API.
        from celery_dynbeat.api.schedules import Schedules  # noqa: PLC0415

        return Schedules(self.context)

    @cached_property
    def calendars(self) -> "Calendars":
        """The shared calendars of the application. Triggers refer to them by name."""
        # A late import, as above.
        from celery_dynbeat.api.calendars import Calendars  # noqa: PLC0415

        return Calendars(self.context)

    @staticmethod
    def acting(*, actor: str, reason: str = "") -> AbstractContextManager[None]:
        """Record ``actor`` and ``reason`` in the audit of each edit in the block.

        ``actor``, such as the name of a user, has at most 255 characters, and ``reason`` has at
        most 1,024. Blocks can be nested. Each thread and each asyncio task has its own actor and
        reason. Raises InvalidScheduleError with field ``"actor"`` or ``"reason"``.
        """
        # A late import, as above.
        from celery_dynbeat.api.acting import acting  # noqa: PLC0415

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
    "AlertInfo",
    "BatchInfo",
    "BatchResult",
    "BoundedCount",
    "BulkFailure",
    "BulkResult",
    "CalendarInfo",
    "Calendars",
    "ChangeFilter",
    "ChangeInfo",
    "Changes",
    "Dynbeat",
    "Explanation",
    "Fields",
    "FireTime",
    "ForecastInfo",
    "ForecastRow",
    "HoldInfo",
    "Info",
    "LimitUsage",
    "NewFields",
    "NewSchedule",
    "OwnerSchedules",
    "Page",
    "Preview",
    "PreviewedFireTime",
    "QuietHoursInfo",
    "RunFilter",
    "RunInfo",
    "ScheduleFilter",
    "ScheduleInfo",
    "Schedules",
    "TaskLike",
    "TriggerLike",
    "Usage",
    "dynbeat_of",
]

_LAZY_EXPORTS = {
    "calendars": ("Calendars",),
    "edit.conversion": ("TaskLike", "TriggerLike"),
    "edit.fields": ("Changes", "Fields", "NewFields"),
    "filters": ("ChangeFilter", "RunFilter", "ScheduleFilter"),
    "owner": ("OwnerSchedules",),
    "edit.new_rows": ("NewSchedule",),
    "schedules": ("Schedules",),
    "results": (
        *("AlertInfo", "BatchInfo", "BatchResult", "BoundedCount", "BulkFailure", "BulkResult"),
        *(
            "CalendarInfo",
            "ChangeInfo",
            "Explanation",
            "FireTime",
            "HoldInfo",
            "Info",
            "Page",
        ),
        *("ForecastInfo", "ForecastRow"),
        *("Preview", "PreviewedFireTime", "QuietHoursInfo"),
        *("LimitUsage", "RunInfo", "ScheduleInfo", "Usage"),
    ),
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, _LAZY_EXPORTS)
