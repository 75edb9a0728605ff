"""The calendars that the triggers of schedules use: read them for a plan, and link the schedules.

A link has the version of the calendar that the plan of its schedule has read. The module that
queries calendars is imported only for a trigger that uses one.
"""

from collections.abc import Iterable, Sequence

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from celery_dynbeat.api.columns import ScheduleRow
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.db.engine import savepoint
from celery_dynbeat.planning import NO_CALENDARS, Calendars, calendar_names
from celery_dynbeat.triggers import Trigger

#: Calendars that an error names.
_MAX_NAMED = 20


def read(session: Session, *triggers: Trigger | None) -> Calendars:
    """Return the calendars that the triggers use. If there are none, no query is made.

    Raises InvalidTriggerError with the calendars that exist if one does not.
    """
    wanted = {name for trigger in triggers if trigger for name in trigger.calendar_names}
    if not wanted:
        return NO_CALENDARS
    found = read_existing(session, wanted)
    check_exist(session, wanted, found)
    return found


def read_existing(session: Session, names: Iterable[str]) -> Calendars:
    """Return the calendars with these names that exist. If there are no names, no query is made."""
    wanted = {*names}
    if not wanted:
        return NO_CALENDARS
    # A late import: few triggers use calendars.
    from celery_dynbeat.store import calendars  # noqa: PLC0415

    with session.no_autoflush:
        return calendars.read(session, wanted)


def check_exist(session: Session, names: Iterable[str], found: Calendars) -> None:
    """Raise InvalidTriggerError if one of the names is not among the ``found`` calendars."""
    missing = sorted({*names} - found.keys())
    if missing:
        from celery_dynbeat.store import calendars  # noqa: PLC0415

        known = calendars.names(session, limit=_MAX_NAMED + 1)
        listed = ", ".join(known[:_MAX_NAMED]) + (", ..." if known[_MAX_NAMED:] else "")
        fix = "create it with dynbeat.calendars.put()"
        rule = f"{fix}, known are {listed}" if known else fix
        message = f"calendar {missing[0]!r}: there is no calendar with this name; {rule}"
        raise InvalidTriggerError(message, field="calendar")


def link(
    session: Session, rows: Sequence[ScheduleRow], calendars: Calendars, *, is_new: bool
) -> None:
    """Link written rows with the calendars of their triggers, which their plans have read.

    Unless they are new, links to other calendars are deleted. Raises InvalidTriggerError if a
    calendar was deleted in the meantime.
    """
    if is_new and not calendars:
        return
    used = [(row.id, [calendars[name] for name in calendar_names([row])]) for row in rows]
    used = [each for each in used if each[1] or not is_new]
    if not used:
        return
    from celery_dynbeat.store import calendars as stored  # noqa: PLC0415

    try:
        with savepoint(session):
            stored.link(session, used, is_new=is_new)
    except IntegrityError as error:
        names = ", ".join(sorted({days.name for _, each in used for days in each}))
        message = f"calendar {names}: it was deleted in the meantime; repeat the call"
        raise InvalidTriggerError(message, field="calendar") from error
