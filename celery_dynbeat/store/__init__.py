"""The queries of the package, by table. Here: the row of the application, and the locks of duties.

The row names the application. It has the digest of ``beat_schedule`` and the release of the tz
database.
"""

from datetime import datetime

from sqlalchemy import Connection, select, update
from sqlalchemy.orm import Session

from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.models import APPLICATIONS, LOCKS
from celery_dynbeat.db.statements import insert_new

_COLUMNS = APPLICATIONS.c
_ONLY_ROW = 1


def application_name(connection: Connection) -> str | None:
    """Return the name of the application that owns the tables, or None before its first beat."""
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


def get_entries_digest(connection: Connection) -> str | None:
    """Return the digest of the entries of the beat that wrote the rows of ``beat_schedule``."""
    return connection.scalar(select(_COLUMNS.entries_digest).where(_COLUMNS.id == _ONLY_ROW))


def record_beat_schedule(
    connection: Connection, digest: str | None, *, entries_digest: str
) -> None:
    """Record the digests of ``beat_schedule``. An application without a name has no row for it.

    ``digest`` is of the entries and their rows. None means that the next start writes them.
    """
    values = {"beat_schedule": digest, "entries_digest": entries_digest}
    connection.execute(update(APPLICATIONS).values(values))


def rename_application(connection: Connection, *, name: str, now: datetime) -> None:
    """Record ``name`` and overwrite a recorded name."""
    record_application(connection, name=name, now=now)
    connection.execute(update(APPLICATIONS).values(name=name, recorded_at=now))


def planned_tz_release(connection: Connection) -> str | None:
    """Return the release of the tz database that the schedules were planned with, if known."""
    return connection.scalar(select(_COLUMNS.tz_release).where(_COLUMNS.id == _ONLY_ROW))


def record_tz_release(connection: Connection, release: str, *, only_first: bool = False) -> None:
    """Record the release. With ``only_first``, a recorded release stays."""
    statement = update(APPLICATIONS).where(_COLUMNS.id == _ONLY_ROW).values(tz_release=release)
    connection.execute(statement.where(_COLUMNS.tz_release.is_(None)) if only_first else statement)


def lock_row(session: Session, name: str) -> bool:
    """Lock the row of a duty for this transaction. Return False if another beat has locked it."""
    locked = select(LOCKS.c.name).where(LOCKS.c.name == name)
    if session.scalar(locked) is None:
        insert_new(session.connection(), LOCKS, [{"name": name}])
    return session.scalar(locked.with_for_update(skip_locked=True)) is not None
