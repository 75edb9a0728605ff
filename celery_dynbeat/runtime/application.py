"""Keep two applications out of each other's tables.

Beats of two applications on the same tables would delete each other's rows of ``beat_schedule``,
and each would send the schedules of the other to its own queues. So the first beat records the name
of its application, and a beat of another application refuses to start. Workers and processes that
call the API may be named otherwise and still share the tasks: these only log a warning.

The name is the setting ``dynbeat_application``, else ``app.main``. It does not depend on how ``-A``
names the module.
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

#: ``app.main`` of every application that is made in a script by ``Celery(__name__)``.
_SCRIPT = "__main__"


def name_of(main: object) -> str | None:
    """Return the application's name by Celery's ``app.main``; None when that does not name it."""
    try:
        return None if main == _SCRIPT else application_name(main)
    except ValueError:
        return None


def admit_beat(database: Database, *, name: str | None, now: Callable[[], datetime]) -> None:
    """Record the application ``name``, or check that it is the recorded one.

    To be called when a beat starts. Raises ConfigurationError when the tables belong to another
    application, or when ``name`` is None and they belong to one.
    """
    found = database.read(lambda session: store.get_name(session.connection()))
    if found is None and name is not None:
        found = _record(database, name=name, now=now)
    if found is None:
        logger.warning(
            "the application has no name, and a beat of another application on these tables would"
            " not be refused: write Celery('proj'), or set dynbeat_application",
            extra={"event": Event.APPLICATION_UNNAMED},
        )
    elif found != name:
        _refuse(database.shown_url, found=found, name=name)


def _record(database: Database, *, name: str, now: Callable[[], datetime]) -> str:
    instant = now()
    found = database.run(
        lambda session: store.record_name(session.connection(), name=name, now=instant)
    )
    if found == name:
        logger.info(
            "the tables belong to application %r from now on",
            name,
            extra={"event": Event.APPLICATION_RECORDED},
        )
    return found


def _refuse(url: str, *, found: str, name: str | None) -> NoReturn:
    if name is None:
        this = "this beat's application has no name (app.main is None or '__main__')"
        rename = ""
    else:
        this = f"this beat's application is {name!r}"
        rename = (
            f" If {found!r} is the former name of {name!r}, run `celery -A your_app dynbeat schema"
            f" application {quote(name)}`."
        )
    msg = (
        f"the tables in {url} belong to application {found!r}, {this}: beats of two applications"
        " would delete each other's beat_schedule and send each other's schedules to their own"
        " queues. Give each application its own tables: another dynbeat_database_url, or on"
        " PostgreSQL a schema of its own by search_path. For applications that share their tasks"
        f" and their beat_schedule, set dynbeat_application = {found!r} in both.{rename}"
    )
    raise ConfigurationError(msg)


def warn_of_other(connection: Connection, *, name: str | None) -> None:
    """Log a warning when the tables belong to another application than ``name``."""
    if name is None:
        return
    found = store.get_name(connection)
    if found is not None and found != name:
        logger.warning(
            "the tables belong to application %r, this process is of %r: the beats of %r send what"
            " it schedules; if both share their tasks, set dynbeat_application = %r here",
            found,
            name,
            found,
            found,
            extra={"event": Event.APPLICATION_DIFFERS},
        )
