"""Dynbeat: the API that an application calls, and the guard and recorder in its workers."""

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
    """The schedules of a Celery application.

    One line in the module of the application. It also installs the guard, which lets each run
    start once, and the recorder of outcomes into every worker that the application starts.
    ``engine`` shares the application's own engine instead of opening another from
    dynbeat_database_url. Nothing is connected and nothing is read before the first use. Raises
    ConfigurationError for an engine that is asynchronous.
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
        # By name: a process that only calls the API never imports the worker's side.
        app.steps["worker"].add(WORKER_STEP)
        app.steps["consumer"].add(CONSUMER_STEP)

    @cached_property
    def schedules(self) -> "Schedules":
        """The schedules of all owners."""
        # Beat and workers call none of it.
        from celery_dynbeat.client.schedules import Schedules  # noqa: PLC0415

        return Schedules(self.context)


def dynbeat_of(app: Celery) -> Dynbeat:
    """Return the application's Dynbeat. Raises ConfigurationError when it has none."""
    found = getattr(app, "dynbeat", None)
    if not isinstance(found, Dynbeat):
        msg = (
            f"the Celery application {app.main!r} has no Dynbeat: add `dynbeat ="
            " Dynbeat(app)` to its module, which -A names; without it no worker guards or records"
            " its runs"
        )
        raise ConfigurationError(msg)
    return found


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
