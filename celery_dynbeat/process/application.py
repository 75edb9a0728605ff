"""Keep two applications out of each other's tables.

Beats of two applications on the same tables would delete each other's rows of ``beat_schedule``,
and each beat would send the schedules of the other application to its own queues. So the first
beat records the name of its application, and a beat of another application refuses to start.
Workers and processes that call the API only log a warning: they may have another name and share
the tasks.

The name is the setting ``dynbeat_application``, else ``app.main``. It does not depend on the
module that ``-A`` names.
"""

import logging
from collections.abc import Callable
from datetime import datetime
from shlex import quote
from typing import NoReturn

from sqlalchemy import Connection

from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.settings import application_name
from celery_dynbeat.db.engine import Database
from celery_dynbeat.store import application as store

logger = logging.getLogger(__name__)

#: ``app.main`` of each application that a script creates by ``Celery(__name__)``.
_SCRIPT = "__main__"


def name_of(main: object) -> str | None:
    """Return the name in Celery's ``app.main``; None if it is no name of an application."""
    try:
        return None if main == _SCRIPT else application_name(main)
    except ValueError:
        return None


def ensure_application(
    database: Database, *, name: str | None, now: Callable[[], datetime]
) -> None:
    """Record the application ``name`` if none is recorded, else check that it is the recorded one.

    For the start of a beat. Raises ConfigurationError when the tables belong to another
    application, or when they belong to one and ``name`` is None.
    """
    recorded = database.read(lambda session: store.get_name(session.connection()))
    if recorded is None and name is not None:
        recorded = _record(database, name=name, now=now)
    if recorded is None:
        logger.warning(
            "the application has no name, so a beat of another application could start on these"
            " tables: write Celery('proj'), or set dynbeat_application",
            extra={"event": Event.APPLICATION_UNNAMED},
        )
    elif recorded != name:
        _refuse(database.shown_url, recorded=recorded, name=name)


def _record(database: Database, *, name: str, now: Callable[[], datetime]) -> str:
    instant = now()
    recorded = database.run(
        lambda session: store.record_name(session.connection(), name=name, now=instant)
    )
    if recorded == name:
        logger.info(
            "the tables belong to application %r from now on",
            name,
            extra={"event": Event.APPLICATION_RECORDED},
        )
    return recorded


def _refuse(url: str, *, recorded: str, name: str | None) -> NoReturn:
    if name is None:
        this = "this beat's application has no name (app.main is None or '__main__')"
        rename = ""
    else:
        this = f"this beat's application is {name!r}"
        rename = (
            f" If {recorded!r} is the former name of {name!r}, run `celery -A your_app dynbeat"
            f" schema application {quote(name)}`."
        )
    msg = (
        f"the tables in {url} belong to application {recorded!r}, {this}: beats of two applications"
        " would delete each other's beat_schedule and send each other's schedules to their own"
        " queues. Give each application its own tables: another dynbeat_database_url, or on"
        " PostgreSQL a separate schema by search_path. For applications that share their tasks"
        f" and their beat_schedule, set dynbeat_application = {recorded!r} in both.{rename}"
    )
    raise ConfigurationError(msg)


def warn_if_other(connection: Connection, *, name: str | None) -> None:
    """Log a warning when the tables belong to another application than ``name``."""
    if name is None:
        return
    recorded = store.get_name(connection)
    if recorded is not None and recorded != name:
        logger.warning(
            "the tables belong to application %r, this process is of %r: the beats of %r send what"
            " it schedules; if both share their tasks, set dynbeat_application = %r here",
            recorded,
            name,
            recorded,
            recorded,
            extra={"event": Event.APPLICATION_DIFFERS},
        )
