"""Queries on shared calendars, and on the schedules whose triggers or owners use them.

    upsert()               changes the row of the calendar: a new version; no schedule is locked
    claim                  reads the present days: a fire time on a new day is not sent
    beat (replan)          plans the schedules that were planned with an older version again
    create, update, ...    link their schedule with the versions that its plan has read

The link of a schedule states the version that its plan has read. If upsert() commits between the
read and the commit of the link, the link has the older version. Beat then finds it as it finds the
others, so no lock is needed between the two.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, datetime
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, delete, func, literal, or_, select, update
from sqlalchemy.orm import Session

from celery_dynbeat.db.models import CALENDARS, LINKS, Calendar, Schedule, ScheduleCalendar
from celery_dynbeat.db.statements import BIND, Row, insert_new
from celery_dynbeat.db.statements import read as read_rows
from celery_dynbeat.store.runs import execute_dml
from celery_dynbeat.triggers import CalendarDays
from celery_dynbeat.triggers.calendar_days import read_weekend

_CALENDAR, _LINK = CALENDARS.c, LINKS.c
#: Links that are counted at most.
COUNT_LIMIT = 10_000


class _Stored(NamedTuple):
    """The columns of a calendar from which its days follow."""

    id: int
    name: str
    version: int
    dates: str
    weekend: str


#: The errors for dates that manual SQL has damaged.
_DAMAGED = (ValueError, KeyError, TypeError, AttributeError)
_STORED = select(*(_CALENDAR[name] for name in _Stored._fields))


def read(session: Session, names: Collection[str]) -> Mapping[str, CalendarDays]:
    """Return the calendars with these names. Missing and damaged ones are left out."""
    statement = _STORED.where(_CALENDAR.name.in_(sorted(names)))
    found = {}
    for row in session.execute(statement):
        try:
            found[row.name] = _parsed(_Stored._make(row))
        except _DAMAGED:
            # Only manual SQL writes it. The schedules that use it are quarantined.
            continue
    return found


def days_of(row: Calendar) -> CalendarDays:
    """Return the days of a row, or no days if manual SQL has damaged its dates."""
    try:
        return _parsed(_Stored._make(getattr(row, name) for name in _Stored._fields))
    except _DAMAGED:
        return CalendarDays(row.name, version=row.version, id=row.id)


# The key contains the text in addition to the version, because a calendar that is deleted and
# created again begins with version 1 again.
@lru_cache(maxsize=256)
def _parsed(stored: _Stored) -> CalendarDays:
    notes = {date.fromisoformat(day): note for day, note in json.loads(stored.dates).items()}
    return CalendarDays(
        name=stored.name,
        dates=frozenset(notes),
        notes={day: note for day, note in notes.items() if note},
        weekend=read_weekend(stored.weekend),
        version=stored.version,
        id=stored.id,
    )


def get(session: Session, *, name: str) -> Calendar | None:
    """Return the calendar, or None."""
    return session.scalars(select(Calendar).where(Calendar.name == name)).one_or_none()


def lock(session: Session, *, name: str) -> Calendar | None:
    """Return the calendar locked for this transaction, or None."""
    statement = select(Calendar).where(Calendar.name == name).with_for_update(key_share=True)
    return session.scalars(statement.execution_options(populate_existing=True)).one_or_none()


def lock_shared(session: Session, name: str) -> Mapping[str, int]:
    """Lock the calendar in share mode if it exists; return its id by its name."""
    found = select(_CALENDAR.name, _CALENDAR.id).where(_CALENDAR.name == name)
    rows = session.execute(found.with_for_update(read=True), bind_arguments=BIND)
    return {row.name: row.id for row in rows}


def add(session: Session, values: Mapping[str, Any]) -> bool:
    """Insert a calendar. Return False if one with the name exists."""
    return insert_new(session, CALENDARS, [values]) > 0


def remove(session: Session, *, calendar_id: int) -> None:
    """Delete a locked calendar. A link to it makes the database refuse that."""
    execute_dml(session, delete(Calendar).where(Calendar.id == calendar_id))


def page(session: Session, *, after: str, limit: int) -> Sequence[Calendar]:
    """Return up to ``limit`` calendars after the name ``after``, by name."""
    statement = select(Calendar).where(Calendar.name > after).order_by(Calendar.name)
    return session.scalars(statement.limit(limit)).all()


def count_schedules(
    session: Session, *, calendar_id: int, below: int | None = None, limit: int = COUNT_LIMIT + 1
) -> int:
    """Count the schedules that use a calendar, up to ``limit``.

    With ``below`` only those that were planned with an older version count.
    """
    found = select(literal(1)).where(_LINK.calendar_id == calendar_id)
    if below is not None:
        found = found.where(_LINK.planned_with < below)
    counted = select(func.count()).select_from(found.limit(limit).subquery())
    return session.scalar(counted, bind_arguments=BIND) or 0


def link(
    session: Session, given: Sequence[tuple[int, Iterable[CalendarDays]]], *, is_new: bool
) -> None:
    """Write the calendars of schedules, with the versions that their plans have read.

    ``given`` are ids of schedules, each with its calendars. Unless the schedules are new, links to
    other calendars are deleted.
    """
    if not is_new:
        ids = [schedule_id for schedule_id, _ in given]
        links = delete(ScheduleCalendar).where(ScheduleCalendar.schedule_id.in_(ids))
        execute_dml(session, links)
    add_links(session, ((schedule_id, days) for schedule_id, used in given for days in used))


def add_links(session: Session, given: Iterable[tuple[int, CalendarDays | Row]]) -> None:
    """Link ids of schedules with a calendar each, unless they are linked with it already."""
    rows = [
        {"schedule_id": schedule_id, "calendar_id": calendar.id, "planned_with": calendar.version}
        for schedule_id, calendar in given
    ]
    if rows:
        insert_new(session, LINKS, rows)


def not_in_force(
    session: Session, *, after: int, limit: int, with_late_links: bool
) -> Sequence[Row]:
    """Return up to ``limit`` calendars whose version is not in force, with ids after ``after``.

    A link with an older version can commit after the calendar is in force. Such calendars are found
    only ``with_late_links``, which searches the links of each calendar. The rows have ``id``,
    ``name``, ``version``, ``updated_at`` and ``in_force_at``.
    """
    names = ("id", "name", "version", "updated_at", "in_force_at")
    found: ColumnElement[bool] = _CALENDAR.in_force_at.is_(None)
    if with_late_links:
        older = select(literal(1)).where(
            _LINK.calendar_id == _CALENDAR.id, _LINK.planned_with < _CALENDAR.version
        )
        found = or_(found, older.exists())
    statement = select(*(_CALENDAR[name] for name in names)).where(_CALENDAR.id > after, found)
    return read_rows(session, statement.order_by(_CALENDAR.id).limit(limit))


def lock_free(session: Session, names: Collection[str]) -> Mapping[str, Row]:
    """Lock the calendars with these names, and return them by name.

    Calendars that another transaction has locked are left out. An INSERT of a link would wait for
    them.
    """
    by_name = select(_CALENDAR.id, _CALENDAR.name, _CALENDAR.version)
    by_name = by_name.where(_CALENDAR.name.in_(sorted(names))).order_by(_CALENDAR.id)
    rows = read_rows(session, by_name.with_for_update(skip_locked=True, key_share=True))
    return {row.name: row for row in rows}


def unlink(session: Session, schedule_ids: Sequence[int], *, name: str) -> None:
    """Delete the links of schedules with the calendar of this name."""
    named = select(_CALENDAR.id).where(_CALENDAR.name == name).scalar_subquery()
    links = delete(ScheduleCalendar).where(
        ScheduleCalendar.schedule_id.in_(schedule_ids), ScheduleCalendar.calendar_id == named
    )
    execute_dml(session, links)


def first_schedules(session: Session, *, name: str, limit: int) -> Sequence[Schedule]:
    """Return up to ``limit`` schedules that use a calendar.

    Those that were planned with the oldest version come first.
    """
    calendar_id = select(_CALENDAR.id).where(_CALENDAR.name == name).scalar_subquery()
    linked = select(_LINK.schedule_id).where(_LINK.calendar_id == calendar_id)
    in_order = linked.order_by(_LINK.planned_with, _LINK.schedule_id).limit(limit)
    ids = session.scalars(in_order, bind_arguments=BIND).all()
    rows = session.scalars(select(Schedule).where(Schedule.id.in_(ids)))
    found = {row.id: row for row in rows}
    return [found[each] for each in ids if each in found]


def waiting_ids(
    session: Session, *, calendar_id: int, version: int, after: tuple[int, int], limit: int
) -> Sequence[tuple[int, int]]:
    """Return keys of schedules that were planned with an older version than ``version``.

    A key is the planned version and the id of the schedule. They come in this order, after the key
    ``after``.
    """
    planned, schedule_id = _LINK.planned_with, _LINK.schedule_id
    statement = select(planned, schedule_id).where(
        _LINK.calendar_id == calendar_id,
        planned < version,
        or_(planned > after[0], (planned == after[0]) & (schedule_id > after[1])),
    )
    rows = session.execute(statement.order_by(planned, schedule_id).limit(limit))
    return [(row[0], row[1]) for row in rows]


def set_planned(
    session: Session, schedule_ids: Sequence[int], *, calendar_id: int, version: int
) -> int:
    """Note that schedules are planned with this version of the calendar, or need no plan.

    A link that another transaction has locked stays, so the schedule is planned again later.
    Returns the number of the changed links.
    """
    if not schedule_ids:
        return 0
    older = select(_LINK.schedule_id).where(
        _LINK.calendar_id == calendar_id,
        _LINK.schedule_id.in_(schedule_ids),
        _LINK.planned_with < version,
    )
    free = session.scalars(older.with_for_update(skip_locked=True)).all()
    if free:
        links = update(ScheduleCalendar).where(
            ScheduleCalendar.calendar_id == calendar_id, ScheduleCalendar.schedule_id.in_(free)
        )
        execute_dml(session, links.values(planned_with=version))
    return len(free)


def set_in_force(session: Session, *, calendar_id: int, version: int, now: datetime) -> bool:
    """Note that all schedules are planned with this version; return False if it is not the newest.

    A calendar that another transaction has locked is left for later.
    """
    free = select(_CALENDAR.id).where(
        _CALENDAR.id == calendar_id, _CALENDAR.version == version, _CALENDAR.in_force_at.is_(None)
    )
    if session.scalar(free.with_for_update(skip_locked=True, key_share=True)) is None:
        return False
    row = update(Calendar).where(Calendar.id == calendar_id)
    execute_dml(session, row.values(in_force_at=now))
    return True
