"""The clock of an owner: the default zone of its triggers, and its quiet hours. Read and set them.

The functions at the end read the calendars of triggers and quiet hours for a plan, and link the
schedules with them. A link has the version of the calendar that the plan of its schedule has read.

A new zone plans each schedule that follows the zone again:

    enabled        -> next fire time from now
    with a fire time that waits for a release, the end of quiet hours or a beat -> keeps it
    paused         -> next fire time from now, missed ones are recorded as skipped, stays paused
    quarantined    -> the same if its trigger can be read, and it stays quarantined
    finished       -> stays finished
    no fire time   -> finished
    cannot be planned in the new zone, such as an exclusion that leaves no fire time -> quarantined

Each schedule has the quiet hours of its owner in a column, as it has its owner's zone. A claim
therefore reads nothing else, except the calendar of quiet days, as for a trigger that names a
calendar. New quiet hours write the column and the calendar of each schedule, and when beat claims
it. No fire time and no version changes, because quiet hours are not a field of a schedule:

    next fire time in a window   -> due at the end of the window
    in no window any more        -> due at the fire time, or now if that has passed
    held                         -> due at the end of the hold; beat then applies the windows
    paused, finished             -> nothing is due

The owner's row is locked exclusively first. The change therefore waits for transactions that create
schedules with the old clock. It then also changes the rows that they created.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from celery_dynbeat.api import audit, limits
from celery_dynbeat.api.checks import copy_as, invalid
from celery_dynbeat.api.timing import RowPlan, ScheduleColumns
from celery_dynbeat.common.errors import InvalidTriggerError, UnusableCalendarError
from celery_dynbeat.common.quiet_rule import QuietHours, QuietRule
from celery_dynbeat.common.states import Action
from celery_dynbeat.common.text import as_text
from celery_dynbeat.db.engine import savepoint
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.db.statements import Row, connection_of
from celery_dynbeat.planning import (
    NO_CALENDARS,
    Calendars,
    calendar_names,
    calendars_behind,
    quiet_calendars,
    spec_from_row,
)
from celery_dynbeat.planning.plan import Skip, due_at
from celery_dynbeat.planning.quiet_hours import leaving_time, resolved
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import calendars as calendars_store
from celery_dynbeat.store import owners, runs, schedules
from celery_dynbeat.store.owners import OwnerValues
from celery_dynbeat.triggers import CalendarDays, Trigger
from celery_dynbeat.triggers.calendar_days import check_name
from celery_dynbeat.triggers.zones import load_zone

#: Schedules that are locked, planned and updated together.
BATCH_SIZE = 500
#: The columns that a new zone changes.
_CHANGED = (
    *("timezone", "next_fire_at", "next_run_at", "held_at", "finished_at", "error"),
    *("version", "updated_at"),
)


class OwnerClock(NamedTuple):
    """The zone of an owner, and the column ``quiet_hours`` of its schedules.

    ``calendars`` has the calendar that the quiet hours name, and for a new schedule those of its
    trigger.
    """

    timezone: str
    quiet_hours: str | None = None
    calendars: Calendars = NO_CALENDARS

    def with_calendars(self, calendars: Calendars) -> "OwnerClock":
        """Return the clock with further calendars."""
        return self._replace(calendars={**calendars, **self.calendars}) if calendars else self


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


def lock_new(context: Context, session: Session, owner: str, trigger: Trigger) -> OwnerClock:
    """Return the clock of ``owner`` for a new schedule, locked for this transaction."""
    zoned = [owner] if trigger.needs_zone else []
    return lock_many(context, session, [owner], zoned=zoned)[owner]


def lock_many(
    context: Context, session: Session, names: Collection[str], *, zoned: Collection[str]
) -> Mapping[str, OwnerClock]:
    """Return the clocks by owner, with the locks of ``lock_rows``.

    Raises InvalidArgumentError if SQL wrote quiet hours that cannot be read, and
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
        found = existing_calendars(session, wanted)
        check_exist(wanted, found)
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
    rules = [] if everybody is None else [everybody]
    rules += [] if stored is None else [QuietRule.from_json(owner, stored)]
    return OwnerClock(timezone, resolved(leaving_time(rules), timezone=timezone))


