"""The calendars of triggers and quiet hours: read them for a plan, and link the schedules.

A link has the version of the calendar that the plan of its schedule has read. The module that
queries calendars is imported only for a trigger that uses one.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from celery_dynbeat.api.columns import ScheduleRow
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.db.engine import savepoint
from celery_dynbeat.planning import NO_CALENDARS, Calendars, calendar_names, quiet_calendars
from celery_dynbeat.triggers import CalendarDays, Trigger


def read(session: Session, trigger: Trigger | None, *, quiet_hours: str | None = None) -> Calendars:
    """Return the calendars of a trigger and of the column ``quiet_hours``.

    If there are none, no query is made.

    Raises InvalidTriggerError if one does not exist.
    """
    wanted = {*quiet_calendars(quiet_hours), *(trigger.calendar_names if trigger else ())}
    if not wanted:
        return NO_CALENDARS
    found = read_existing(session, wanted)
    check_exist(wanted, found)
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


def keep(session: Session, name: str) -> None:
    """Lock a calendar in share mode, so that it is not deleted before the commit.

    Raises InvalidTriggerError if it does not exist.
    """
    # A late import, as above.
    from celery_dynbeat.store import calendars  # noqa: PLC0415

    check_exist([name], calendars.lock_shared(session, name))


def check_exist(names: Iterable[str], found: Mapping[str, object]) -> None:
    """Raise InvalidTriggerError if one of the names is not among the ``found`` calendars."""
    missing = sorted({*names} - found.keys())
    if missing:
        # Not the calendars that exist: an owner shows this error to its user.
        rule = "create it with dynbeat.calendars.upsert()"
        message = f"calendar {missing[0]!r}: there is no calendar with this name; {rule}"
        raise InvalidTriggerError(message, field="calendar")


def link(
    session: Session, rows: Sequence[ScheduleRow], calendars: Calendars, *, is_new: bool
) -> None:
    """Link written rows with their calendars, which their plans have read.

    Unless they are new, links to other calendars are deleted. Raises InvalidTriggerError if a
    calendar was deleted in the meantime.
    """
    if is_new and not calendars:
        return
    used = [
        (row.id, [calendars[name] for name in calendar_names([row]) if name in calendars])
        for row in rows
    ]
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


def link_quiet(
    session: Session, rows: Iterable[tuple[ScheduleRow, str | None]], calendars: Calendars
) -> None:
    """Link rows with the calendars of their quiet hours, which replace the given ones.

    The links of their triggers stay: no plan has read newer versions of these calendars.
    """
    added: list[tuple[int, CalendarDays]] = []
    removed: defaultdict[str, list[int]] = defaultdict(list)
    for row, before in rows:
        names, old = quiet_calendars(row.quiet_hours), quiet_calendars(before)
        if names != old:
            added += [(row.id, calendars[name]) for name in names if name in calendars]
            for name in {*old} - calendar_names([row]):
                removed[name].append(row.id)
    if added or removed:
        from celery_dynbeat.store import calendars as stored  # noqa: PLC0415

        stored.link_more(session, added)
        for name, ids in removed.items():
            stored.unlink(session, ids, name=name)
