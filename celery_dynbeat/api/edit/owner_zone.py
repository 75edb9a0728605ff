"""What a new schedule gets from its owner: the default zone of its trigger, and quiet hours."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from sqlalchemy.orm import Session

from celery_dynbeat.api.edit import limits, used_calendars
from celery_dynbeat.planning import NO_CALENDARS, Calendars, quiet_calendars
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import owners
from celery_dynbeat.store.owners import OwnerValues
from celery_dynbeat.triggers import Trigger


class OwnerClock(NamedTuple):
    """The zone of an owner, and the column ``quiet_hours`` of its schedules.

    ``calendars`` has the calendar that the quiet hours name.
    """

    timezone: str
    quiet_hours: str | None = None
    calendars: Calendars = NO_CALENDARS


def lock(context: Context, session: Session, owner: str, trigger: Trigger | None) -> str:
    """Return the zone of ``owner`` for a trigger that needs one, locked for this transaction.

    Call it before the lock of a schedule. For any other trigger nothing is read.
    """
    if trigger is None or not trigger.needs_zone:
        return context.settings.timezone
    return timezone_of(context, lock_rows(context, session, [owner], zoned=[owner]).get(owner))


def lock_rows(
    context: Context, session: Session, names: Collection[str], *, zoned: Collection[str] = ()
) -> Mapping[str, OwnerValues]:
    """Return the values of owners, locked for this transaction.

    ``zoned`` are the owners whose zone is needed. Each of them gets a row, so that a change of the
    zone waits. The rows of the others are locked if they exist. If there is a quota, the rows are
    locked exclusively, because a later upgrade from a share lock to an exclusive lock could end in
    a deadlock.
    """
    limits.lock_owners(context, session, names)
    return owners.lock_values(session, names, inserted=zoned)


def lock_new(context: Context, session: Session, owner: str, *, needs_zone: bool) -> OwnerClock:
    """Return the clock of ``owner`` for a new schedule, locked for this transaction."""
    zoned = [owner] if needs_zone else []
    return lock_many(context, session, [owner], zoned=zoned)[owner]


def lock_many(
    context: Context, session: Session, names: Collection[str], *, zoned: Collection[str]
) -> Mapping[str, OwnerClock]:
    """Return the clocks by owner, with the locks of ``lock_rows``.

    Raises InvalidScheduleError if SQL wrote quiet hours that cannot be read, and
    InvalidTriggerError if their calendar does not exist.
    """
    known = lock_rows(context, session, names, zoned=zoned)
    return _completed(context, session, names, known)


def read(
    context: Context, session: Session, owner: str, *, locked: Collection[str] = ()
) -> OwnerClock:
    """Return the clock of ``owner``, without a new lock. The rows of ``locked`` are locked."""
    return read_many(context, session, [owner], locked=locked)[owner]


def read_many(
    context: Context, session: Session, names: Collection[str], *, locked: Collection[str] = ()
) -> Mapping[str, OwnerClock]:
    """Return the clocks by owner, without new locks. The rows of ``locked`` are locked."""
    found = owners.values_of(session, names, locked=locked)
    return _completed(context, session, names, found)


def _completed(
    context: Context,
    session: Session,
    names: Collection[str],
    known: Mapping[str, OwnerValues],
) -> Mapping[str, OwnerClock]:
    clocks = {owner: _clock(context, owner, known.get(owner)) for owner in names}
    used = {owner: quiet_calendars(clock.quiet_hours) for owner, clock in clocks.items()}
    wanted = {name for each in used.values() for name in each}
    if wanted:
        found = used_calendars.read_existing(session, wanted)
        used_calendars.check_exist(wanted, found)
        clocks = {
            owner: clock._replace(calendars={name: found[name] for name in used[owner]})
            for owner, clock in clocks.items()
        }
    return clocks


def calendars_of(clocks: Mapping[str, OwnerClock]) -> Calendars:
    """Return the calendars of quiet days of several owners."""
    return {name: days for clock in clocks.values() for name, days in clock.calendars.items()}


def timezone_of(context: Context, own: OwnerValues | None) -> str:
    """Return the zone in the row of an owner, or the default zone."""
    return (own and own.timezone) or context.settings.timezone


def _clock(context: Context, owner: str, own: OwnerValues | None) -> OwnerClock:
    timezone, stored = timezone_of(context, own), None if own is None else own.quiet_hours
    everybody = context.settings.quiet_hours
    if everybody is None and stored is None:
        return OwnerClock(timezone)
    # A late import: few owners have quiet hours.
    from celery_dynbeat.common.quiet_rule import QuietRule  # noqa: PLC0415
    from celery_dynbeat.planning.quiet_hours import leaving_time, resolved  # noqa: PLC0415

    rules = [] if everybody is None else [everybody]
    rules += [] if stored is None else [QuietRule.from_json(owner, stored)]
    return OwnerClock(timezone, resolved(leaving_time(rules), timezone=timezone))
