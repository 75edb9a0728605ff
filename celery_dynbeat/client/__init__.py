"""Dynbeat: the API of an application. It also installs the guard and recorder in its workers."""

from functools import cached_property
from typing import TYPE_CHECKING

from celery import Celery
from sqlalchemy import Engine

from celery_dynbeat.common.clock import Clock
from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.common.lazy import lazy_exports
from celery_dynbeat.runtime.context import Context

if TYPE_CHECKING:
    from celery_dynbeat.client.conversion import TaskLike, TriggerLike
    from celery_dynbeat.client.fields import Changes, Fields, NewFields
    from celery_dynbeat.client.owner import OwnerSchedules
    from celery_dynbeat.client.schedules import NewSchedule, Schedules
    from celery_dynbeat.client.views import BackfillInfo, Page, RunInfo, ScheduleInfo

WORKER_STEP = "celery_dynbeat.worker.bootsteps:DynbeatStep"
CONSUMER_STEP = "celery_dynbeat.worker.bootsteps:ProgressStep"


class Dynbeat:
    """The schedules of a Celery application. Create one in the module that defines the app.

    - It adds the guard, which lets each run start once, and the recorder of outcomes to each worker
      of the application.
    - ``engine`` is an SQLAlchemy engine to share. Without it, dynbeat opens its own engine from
      dynbeat_database_url.
    - ``clock`` replaces the clock of the database, for tests.

    It connects and reads settings only at the first use. Raises ConfigurationError if ``engine`` is
    asynchronous or not an engine.
    """

    def __init__(
        self,
        app: Celery,
        *,
        engine: Engine | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.app = app
        self.context = Context(app, engine, clock)
        app.dynbeat = self
        # By name: a process that only calls the API does not import the worker package.
        app.steps["worker"].add(WORKER_STEP)
        app.steps["consumer"].add(CONSUMER_STEP)

    @cached_property
    def schedules(self) -> "Schedules":
        """The schedules of all owners."""
        # A late import: beat and workers do not call the API.
        from celery_dynbeat.client.schedules import Schedules  # noqa: PLC0415

        return Schedules(self.context)


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
    "BackfillInfo",
    "Changes",
    "Context",
    "Dynbeat",
    "Fields",
    "NewFields",
    "NewSchedule",
    "OwnerSchedules",
    "Page",
    "RunInfo",
    "ScheduleInfo",
    "Schedules",
    "TaskLike",
    "TriggerLike",
    "dynbeat_of",
]

_LAZY_EXPORTS = {
    "conversion": ("TaskLike", "TriggerLike"),
    "fields": ("Changes", "Fields", "NewFields"),
    "owner": ("OwnerSchedules",),
    "schedules": ("NewSchedule", "Schedules"),
    "views": ("BackfillInfo", "Page", "RunInfo", "ScheduleInfo"),
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, _LAZY_EXPORTS)
