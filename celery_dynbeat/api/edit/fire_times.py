"""The calls of an owner on the upcoming fire times of a schedule."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import islice

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.edit import audit, edits, skipping, timing
from celery_dynbeat.api.edit.named import OwnerCalls
from celery_dynbeat.api.results import FireTime, ScheduleInfo
from celery_dynbeat.api.results.base import as_json
from celery_dynbeat.common.errors import ScheduleNotFoundError
from celery_dynbeat.common.states import Action
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.planning import calendar_names, spec_from_row
from celery_dynbeat.planning.obstacles import HoldInForce, first_pass, stopped_by, wait_note
from celery_dynbeat.planning.plan import unskipped
from celery_dynbeat.planning.upcoming import PlannedFireTime, iter_runs
from celery_dynbeat.process.context import Context, naming_schedule
from celery_dynbeat.store import holds, schedules
from celery_dynbeat.triggers.wrappers import nominal


class FireTimeCalls(OwnerCalls):
    """The calls of OwnerSchedules on upcoming fire times."""

    def skip(
        self,
        name: str,
        fire_time: datetime,
        *,
        expected_version: int | None = None,
        reason: str | None = None,
    ) -> ScheduleInfo:
        """Take one fire time out of the schedule. All others stay.

        ``fire_time`` is an aware datetime in the future that the trigger yields between
        ``start_at`` and ``end_at``. When beat decides about a later fire time, it records this one
        in the history, as a run with status ``"skipped"`` whose ``error`` names ``actor`` and
        ``reason``. You can also skip a fire time of a paused schedule, or one beyond ``max_runs``.
        A second call for the same fire time changes nothing. A schedule has at most 100 skipped
        fire times. If no other fire time is left, the schedule finishes at the last
        skipped one. An edit keeps the skips of future fire times; one that the new trigger does not
        yield has no effect. A new ``Once`` drops them.

        Raises ScheduleNotFoundError, StaleScheduleError, InvalidTriggerError and
        InvalidScheduleError. If ``fire_time`` is not a fire time, the error names the nearest ones.

        >>> _ = mine.skip("digest", datetime(2026, 1, 6, 9, tzinfo=UTC), reason="public holiday")
        >>> [str(each.at.date()) for each in mine.upcoming("digest", count=2)]
        ['2026-01-07', '2026-01-08']
        """
        fire_at = checks.check_required_instant("fire_time", fire_time)

        def work(session: Session) -> ScheduleInfo:
            row = self._lock(session, name, expected_version)
            now = self._context.clock.now()
            if skipping.skip(self._context, session, row, fire_at, now=now):
                self._record_fire_time(session, row, fire_at, Action.SKIP, now=now)
            return ScheduleInfo.of(row)

        return self._write(work, reason=reason)

    def unskip(
        self,
        name: str,
        fire_time: datetime,
        *,
        expected_version: int | None = None,
    ) -> ScheduleInfo:
        """Restore a fire time that ``skip`` removed, before it passes.

        Raises ScheduleNotFoundError, StaleScheduleError, InvalidTriggerError, and
        InvalidScheduleError if ``fire_time`` has passed or is not skipped.

        >>> _ = mine.skip("digest", datetime(2026, 1, 6, 9, tzinfo=UTC))
        >>> str(mine.unskip("digest", datetime(2026, 1, 6, 9, tzinfo=UTC)).next_run_at)
        '2026-01-06 09:00:00+00:00'
        """
        fire_at = checks.check_required_instant("fire_time", fire_time)

        def work(session: Session) -> ScheduleInfo:
            row = self._lock(session, name, expected_version)
            now = self._context.clock.now()
            skipping.unskip(self._context, session, row, fire_at, now=now)
            self._record_fire_time(session, row, fire_at, Action.UNSKIP, now=now)
            return ScheduleInfo.of(row)

        return self._write(work)

    def upcoming(
        self,
        name: str,
        *,
        count: int = 5,
        with_skipped: bool = False,
    ) -> Sequence[FireTime]:
        """Return the next ``count`` fire times at which a run is sent, waiting ones first.

        ``at`` is the fire time, ``run_at`` is when its run is sent, and ``wait_note`` says why that
        is later. Fire times that ``skip`` removed are left out. If ``with_skipped`` is true, the
        result also has these, with ``is_skipped`` set, and the fire times that a calendar removes
        or moves, with the name of the calendar. ``count`` is at most 1,000. For a paused or
        finished schedule, the result contains no other fire times. During a hold without an end,
        ``run_at`` is None. Raises ScheduleNotFoundError and InvalidTriggerError.

        >>> [str(each.at) for each in mine.upcoming("digest", count=2)]
        ['2026-01-06 09:00:00+00:00', '2026-01-07 09:00:00+00:00']
        """
        checks.check_limit("count", count)
        if not isinstance(with_skipped, bool):
            raise checks.invalid("with_skipped", with_skipped, "must be True or False")
        checks.check_name("name", name)

        def work(session: Session) -> Sequence[FireTime]:
            row = schedules.get(session, owner=self.owner, name=name)
            if row is None:
                raise ScheduleNotFoundError(owner=self.owner, name=name)
            if with_skipped:
                return fire_times_of(self._context, session, row, count=count)
            return _upcoming_of(self._context, session, row, count=count)

        return self._read_many(work)

    def _record_fire_time(
        self, session: Session, row: Schedule, fire_at: datetime, action: Action, *, now: datetime
    ) -> None:
        edits.touch(self._context, session, row, now=now)
        new = {"fire_time": as_json(fire_at)}
        edit = audit.Edit(owner=row.owner, name=row.name, action=action, new=new)
        audit.record(self._context, session, [edit], now=now)


def _upcoming_of(
    context: Context, session: Session, row: Schedule, *, count: int
) -> Sequence[FireTime]:
    """Return the next ``count`` fire times of a row that are sent, those that wait first.

    During a hold without an end, the result contains the fire times that it stops.
    """
    now = context.clock.now()
    with naming_schedule(row):
        spec = timing.spec_of(context, session, row)
        if row.next_run_at is None or row.next_fire_at is None:
            return []
        hold = hold_of(session, owner=row.owner, now=now)
        is_endless = hold is not None and hold.until is None
        planned = iter_runs(
            spec._replace(quiet=None) if is_endless else spec,
            unskipped(spec, row.next_fire_at),
            now=first_pass(now, hold),
            run_count=row.run_count,
            # Beat planned it, maybe with another dynbeat_window.
            claimed_at=row.next_run_at if row.held_at is None and spec.quiet is None else None,
        )
        found = []
        for each in islice(planned, count):
            shown = stopped_by(PlannedFireTime(each.at, each.run_at), hold)
            note = wait_note(spec, shown, now=now, timezone=row.timezone, hold=hold)
            found.append(FireTime(at=each.at, run_at=shown.run_at, wait_note=note))
        return found


def hold_of(session: Session, *, owner: str, now: datetime) -> HoldInForce | None:
    """Return the hold in force that ends last, or None if the owner is not held."""
    found = holds.in_force(session, owner=owner, now=now)
    hold = max(found, key=lambda hold: hold.until_at or holds.NEVER, default=None)
    if hold is None:
        return None
    actor = f" by {hold.actor}" if hold.actor else ""
    return HoldInForce(hold.until_at, f"held{actor}{f' ({hold.reason})' if hold.reason else ''}")


def fire_times_of(
    context: Context, session: Session, row: Schedule, *, count: int
) -> Sequence[FireTime]:
    """Return the next ``count`` fire times of a row, including fire times that skip() removed."""
    now = context.clock.now()
    upcoming = {each.at: each for each in _upcoming_of(context, session, row, count=count)}
    taken = _taken_by_calendars(context, session, row, [*upcoming], count=count, now=now)
    with naming_schedule(row):
        skipped = skipping.in_future(context, session, row, now=now)
    removed = {
        at: FireTime(at=at, is_skipped=True, reason=reason) for at, reason in skipped.items()
    }
    found = {**taken, **upcoming, **removed}
    return [found[at] for at in sorted(found)[:count]]


def _taken_by_calendars(
    context: Context,
    session: Session,
    row: Schedule,
    upcoming: Sequence[datetime],
    *,
    count: int,
    now: datetime,
) -> Mapping[datetime, FireTime]:
    """Return the fire times before the last of ``upcoming`` that calendars remove or move."""
    if not upcoming or not calendar_names([row]):
        return {}
    spec = spec_from_row(row, context.settings, schedules.calendars_of(session, [row]))
    if not spec.calendars:
        # Only the quiet hours name one.
        return {}
    # A late import: few triggers use calendars.
    from celery_dynbeat.triggers.calendar_effects import effects_on  # noqa: PLC0415

    after = now if spec.start_at is None else max(now, spec.start_at)
    effects = effects_on(nominal(spec.trigger), after=after, until=upcoming[-1], limit=count)
    return {
        each.at: FireTime(
            at=each.at,
            is_skipped=True,
            reason=each.describe(row.timezone),
            calendar=each.calendar,
        )
        for each in effects
    }
