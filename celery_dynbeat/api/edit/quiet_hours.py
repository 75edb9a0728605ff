"""The quiet hours of an owner: windows and days in which its runs are not sent.

Each schedule has the quiet hours of its owner in a column, as it has its owner's zone. A claim
therefore reads nothing else, except the calendar of quiet days, as for a trigger that names a
calendar. A change writes the column and the calendar of each schedule, and when beat claims it:

    next fire time in a window   -> due at the end of the window
    in no window any more        -> due at the fire time, or now if that has passed
    held                         -> due at the end of the hold; beat then applies the windows
    paused, finished             -> nothing is due

No fire time and no version changes, because quiet hours are not a field of a schedule.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.api.calls import Calls
from celery_dynbeat.api.checks import copy_as, invalid
from celery_dynbeat.api.columns import ScheduleColumns
from celery_dynbeat.api.edit import audit, owner_zone, used_calendars
from celery_dynbeat.api.results.quiet_hours import QuietHoursInfo
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.quiet_rule import QuietHours, QuietRule, quiet_spans
from celery_dynbeat.common.states import Action
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.db.statements import Row
from celery_dynbeat.planning import Calendars, spec_from_row
from celery_dynbeat.planning.plan import due_at
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import owners, schedules
from celery_dynbeat.triggers.calendar_days import check_name

#: The number of schedules that are locked and updated together.
BATCH_SIZE = 500


class QuietHoursCalls(Calls):
    """The calls for the quiet hours of an owner."""

    @property
    def _whose(self) -> str:
        assert self._owner is not None  # noqa: S101 - no calls of all owners
        return self._owner

    def quiet_hours(self) -> Sequence[QuietHoursInfo]:
        """Return the quiet hours that apply, those of the owner last.

        ``dynbeat_quiet_hours`` has None as its owner.

        >>> mine.quiet_hours()
        []
        """
        owner = self._whose

        def work(session: Session) -> Mapping[str, owners.OwnerValues]:
            return owners.values_of(session, [owner])

        found = self._read(work).get(owner)
        stored = None if found is None else found.quiet_hours
        rules = {
            None: self._context.settings.quiet_hours,
            owner: None if stored is None else QuietRule.from_json(owner, stored),
        }
        return [
            QuietHoursInfo(owner=name, windows=tuple(rule.windows), calendar=rule.calendar)
            for name, rule in rules.items()
            if rule is not None
        ]

    def set_quiet_hours(
        self,
        windows: Iterable[QuietHours | str] = (),
        *,
        calendar: str | None = None,
    ) -> int:
        """Send no run of the owner at these times.

        - ``windows`` and ``calendar`` replace the present ones. At least one is required.
        - Each window is a ``QuietHours``, or a text such as
          ``"mon-fri 22:00-07:00"``. At most 50 are allowed. The clock of the owner's time zone
          decides. The windows of ``dynbeat_quiet_hours`` apply together with them.
        - A fire time in a window is sent when the quiet time ends. ``catch_up`` decides about
          several of them: ``"latest"`` sends the newest one. To skip fire times, use a trigger that
          excludes them.
        - ``calendar`` is the name of a shared calendar. Its dates are quiet days, from midnight to
          midnight on the clock of the owner. Without it, the quiet days of
          ``dynbeat_quiet_hours`` apply.
        - Runs of ``run_now`` start as usual. Retries wait, and backfills and reruns without
          ``now=True``.

        The schedules are planned again in the same transaction. Returns how many changed. Raises
        InvalidScheduleError if a window is invalid, or if the windows together leave no time to
        send a run, and InvalidTriggerError if there is no such calendar.

        >>> mine.set_quiet_hours([QuietHours("22:00", "07:00"), "sat,sun 00:00-00:00"])
        1
        >>> [str(window) for window in mine.quiet_hours()[0].windows]
        ['22:00-07:00', 'sat,sun 00:00-00:00']
        """
        rule = _checked(windows, calendar)
        everybody = self._context.settings.quiet_hours
        if everybody is not None:
            quiet_spans([everybody, rule])

        def work(session: Session) -> int:
            return _change(self._context, session, owner=self._whose, rule=rule)

        return self._write(work)

    def clear_quiet_hours(self) -> int:
        """Remove the quiet hours of the owner. Return how many schedules changed.

        Fire times that wait for the end of a window are due at once.

        >>> mine.clear_quiet_hours()
        0
        """

        def work(session: Session) -> int:
            return _change(self._context, session, owner=self._whose, rule=None)

        return self._write(work)


def _checked(windows: object, calendar: object) -> QuietRule:
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


def _change(context: Context, session: Session, *, owner: str, rule: QuietRule | None) -> int:
    owners.lock(session, [owner])
    before = owners.values_of(session, [owner], locked=[owner])[owner].quiet_hours
    if rule is not None and rule.calendar is not None:
        used_calendars.keep(session, rule.calendar)
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
    return apply(context, session, owner=owner)


def apply_setting(context: Context, session: Session, *, owner: str) -> int:
    """Write the quiet hours of an owner again, after a change of ``dynbeat_quiet_hours``."""
    owners.lock(session, [owner])
    return apply(context, session, owner=owner)


def apply(context: Context, session: Session, *, owner: str) -> int:
    """Write the quiet hours of the schedules of a locked owner.

    Return how many changed. This is also called after a change of the owner's zone.
    """
    count, earliest = 0, None
    clock, after = owner_zone.read(context, session, owner, locked=[owner]), ""
    while rows := owners.lock_schedules(session, owner=owner, after=after, limit=BATCH_SIZE):
        after = rows[-1].name
        # Read after the rows are locked, because beat may have advanced them while this transaction
        # waited.
        now = context.clock.now()
        changing = [row for row in rows if row.quiet_hours != clock.quiet_hours]
        changed = [_with(row, clock.quiet_hours) for row in changing]
        calendars = schedules.calendars_of(session, changed)
        changes = [_changed(context, row, calendars, now=now) for row in changed]
        owners.replan(session, changes)
        before = [row.quiet_hours for row in changing]
        used_calendars.link_quiet(session, zip(changed, before, strict=True), calendars)
        count += len(changes)
        due = [each["next_run_at"] for each in changes if each["next_run_at"] is not None]
        earliest = min([*due, *([] if earliest is None else [earliest])], default=None)
    if count:
        expire_loaded(session)
        context.notify_beat(session, next_run_at=earliest, now=context.clock.now())
    return count


def _with(row: Row, quiet_hours: str | None) -> ScheduleColumns:
    columns = ScheduleColumns.of(row)
    columns.quiet_hours = quiet_hours
    return columns


def _changed(
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


def expire_loaded(session: Session) -> None:
    """Make later calls in the caller's session load the changed rows again."""
    for loaded in list(session.identity_map.values()):
        if isinstance(loaded, Schedule):
            session.expire(loaded)
