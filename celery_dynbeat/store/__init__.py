"""The queries of the package, by table. Here: the row of the application, and the locks of duties.

The row names the application. It has the digest of ``beat_schedule`` and the release of the tz
database.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import Column, select, update
from sqlalchemy.orm import Session

from celery_dynbeat.db.models import APPLICATIONS, LOCKS
from celery_dynbeat.db.statements import capabilities_in, connection_of, insert_new

_COLUMNS = APPLICATIONS.c
_ONLY_ROW = 1


def _value(session: Session, column: Column[Any]) -> str | None:
    value = select(column).where(_COLUMNS.id == _ONLY_ROW)
    return connection_of(session).scalar(value)


def application_name(session: Session) -> str | None:
    """Return the name of the application that owns the tables, or None before its first beat."""
    return _value(session, _COLUMNS.name)


def record_application(session: Session, *, name: str, now: datetime) -> str:
    """Record ``name`` unless a name is recorded, and return the recorded name.

    Waits for a concurrent transaction that records a name.
    """
    statement = capabilities_in(session).insert_new(APPLICATIONS)
    session.execute(statement, {"id": _ONLY_ROW, "name": name, "recorded_at": now})
    return application_name(session) or name


def get_beat_schedule(session: Session) -> str | None:
    """Return the recorded digest of ``beat_schedule``."""
    return _value(session, _COLUMNS.beat_schedule)


def get_entries_digest(session: Session) -> str | None:
    """Return the digest of the entries of the beat that wrote the rows of ``beat_schedule``."""
    return _value(session, _COLUMNS.entries_digest)


def record_beat_schedule(session: Session, digest: str | None, *, entries_digest: str) -> None:
    """Record the digests of ``beat_schedule``. An application without a name has no row for it.

    ``digest`` is of the entries and their rows. None means that the next start writes them.
    """
    values = {"beat_schedule": digest, "entries_digest": entries_digest}
    session.execute(update(APPLICATIONS).values(values))


def rename_application(session: Session, *, name: str, now: datetime) -> None:
    """Record ``name`` and overwrite a recorded name."""
    record_application(session, name=name, now=now)
    session.execute(update(APPLICATIONS).values(name=name, recorded_at=now))


def planned_tz_release(session: Session) -> str | None:
    """Return the release of the tz database that the schedules were planned with, if known."""
    return _value(session, _COLUMNS.tz_release)


def record_tz_release(session: Session, release: str, *, only_first: bool = False) -> None:
    """Record the release. With ``only_first``, a recorded release stays."""
    statement = update(APPLICATIONS).where(_COLUMNS.id == _ONLY_ROW).values(tz_release=release)
    session.execute(statement.where(_COLUMNS.tz_release.is_(None)) if only_first else statement)


def lock_row(session: Session, name: str) -> bool:
    """Lock the row of a duty for this transaction. Return False if another beat has locked it."""
    locked = select(LOCKS.c.name).where(LOCKS.c.name == name)
    if session.scalar(locked) is None:
        insert_new(session, LOCKS, [{"name": name}])
    return session.scalar(locked.with_for_update(skip_locked=True)) is not None
