"""Dynbeat: the API that an application calls, and the guard and recorder in its workers."""

from celery import Celery
from sqlalchemy import Engine

from celery_dynbeat.client.context import Context
from celery_dynbeat.client.fields import Changes, Fields
from celery_dynbeat.client.owner import OwnerSchedules
from celery_dynbeat.client.schedules import NewSchedule, Schedules
from celery_dynbeat.client.views import BackfillInfo, Page, RunInfo, ScheduleInfo
from celery_dynbeat.clock import Clock
from celery_dynbeat.errors import ConfigurationError

WORKER_STEP = "celery_dynbeat.worker:DynbeatStep"
CONSUMER_STEP = "celery_dynbeat.worker:ProgressStep"


class Dynbeat:
    """The schedules of a Celery application.

    One line in the module of the application. It also installs the guard, which lets each run
    start once, and the recorder of outcomes into every worker that the application starts.
    ``engine`` shares the application's own engine instead of opening another from
    dynbeat_database_url. Nothing is connected and nothing is read before the first use.
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
        self.schedules = Schedules(self.context)
        app.dynbeat = self
        # By name: a process that only calls the API never imports the worker's side.
        app.steps["worker"].add(WORKER_STEP)
        app.steps["consumer"].add(CONSUMER_STEP)


def dynbeat_of(app: Celery) -> Dynbeat:
    """Return the application's Dynbeat. Raises ConfigurationError when it has none."""
    found = getattr(app, "dynbeat", None)
    if not isinstance(found, Dynbeat):
        msg = (
            f"the Celery application {app.main!r} has no Dynbeat: add `dynbeat ="
            " Dynbeat(app)` to its module; without it no worker guards or records its runs"
        )
        raise ConfigurationError(msg)
    return found


__all__ = [
    "BackfillInfo",
    "Changes",
    "Context",
    "Dynbeat",
    "Fields",
    "NewSchedule",
    "OwnerSchedules",
    "Page",
    "RunInfo",
    "ScheduleInfo",
    "Schedules",
    "dynbeat_of",
]
