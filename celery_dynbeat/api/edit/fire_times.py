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
from celery_dynbeat.planning import ScheduleSpec, calendar_names, spec_from_row
from celery_dynbeat.planning.plan import run_at
from celery_dynbeat.planning.upcoming import iter_upcoming
from celery_dynbeat.process.context import Context, naming_schedule
from celery_dynbeat.store import holds, schedules
from celery_dynbeat.store.runs import skips
from celery_dynbeat.triggers.zones import describe_instant


class FireTimeCalls(OwnerCalls):
    """The calls of OwnerSchedules on upcoming fire times."""

    def skip(
        self,
        name: str,
        fire_time: datetime,
        *,
        expected_version: int | None = None,
        actor: str | None = None,
        reason: str | None = None,
        session: Session | None = None,
    ) -> ScheduleInfo:
        """Take one fire time out of the schedule. All others stay.

        ``fire_time`` is an aware datetime in the future that the trigger yields between
        ``start_at`` and ``end_at``. The call writes a history row for it, a run with status
        ``"skipped"`` that names ``actor`` and ``reason``. You can also skip a fire time of a paused
        schedule, or one beyond ``max_runs``. A second call for the same fire time changes nothing.
        A schedule has at most 100 skipped fire times in the future.

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

        return self._write(session, work, actor=actor, reason=reason)

    def unskip(
        self,
        name: str,
        fire_time: datetime,
        *,
        expected_version: int | None = None,
        actor: str | None = None,
        reason: str | None = None,
        session: Session | None = None,
    ) -> ScheduleInfo:
        """Restore a fire time that ``skip`` removed, before it passes.

        A schedule that finished because of the skip continues. Raises ScheduleNotFoundError,
        StaleScheduleError, InvalidTriggerError, and InvalidScheduleError if ``fire_time`` has
        passed or is not skipped. If the clock was set back, ``fire_time`` also counts as passed if
        beat had already decided on a later fire time.

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

        return self._write(session, work, actor=actor, reason=reason)

    def upcoming(
        self,
        name: str,
        *,
        count: int = 5,
        with_skipped: bool = False,
        session: Session | None = None,
    ) -> Sequence[FireTime]:
        """Return the next ``count`` fire times.

        Fire times that ``skip`` removed are left out. If ``with_skipped`` is true, the result
        includes them, with ``is_skipped`` set. It then also includes the fire times that a calendar
        removes or moves, with the name of the calendar. ``count`` is at most 1,000. For a paused or
        finished schedule, the result contains no other fire times. During a hold and in quiet
        hours, the result contains the fire times after the current time. Raises
        ScheduleNotFoundError and InvalidTriggerError.

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

        return self._context.read_many(session, work)

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
    """Return the next ``count`` fire times of a row, within its span and ``max_runs``.

    The fire times that skip() removed are left out.
    """
    now = context.clock.now()
    with naming_schedule(row):
        spec = timing.spec_without_skips(context, session, row, now=now)
        held_at = _waiting_since(session, row, spec, now=now)
        # Earlier fire times wait for the release, or for the end of quiet hours. Then catch_up
        # decides about them.
        return [
            FireTime(
                at=each.at,
                run_at=run_at(spec, each.at) if each.has_run else None,
                quiet_note=each.quiet_note,
            )
            for each in islice(iter_upcoming(spec, row, after=held_at), count)
        ]


def fire_times_of(
    context: Context, session: Session, row: Schedule, *, count: int
) -> Sequence[FireTime]:
    """Return the next ``count`` fire times of a row, including fire times that skip() removed."""
    now = context.clock.now()
    upcoming = {each.at: each for each in _upcoming_of(context, session, row, count=count)}
    skipped = skips.of_rows(session, [row], now=now).get(row.id, ())
    taken = _taken_by_calendars(context, session, row, [*upcoming], count=count, now=now)
    first = sorted({*upcoming, *taken, *(at for at in skipped if at > now)})[:count]
    reasons = skips.reasons(session, schedule_id=row.id, instants={*first}.intersection(skipped))
    removed = {at: FireTime(at=at, is_skipped=True, reason=reasons[at]) for at in reasons}
    found = {**taken, **upcoming, **removed}
    return [found.get(at) or FireTime(at=at) for at in first]


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
    # A late import: few triggers use calendars.
    from celery_dynbeat.triggers.calendar_effects import effects_on  # noqa: PLC0415

    spec = spec_from_row(row, context.settings, schedules.calendars_of(session, [row]))
    after = now if spec.start_at is None else max(now, spec.start_at)
    effects = effects_on(spec.trigger, after=after, until=upcoming[-1], limit=count)
    return {
        each.at: FireTime(
            at=each.at,
            is_skipped=True,
            reason=_reason(each.calendar, each.moved_to, timezone=row.timezone),
            calendar=each.calendar,
        )
        for each in effects
    }


def _reason(calendar: str, moved_to: datetime | None, *, timezone: str) -> str:
    if moved_to is None:
        return f"calendar {calendar}"
    return f"calendar {calendar}: moves to {describe_instant(moved_to, timezone)}"


def _waiting_since(
    session: Session, row: Schedule, spec: ScheduleSpec, *, now: datetime
) -> datetime | None:
    """Return ``now`` if the row is due and held, or waits for the end of quiet hours, else None."""
    if row.next_run_at is None or row.next_fire_at is None or row.next_fire_at > now:
        return None
    if row.next_run_at > now and spec.quiet is not None and spec.quiet.end(now) > now:
        return now
    is_held = row.held_at is not None or holds.end_of(session, owner=row.owner, now=now)
    return now if is_held else None
