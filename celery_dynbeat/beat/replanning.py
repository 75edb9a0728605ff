"""Plan the schedules again whose calendars have changed, one batch per transaction.

    upsert()           a new version of the calendar, and a notification
    a batch          lock schedules that were planned with an older version, plan them from the
                     edit on, note the new version in their links, commit
    no link is left  the calendar is in force: ``in_force_at``, and an event

A crash loses at most an uncommitted batch, whose links still have the older version. Beats skip the
rows that others have locked. These schedules are planned in a later round.

A link with an older version can commit after the calendar is in force. The links are searched for
that once in an interval, because this reads the links of each calendar.

Only the link changes if the next plan uses the present days anyway: the schedule is paused or
unplanned, or its next fire time has passed. The next fire time of a due or held schedule has
passed. If it waits for the end of a quiet day or in its window, its schedule is due when the
present days allow it. Only the link of a finished schedule changes. A schedule in quarantine stays
there, unless its calendars were the reason. If it is also paused, its error is removed, because the
resume plans it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.beat.duties import NOW, Done
from celery_dynbeat.beat.plans import plan_rows, write_plans
from celery_dynbeat.beat.refused import LeftToNewerError
from celery_dynbeat.common.errors import InvalidTriggerError, UnusableCalendarError
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.statements import Row
from celery_dynbeat.planning import Calendars, spec_from_row
from celery_dynbeat.planning.plan import due_again
from celery_dynbeat.process.left_out import LeftOut
from celery_dynbeat.store import calendars, runs
from celery_dynbeat.store.schedules import calendars_of, due
from celery_dynbeat.telemetry import emit_on_commit, events, has_listeners
from celery_dynbeat.triggers import is_known

#: The maximum number of schedules that one transaction locks and plans.
BATCH_SIZE = 200
#: The maximum number of calendars that one pass reads.
MAX_CALENDARS = 50
#: After a round that left out locked schedules, the next round begins after this time.
LOCKED_PAUSE = timedelta(seconds=1)
#: A position before the first link of a calendar.
START = (-1, -1)


@dataclass(frozen=True, slots=True)
class Replanned:
    """The result of one batch: the number of its links, and the position of the last one.

    ``position`` is None if the round of this calendar has ended.
    """

    handled: int
    position: tuple[int, int] | None


def _replan(
    session: Session, ids: Sequence[int], *, calendar: Row, now: datetime, settings: Settings
) -> int:
    """Plan schedules again, and note that in their links. Return the number of those links."""
    if not ids:
        return 0
    # A newer beat can plan the others.
    rows = [row for row in due.lock_by_ids(session, ids) if is_known(row.trigger_kind)]
    # After the locks. An upsert() that commits later finds the links with this version.
    days = calendars_of(session, rows)
    done = _plan(session, calendar, rows, days, now=now, settings=settings)
    # If manual SQL changed the trigger, it may no longer name the calendar.
    versions = {calendar.id: calendar.version, **{each.id: each.version for each in days.values()}}
    changed = {
        calendar_id: calendars.set_planned(session, done, calendar_id=calendar_id, version=version)
        for calendar_id, version in versions.items()
    }
    return changed[calendar.id]


def _plan(
    session: Session,
    calendar: Row,
    rows: Sequence[Row],
    days: Calendars,
    *,
    now: datetime,
    settings: Settings,
) -> Sequence[int]:
    """Plan the locked rows that need it. Return the ids of the rows that are done."""
    needing = [row for row in rows if _needs_plan(row, now)]
    # A fire time that passed after the edit, while no beat was running, is due. An edit of the
    # schedule plans it from that edit on. A claim can have decided later ones.
    decided = runs.newest_decided(
        session, [row.id for row in needing], after=calendar.updated_at, until=now
    )
    since = {
        row.id: min(now, max(row.updated_at, decided.get(row.id, calendar.updated_at)))
        for row in needing
        # A row in quarantine is planned from now on.
        if row.next_run_at is not None
    }
    try:
        decisions = plan_rows(session, needing, now=now, settings=settings, since=since)
    except LeftToNewerError as left:
        # Their links keep the older version, for a newer beat.
        unknown = {each.row.id for each in left.unknown}
        needing = [row for row in needing if row.id not in unknown]
        rows = [row for row in rows if row.id not in unknown]
        decisions = plan_rows(session, needing, now=now, settings=settings, since=since)
    write_plans(session, [each for each in decisions if each.is_change], settings=settings)
    due.advance(session, [{"id": row.id, "error": None} for row in rows if _waits_for_resume(row)])
    waiting = [row for row in rows if _waits_for_days(row, now)]
    due.advance(session, _due_again(waiting, days, now=now, settings=settings))
    unreached = {row.id for row in needing} - {each.change["id"] for each in decisions}
    return [row.id for row in rows if row.id not in unreached]


def _waits_for_days(row: Row, now: datetime) -> bool:
    """Return whether a fire time of the row has passed, and waits in quiet hours or its window."""
    if row.next_run_at is None or row.next_fire_at is None or row.was_held:
        return False
    return bool(row.next_fire_at <= now < row.next_run_at)


def _due_again(
    rows: Sequence[Row], days: Calendars, *, now: datetime, settings: Settings
) -> Sequence[Mapping[str, Any]]:
    """Return when the rows are due with the present days."""
    changes = []
    for row in rows:
        try:
            spec = spec_from_row(row, settings, days)
            at = due_again(spec, row.next_fire_at, planned_at=row.next_run_at, now=now)
        except InvalidTriggerError:
            # The claim quarantines it.
            continue
        changes.append({"id": row.id, "next_run_at": at})
    return changes


def _waits_for_resume(row: Row) -> bool:
    """Return whether the row is paused, and in quarantine for its calendars."""
    return not row.enabled and _has_calendar_error(row)


def _has_calendar_error(row: Row) -> bool:
    return row.error is not None and UnusableCalendarError.is_named_in(row.error)


def _needs_plan(row: Row, now: datetime) -> bool:
    if not row.enabled:
        return False
    if row.error is not None:
        return _has_calendar_error(row)
    if row.next_run_at is None or row.next_fire_at is None:
        # The schedule is unplanned or finished, or manual SQL has damaged it. In the last case, the
        # claim quarantines it.
        return False
    return bool(row.next_fire_at > now)


def _note_in_force(session: Session, calendar: Row, *, now: datetime) -> None:
    """Note that no schedule waits for the calendar, unless other transactions have locked some."""
    if calendars.waiting_ids(
        session, calendar_id=calendar.id, version=calendar.version, after=START, limit=1
    ):
        return
    noted = calendars.set_in_force(
        session, calendar_id=calendar.id, version=calendar.version, now=now
    )
    if noted and has_listeners(events.CalendarInForce):
        event = events.CalendarInForce(
            calendar=calendar.name, version=calendar.version, after=now - calendar.updated_at
        )
        emit_on_commit(session, event)


class Replanning:
    """Plans the schedules of changed calendars in one beat, some in each pass."""

    def __init__(
        self,
        *,
        database: Database,
        settings: Settings,
        interval: timedelta,
        left_out: LeftOut[int],
    ) -> None:
        self._database, self._settings, self._interval = database, settings, interval
        self._left_out = left_out
        #: By the id and the version of a calendar: the position in its present round.
        self._positions: dict[tuple[int, int], tuple[int, int]] = {}
        #: The next pass looks at the calendars after this id.
        self._after_id = 0
        #: When the links of all calendars are searched. Without a late link, once in an interval.
        self._late_links_at: datetime | None = None
        self.has_calendars = False

    def run(self, now: datetime) -> Done:
        """Plan a batch of schedules again. A beat without calendars executes one short query."""
        self.has_calendars = self.has_calendars or self._database.read(due.has_calendars)
        if not self.has_calendars:
            return Done()
        found = self._find(now)
        positions: dict[tuple[int, int], tuple[int, int]] = {}
        handled = 0
        for calendar in found:
            key = (calendar.id, calendar.version)
            position: tuple[int, int] | None = self._positions.get(key, START)
            if handled < BATCH_SIZE:
                batch = self._replan(calendar, after=self._positions.get(key, START), now=now)
                handled, position = handled + batch.handled, batch.position
            if position is not None:
                positions[key] = position
        has_more = len(found) == MAX_CALENDARS
        again_after = LOCKED_PAUSE if found or self._after_id else None
        if positions or has_more:
            # The next pass continues at once.
            again_after = NOW
        if not positions:
            self._after_id = found[-1].id if has_more else 0
        self._positions = positions
        return Done(handled, again_after)

    def _find(self, now: datetime) -> Sequence[Row]:
        """Return the calendars that are not in force, with late links if it is time for these."""
        at = self._late_links_at
        # An instant far after ``now``: the clock was set back.
        searches_links = at is None or not now < at <= now + self._interval
        find = partial(
            calendars.not_in_force,
            after=self._after_id,
            limit=MAX_CALENDARS,
            with_late_links=searches_links,
        )
        found = self._database.read(find)
        if searches_links:
            has_late = any(each.in_force_at is not None for each in found)
            is_all = len(found) < MAX_CALENDARS
            self._late_links_at = now + self._interval if is_all and not has_late else None
        return found

    def _replan(self, calendar: Row, *, after: tuple[int, int], now: datetime) -> Replanned:
        """Plan a batch of schedules of a calendar again, beginning after the position ``after``.

        Those that the database refuses to change are left out for some time.
        """
        read = partial(calendars.waiting_ids, calendar_id=calendar.id, version=calendar.version)
        keys = self._database.read(partial(read, after=after, limit=BATCH_SIZE))
        settings, left_out = self._settings.for_pass(), self._left_out.ids(now)
        handled, refused = self._database.run_in_parts(
            partial(_replan, calendar=calendar, now=now, settings=settings),
            [schedule_id for _, schedule_id in keys if schedule_id not in left_out],
            in_transaction=True,
        )
        for row in self._database.read(partial(due.named, schedule_ids=list(refused))):
            self._left_out.add(row, refused[row.id], now=now)
        if len(keys) == BATCH_SIZE:
            return Replanned(sum(handled), keys[-1])
        self._database.run(partial(_note_in_force, calendar=calendar, now=now))
        return Replanned(sum(handled), None)