def checked_rule(windows: object, calendar: object) -> QuietRule:
    """Return the quiet hours that a call gave. Raises InvalidArgumentError."""
    if calendar is not None:
        calendar = check_name(calendar)
    rule = "must be a list of QuietHours, or of texts such as 'mon-fri 22:00-07:00'"
    if isinstance(windows, (str, QuietHours, Mapping)) or not isinstance(windows, Iterable):
        raise invalid("windows", windows, rule)
    listed = copy_as(list, "windows", windows)
    if not listed and calendar is None:
        rule = "has no window, and there is no calendar; call clear_quiet_hours() to remove all"
        raise invalid("windows", listed, rule)
    return QuietRule.of(listed, calendar)


def change_quiet_hours(
    context: Context, session: Session, *, owner: str, rule: QuietRule | None
) -> int:
    """Set the quiet hours of an owner. Return how many schedules changed."""
    owners.lock(session, [owner])
    before = owners.values_of(session, [owner], locked=[owner])[owner].quiet_hours
    if rule is not None and rule.calendar is not None:
        keep_calendar(session, rule.calendar)
    after = None if rule is None else rule.to_json()
    if before != after:
        owners.set_quiet_hours(session, owner=owner, quiet_hours=after)
        edit = audit.Edit(
            owner=owner,
            action=Action.SET_QUIET_HOURS,
            old={"quiet_hours": before},
            new={"quiet_hours": after},
        )
        audit.record(context, session, [edit], now=context.clock.now())
    return apply_quiet_hours(context, session, owner=owner)


def apply_quiet_setting(context: Context, session: Session, *, owner: str) -> int:
    """Write the quiet hours of an owner again, after a change of ``dynbeat_quiet_hours``."""
    owners.lock(session, [owner])
    return apply_quiet_hours(context, session, owner=owner)


def apply_quiet_hours(context: Context, session: Session, *, owner: str) -> int:
    """Write the quiet hours of the schedules of a locked owner.

    Return how many changed. This is also called after a change of the owner's zone.
    """
    quiet_hours = read(context, session, owner, locked=[owner]).quiet_hours

    def edit(rows: Sequence[Row], now: datetime) -> Sequence[dict[str, Any]]:
        before = {row.id: row.quiet_hours for row in rows if row.quiet_hours != quiet_hours}
        changed = [ScheduleColumns.of(row) for row in rows if row.id in before]
        for row in changed:
            row.quiet_hours = quiet_hours
        calendars = schedules.calendars_of(session, changed)
        links = [(row, before[row.id]) for row in changed]
        link_quiet(session, links, calendars)
        return [_with_quiet_hours(context, row, calendars, now=now) for row in changed]

    return _replan_in_batches(context, session, partial(owners.lock_schedules, owner=owner), edit)


def _with_quiet_hours(
    context: Context, row: ScheduleColumns, calendars: Calendars, *, now: datetime
) -> dict[str, Any]:
    """Return the columns of a schedule that its new quiet hours change."""
    changed = {"id": row.id, "quiet_hours": row.quiet_hours, "next_run_at": row.next_run_at}
    if row.next_run_at is None or row.next_fire_at is None or row.held_at is not None:
        return changed
    try:
        at = due_at(spec_from_row(row, context.settings, calendars), row.next_fire_at, now=now)
    except InvalidTriggerError:
        # Beat quarantines it when it is due.
        return changed
    # Not before now, because beat reads the index from its watermark on.
    return {**changed, "next_run_at": max(at, now)}


