"""The quiet hours of an owner or a group: weekly windows in which its runs are not sent.

Each schedule has the quiet hours of its owner and groups in a column, as it has its owner's zone. A
claim therefore reads nothing else. A change writes the column of each schedule, and when beat
claims it:

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
from celery_dynbeat.api.edit import audit, owner_zone
from celery_dynbeat.api.results.quiet_hours import QuietHoursInfo
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.states import Action
from celery_dynbeat.common.text import groups_of
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.db.statements import Row
from celery_dynbeat.planning import Calendars, spec_from_row
from celery_dynbeat.planning.plan import due_at
from celery_dynbeat.planning.quiet_hours import (
    MAX_WINDOWS,
    POLICIES,
    QuietHours,
    QuietRule,
    leaving_time,
    resolved,
)
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import owners, schedules

#: The number of schedules that are locked and updated together.
BATCH_SIZE = 500


class QuietHoursCalls(Calls):
    """The calls for the quiet hours of an owner or a group."""

    @property
    def _whose(self) -> str:
        assert self._owner is not None  # noqa: S101 - no calls of all owners
        return self._owner

    def quiet_hours(self, *, session: Session | None = None) -> Sequence[QuietHoursInfo]:
        """Return the quiet hours of the groups, the largest group first, and then of the owner.

        >>> mine.quiet_hours()
        []
        """
        names = [*groups_of(self._whose), self._whose]

        def work(session: Session) -> Mapping[str, owners.OwnerValues]:
            return owners.values_of(session, names)

        found = self._context.read(session, work)
        stored = {name: found[name].quiet_hours for name in names if name in found}
        return [_info(name, value) for name, value in stored.items() if value is not None]

    def set_quiet_hours(
        self,
        windows: Iterable[QuietHours | str],
        *,
        policy: str = "after",
        actor: str | None = None,
        reason: str | None = None,
        session: Session | None = None,
    ) -> int:
        """Send no run of the owner, or of the owners of the group, in these weekly windows.

        - ``windows`` replace the present ones. Each is a ``QuietHours``, or a text such as
          ``"mon-fri 22:00-07:00"``. At most 50 are allowed. The clock of each owner's time zone
          decides. The windows of an owner and of its groups apply together. If a group sets its
          windows later and both together leave no time, only the windows of the group apply.
        - With ``policy="after"`` a fire time in a window is sent when the quiet time ends.
          ``catch_up`` decides about several of them: ``"latest"`` sends the newest one.
        - With ``policy="skip"`` a fire time in a window is recorded as skipped.
        - Runs of ``run_now``, reruns, backfills and retries start as usual.

        The schedules are planned again in the same transaction. Returns how many changed. Raises
        InvalidScheduleError if a window is invalid, or if the windows leave no time to send a run.

        >>> mine.set_quiet_hours([QuietHours("22:00", "07:00"), "sat,sun 00:00-00:00"])
        1
        >>> [str(window) for window in mine.quiet_hours()[0].windows]
        ['22:00-07:00', 'sat,sun 00:00-00:00']
        """
        rule = _checked(windows, policy)

        def work(session: Session) -> int:
            return _change(self._context, session, owner=self._whose, rule=rule)

        return self._write(session, work, actor=actor, reason=reason)

    def clear_quiet_hours(
        self,
        *,
        actor: str | None = None,
        reason: str | None = None,
        session: Session | None = None,
    ) -> int:
        """Remove the quiet hours of the owner, or of the group. Return how many schedules changed.

        The quiet hours of the groups of an owner stay. Fire times that wait for the end of a
        window are due at once.

        >>> mine.clear_quiet_hours()
        0
        """

        def work(session: Session) -> int:
            return _change(self._context, session, owner=self._whose, rule=None)

        return self._write(session, work, actor=actor, reason=reason)


def _info(owner: str, stored: Mapping[str, Any]) -> QuietHoursInfo:
    rule = QuietRule.from_json(owner, stored)
    return QuietHoursInfo(owner=owner, windows=tuple(rule.windows), policy=rule.policy)


def _checked(windows: object, policy: object) -> QuietRule:
    if policy not in POLICIES:
        raise invalid("policy", policy, 'must be "after" or "skip"')
    rule = "must be a list of QuietHours, or of texts such as 'mon-fri 22:00-07:00'"
    if isinstance(windows, (str, QuietHours, Mapping)) or not isinstance(windows, Iterable):
        raise invalid("windows", windows, rule)
    listed = copy_as(list, "windows", windows)
    if len(listed) > MAX_WINDOWS:
        raise invalid("windows", listed, f"has too many windows, at most {MAX_WINDOWS}")
    if not listed:
        raise invalid("windows", listed, "has no window; call clear_quiet_hours() to remove all")
    given = [
        each if isinstance(each, QuietHours) else QuietHours.from_text(each) for each in listed
    ]
    checked = QuietRule(given, str(policy))
    resolved([checked], timezone="UTC")
    return checked


def _change(context: Context, session: Session, *, owner: str, rule: QuietRule | None) -> int:
    lock(session, owner)
    names = groups_of(owner)
    found = owners.values_of(session, [*names, owner], locked=[*names, owner])
    before = found[owner].quiet_hours
    if rule is not None:
        stored = [(name, found[name].quiet_hours) for name in names if name in found]
        groups = [QuietRule.from_json(name, value) for name, value in stored if value is not None]
        resolved([*leaving_time(groups), rule], timezone="UTC")
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


def lock(session: Session, owner: str) -> None:
    """Lock the rows behind the quiet hours of the owner or the group, groups in share mode."""
    if groups_of(owner):
        owners.lock_values(session, (), inserted=groups_of(owner))
    owners.lock(session, [owner])


def apply(context: Context, session: Session, *, owner: str) -> int:
    """Write the quiet hours of the schedules of a locked owner or group.

    Return how many changed. This is also called after a change of the owner's zone.
    """
    count, earliest = 0, None
    locked = [*groups_of(owner), owner]
    after = (owner, "")
    while rows := owners.lock_schedules(session, owner=owner, after=after, limit=BATCH_SIZE):
        after = (rows[-1].owner, rows[-1].name)
        whose = {row.owner for row in rows}
        clocks = owner_zone.read_many(context, session, whose, locked=locked)
        # Read after the rows are locked, because beat may have advanced them while this transaction
        # waited.
        now = context.clock.now()
        changing = [row for row in rows if row.quiet_hours != clocks[row.owner].quiet_hours]
        calendars = schedules.calendars_of(session, changing)
        changes = [
            _changed(context, row, clocks[row.owner].quiet_hours, calendars, now=now)
            for row in changing
        ]
        owners.replan(session, changes)
        count += len(changes)
        due = [each["next_run_at"] for each in changes if each["next_run_at"] is not None]
        earliest = min([*due, *([] if earliest is None else [earliest])], default=None)
    if count:
        expire_loaded(session)
        context.notify_beat(session, next_run_at=earliest, now=context.clock.now())
    return count


def _changed(
    context: Context, row: Row, quiet_hours: str | None, calendars: Calendars, *, now: datetime
) -> dict[str, Any]:
    """Return the columns of a schedule with these quiet hours."""
    changed = {"id": row.id, "quiet_hours": quiet_hours, "next_run_at": row.next_run_at}
    if row.next_run_at is None or row.next_fire_at is None or row.held_at is not None:
        return changed
    columns = ScheduleColumns.of(row)
    columns.quiet_hours = quiet_hours
    try:
        at = due_at(spec_from_row(columns, context.settings, calendars), row.next_fire_at, now=now)
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
