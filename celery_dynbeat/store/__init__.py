"""The queries of the package, by table. Here: the only row of the application.

It names the application. It has the digest of ``beat_schedule`` and the release of the tz database.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, CursorResult, select, update

from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.models import APPLICATIONS

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


def record_beat_schedule(connection: Connection, digest: str | None) -> None:
    """Record the digest of ``beat_schedule``. An application without a name has no row for it."""
    connection.execute(update(APPLICATIONS).values(beat_schedule=digest))


def rename_application(connection: Connection, *, name: str, now: datetime) -> None:
    """Record ``name`` and overwrite a recorded name."""
    record_application(connection, name=name, now=now)
    connection.execute(update(APPLICATIONS).values(name=name, recorded_at=now))


class TzState(NamedTuple):
    """The newest release of the tz database, and the progress of planning schedules with it.

    ``after_id`` is the id of the last schedule that was planned again, or None after the last one.
    ``locked_ids`` are the schedules up to it that were locked.
    """

    release: str | None
    after_id: int | None = None
    locked_ids: Sequence[int] = ()


_TZ_STATE = select(_COLUMNS.tz_release, _COLUMNS.tz_after_id, _COLUMNS.tz_locked_ids)


def tz_state(connection: Connection) -> TzState | None:
    """Return the state, or None before the first beat of an application with a name."""
    return _tz_state_of(connection.execute(_TZ_STATE.where(_COLUMNS.id == _ONLY_ROW)))


def lock_tz_state(connection: Connection) -> TzState | None:
    """Return the state, locked for this transaction; None if another transaction has locked it."""
    statement = _TZ_STATE.where(_COLUMNS.id == _ONLY_ROW).with_for_update(skip_locked=True)
    return _tz_state_of(connection.execute(statement))


def _tz_state_of(result: CursorResult[Any]) -> TzState | None:
    row: Any = result.one_or_none()
    if row is None:
        return None
    release, after_id, locked_ids = row
    # Manual SQL may write other values.
    ids = tuple(each for each in locked_ids or () if type(each) is int)
    return TzState(release, after_id, ids)


def set_tz_state(connection: Connection, state: TzState) -> None:
    """Write the locked state."""
    values = {
        "tz_release": state.release,
        "tz_after_id": state.after_id,
        "tz_locked_ids": list(state.locked_ids) or None,
    }
    connection.execute(update(APPLICATIONS).where(_COLUMNS.id == _ONLY_ROW).values(values))