def _replan_in_batches(
    context: Context,
    session: Session,
    lock: Callable[..., Sequence[Row]],
    edit: Callable[[Sequence[Row], datetime], Sequence[dict[str, Any]]],
) -> int:
    """Lock the rows in the order of their names, write what ``edit`` returns, and notify beat.

    Return the number of changed schedules.
    """
    count, due, after = 0, [], ""
    while rows := lock(session, after=after, limit=BATCH_SIZE):
        after = rows[-1].name
        # Read after the rows are locked, because beat may have advanced them while this transaction
        # waited.
        changes = edit(rows, context.clock.now())
        owners.replan(session, changes)
        count += len(changes)
        due += [each["next_run_at"] for each in changes if each["next_run_at"] is not None]
    if count:
        # Later calls in the caller's session load the changed rows again.
        for loaded in list(session.identity_map.values()):
            if isinstance(loaded, Schedule):
                session.expire(loaded)
        context.notify_beat(session, next_run_at=min(due, default=None), now=context.clock.now())
    return count


def checked_zone(given: object) -> str | None:
    """Return the name of a zone that a call gave. Raises InvalidArgumentError."""
    zone = as_text(given)
    if zone is None:
        return None
    if not isinstance(zone, str):
        rule = "must be a name of the tz database, such as 'Asia/Seoul'"
        raise invalid("zone", zone, rule, "zone")
    try:
        load_zone(zone)
    except InvalidTriggerError as error:
        raise invalid("zone", zone, str(error), "zone") from error
    return zone


def change_zone(context: Context, session: Session, *, owner: str, zone: str | None) -> int:
    """Set the zone of an owner. Return how many schedules moved."""
    owners.lock(session, [owner])
    before = read(context, session, owner, locked=[owner]).timezone
    owners.set_timezone(session, owner=owner, timezone=zone)
    timezone = zone or context.settings.timezone
    if before != timezone:
        edit = _zone_edit(owner, "", before, timezone)
        audit.record(context, session, [edit], now=context.clock.now())
    # The windows are on the clock of the zone.
    clock = read(context, session, owner, locked=[owner])
    has_quiet_hours = clock.quiet_hours is not None
    if has_quiet_hours:
        # This comes before the schedules that follow the zone, because all rows are locked in the
        # order of their names.
        owners.lock_all_schedules(session, owner=owner, batch_size=BATCH_SIZE)
    moved = _follow_zone(context, session, owner=owner, timezone=timezone)
    if has_quiet_hours:
        apply_quiet_hours(context, session, owner=owner)
    return moved


def _zone_edit(owner: str, name: str, before: str, timezone: str) -> audit.Edit:
    """Return the edit of a schedule, or of the owner (name ""), that leaves the zone ``before``."""
    return audit.Edit(
        owner=owner,
        name=name,
        action=Action.SET_TIMEZONE,
        old={"timezone": before},
        new={"timezone": timezone},
    )


def _follow_zone(context: Context, session: Session, *, owner: str, timezone: str) -> int:
    """Plan the schedules that follow the zone again, in batches. Return their number."""

    def edit(rows: Sequence[Row], now: datetime) -> Sequence[dict[str, Any]]:
        changes, skipped = [], []
        for values in rows:
            row = ScheduleColumns.of(values)
            missed = _follow(RowPlan(context, session, row, now=now), timezone=timezone)
            row.version += 1
            row.updated_at = now
            skipped += [runs.skipped_row(row, skip, now=now) for skip in missed]
            changes.append({"id": row.id, **{name: getattr(row, name) for name in _CHANGED}})
        runs.add(session, skipped)
        edits = (_zone_edit(row.owner, row.name, row.timezone, timezone) for row in rows)
        audit.record(context, session, edits, now=now)
        return changes

    lock = partial(owners.lock_zoned, owner=owner, timezone=timezone)
    return _replan_in_batches(context, session, lock, edit)


