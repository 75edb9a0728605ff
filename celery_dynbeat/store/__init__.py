"""The queries of the package, by table. Here: the only row of the application.

It names the application, and has the digest of ``beat_schedule``.
"""

from datetime import datetime

from sqlalchemy import Connection, select, update

from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.models import APPLICATIONS

_COLUMNS = APPLICATIONS.c
_ONLY_ROW = 1


def application_name(connection: Connection) -> str | None:
    """Return the name of the application that the tables belong to, None before its first beat."""
    return connection.scalar(select(_COLUMNS.name).where(_COLUMNS.id == _ONLY_ROW))


def record_application(connection: Connection, *, name: str, now: datetime) -> str:
    """Record ``name`` unless a name is recorded, and return the recorded name.

    Waits for a concurrent transaction that records a name.
    """
    statement = capabilities_of(connection.dialect).insert_new(APPLICATIONS)
    connection.execute(statement, {"id": _ONLY_ROW, "name": name, "recorded_at": now})
    return application_name(connection) or name


def get_beat_schedule(connection: Connection) -> str | None:
    """Return the recorded digest of ``beat_schedule``."""
    return connection.scalar(select(_COLUMNS.beat_schedule).where(_COLUMNS.id == _ONLY_ROW))


def record_beat_schedule(connection: Connection, digest: str | None) -> None:
    """Record the digest of ``beat_schedule``. An application without a name has no row for it."""
    connection.execute(update(APPLICATIONS).values(beat_schedule=digest))


def rename_application(connection: Connection, *, name: str, now: datetime) -> None:
    """Record ``name`` and overwrite a recorded name."""
    record_application(connection, name=name, now=now)
    connection.execute(update(APPLICATIONS).values(name=name, recorded_at=now))
