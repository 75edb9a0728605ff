"""What a new schedule gets from its owner: the default zone of its trigger, and quiet hours."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from sqlalchemy.orm import Session

from celery_dynbeat.api.edit import limits
from celery_dynbeat.common.text import groups_of
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import owners
from celery_dynbeat.store.owners import OwnerValues
from celery_dynbeat.triggers import Trigger


class OwnerClock(NamedTuple):
    """The zone of an owner, and the column ``quiet_hours`` of its schedules."""

    timezone: str
    quiet_hours: str | None = None


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
    """Return the values of owners and their groups, locked for this transaction.

    ``zoned`` are the owners whose zone is needed. Each of them gets a row, so that a change of the
    zone waits. The rows of the others are locked if they exist. If there is a quota, the rows are
    locked exclusively, because a later upgrade from a share lock to an exclusive lock could end in
    a deadlock.
    """
    limits.lock_owners(context, session, names)
    return owners.lock_values(session, _with_groups(names), inserted=zoned)


def lock_new(context: Context, session: Session, owner: str, *, needs_zone: bool) -> OwnerClock:
    """Return the clock of ``owner`` for a new schedule, locked for this transaction."""
    zoned = [owner] if needs_zone else []
    return lock_many(context, session, [owner], zoned=zoned)[owner]


def lock_many(
    context: Context, session: Session, names: Collection[str], *, zoned: Collection[str]
) -> Mapping[str, OwnerClock]:
    """Return the clocks by owner, with the locks of ``lock_rows``.

    Raises InvalidScheduleError if SQL wrote quiet hours that cannot be read.
    """
    return _completed(context, names, lock_rows(context, session, names, zoned=zoned))


def read(
    context: Context, session: Session, owner: str, *, locked: Collection[str] = ()
) -> OwnerClock:
    """Return the clock of ``owner``, without a new lock. The rows of ``locked`` are locked."""
    return read_many(context, session, [owner], locked=locked)[owner]


def read_many(
    context: Context, session: Session, names: Collection[str], *, locked: Collection[str] = ()
) -> Mapping[str, OwnerClock]:
    """Return the clocks by owner, without new locks. The rows of ``locked`` are locked."""
    found = owners.values_of(session, _with_groups(names), locked=locked)
    return _completed(context, names, found)


def _with_groups(names: Collection[str]) -> Collection[str]:
    return {name for owner in names for name in (*groups_of(owner), owner)}


def _completed(
    context: Context, names: Collection[str], known: Mapping[str, OwnerValues]
) -> Mapping[str, OwnerClock]:
    return {owner: _clock(context, owner, known) for owner in names}


def timezone_of(context: Context, own: OwnerValues | None) -> str:
    """Return the zone in the row of an owner, or the default zone."""
    return (own and own.timezone) or context.settings.timezone


def _clock(context: Context, owner: str, known: Mapping[str, OwnerValues]) -> OwnerClock:
    timezone = timezone_of(context, known.get(owner))
    names = [name for name in (*groups_of(owner), owner) if name in known]
    stored = [(name, known[name].quiet_hours) for name in names]
    if all(value is None for _, value in stored):
        return OwnerClock(timezone)
    # A late import: few owners have quiet hours.
    from celery_dynbeat.planning.quiet_hours import QuietRule, leaving_time, resolved  # noqa: PLC0415

    rules = [QuietRule.from_json(name, value) for name, value in stored if value is not None]
    return OwnerClock(timezone, resolved(leaving_time(rules), timezone=timezone))