def _follow(plan: RowPlan, *, timezone: str) -> Sequence[Skip]:
    """Move a row into ``timezone``, and return the fire times that it missed until now.

    The caller sets the version of the row.
    """
    row = plan.row
    if plan.has_waiting_fire_time:
        row.timezone = timezone
        return ()
    # This comes before the change, because the old zone defines the missed fire times.
    missed: Sequence[Skip] = ()
    if row.finished_at is None and row.next_fire_at is not None and row.next_fire_at <= plan.now:
        missed = plan.missed()
    row.timezone = timezone
    # If next_fire_at is NULL, the row is finished, or beat has not planned it yet.
    if row.finished_at is None and row.next_fire_at is not None:
        _replan(plan)
    return missed


def _replan(plan: RowPlan) -> None:
    row = plan.row
    is_quarantined = row.error is not None
    try:
        plan.plan()
    except InvalidTriggerError as error:
        if is_quarantined:
            return
        cause: Exception = error
        if names := calendars_behind(row, error):
            # The next edit of a calendar may end the quarantine.
            cause = UnusableCalendarError.from_trigger_error(names, error)
        row.next_fire_at = None
        plan.quarantine(cause)
    if not row.enabled or row.error is not None:
        row.finished_at = row.next_run_at = row.held_at = None


def read_calendars(
    session: Session, trigger: Trigger | None, *, quiet_hours: str | None = None
) -> Calendars:
    """Return the calendars of a trigger and of the column ``quiet_hours``.

    If there are none, no query is made. Raises InvalidTriggerError if one does not exist.
    """
    wanted = {*quiet_calendars(quiet_hours), *(trigger.calendar_names if trigger else ())}
    if not wanted:
        return NO_CALENDARS
    found = existing_calendars(session, wanted)
    check_exist(wanted, found)
    return found


def existing_calendars(session: Session, names: Iterable[str]) -> Calendars:
    """Return the calendars with these names that exist. If there are no names, no query is made."""
    wanted = {*names}
    if not wanted:
        return NO_CALENDARS
    with session.no_autoflush:
        return calendars_store.read(session, wanted)


def keep_calendar(session: Session, name: str) -> None:
    """Lock a calendar in share mode, so that it is not deleted before the commit.

    Raises InvalidTriggerError if it does not exist.
    """
    check_exist([name], calendars_store.lock_shared(session, name))


def check_exist(names: Iterable[str], found: Mapping[str, object]) -> None:
    """Raise InvalidTriggerError if one of the names is not among the ``found`` calendars."""
    missing = sorted({*names} - found.keys())
    if missing:
        # Not the calendars that exist: an owner shows this error to its user.
        rule = "create it with dynbeat.calendars.upsert()"
        message = f"calendar {missing[0]!r}: there is no calendar with this name; {rule}"
        name = f"calendar {missing[0]}"
        raise InvalidTriggerError(message, field="calendar", code="unknown", name=name)


def link(session: Session, rows: Sequence[Schedule], calendars: Calendars, *, is_new: bool) -> None:
    """Link written rows with their calendars, which their plans have read.

    Unless they are new, links to other calendars are deleted. Raises InvalidTriggerError if a
    calendar was deleted in the meantime. The caller undoes its changes of the rows then.
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
    try:
        # Not flushed, so that the caller can still undo its changes of the rows.
        with savepoint(connection_of(session)), session.no_autoflush:
            calendars_store.link(session, used, is_new=is_new)
    except IntegrityError as error:
        names = ", ".join(sorted({days.name for _, each in used for days in each}))
        message = f"calendar {names}: it was deleted in the meantime; repeat the call"
        raise InvalidTriggerError(message, field="calendar", code="stale") from error


def link_quiet(
    session: Session, rows: Iterable[tuple[Schedule, str | None]], calendars: Calendars
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
        calendars_store.add_links(session, added)
        for name, ids in removed.items():
            calendars_store.unlink(session, ids, name=name)
