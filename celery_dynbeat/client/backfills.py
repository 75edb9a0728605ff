"""The backfills of a schedule: asked for, looked at, cancelled."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.client import checks, edits
from celery_dynbeat.client.views import BackfillInfo
from celery_dynbeat.common import task_allowlist
from celery_dynbeat.common.errors import (
    BackfillNotFoundError,
    InvalidScheduleError,
    ScheduleNotFoundError,
)
from celery_dynbeat.db.models import Backfill, Schedule
from celery_dynbeat.planning.backfill_planning import fire_times
from celery_dynbeat.runtime.context import Context, naming_schedule
from celery_dynbeat.store import backfills, schedules

#: The fire times of one backfill, at most.
MAX_FIRE_TIMES = 10_000
#: The runs of a schedule's backfills that are unfinished at any time, at most.
MAX_BATCH_SIZE = 1_000
MAX_LIMIT = 1_000
#: A caller's clock that is ahead of the database's by less than this says "now".
MAX_CLOCK_SKEW = timedelta(minutes=1)


class BackfillCalls:
    """What an owner's schedules can do about fire times of the past."""

    _context: Context
    owner: str

    def backfill(
        self,
        name: str,
        *,
        start: datetime,
        end: datetime,
        batch_size: int = 100,
        session: Session | None = None,
    ) -> BackfillInfo:
        """Run the schedule for its fire times in [start, end] that have no run, oldest first.

        Beat makes the runs when nothing due is left behind, so that at most ``batch_size`` of them
        are unfinished at any time; one at a time when the schedule's runs must not overlap. They do
        not count against ``max_runs``. A paused schedule's backfill waits. Raises
        ScheduleNotFoundError, and InvalidScheduleError when the range holds no fire time or more
        than MAX_FIRE_TIMES, or when the schedule has a backfill that goes on.
        """
        start, end = _instant("start", start), _instant("end", end)
        checks.check_integer("batch_size", batch_size, least=1, most=MAX_BATCH_SIZE)

        def work(session: Session) -> BackfillInfo:
            row = edits.lock(session, owner=self.owner, name=name)
            now = self._context.clock.now()
            made = _new(self._context, session, row, (start, end), now=now)
            made.batch_size = batch_size
            backfills.add(session, made)
            self._context.notifier.notify(session)
            return BackfillInfo.of(made, row)

        return self._context.write(session, work)

    def backfills(
        self, name: str, *, limit: int = 20, session: Session | None = None
    ) -> Sequence[BackfillInfo]:
        """Return up to ``limit`` backfills of the schedule, the newest first.

        Raises ScheduleNotFoundError.
        """
        checks.check_integer("limit", limit, least=1, most=MAX_LIMIT)
        checks.check_name("name", name)

        def work(session: Session) -> Sequence[BackfillInfo]:
            row = schedules.get(session, owner=self.owner, name=name)
            if row is None:
                raise ScheduleNotFoundError(owner=self.owner, name=name)
            found = backfills.history(session, schedule_id=row.id, limit=limit)
            return [BackfillInfo.of(backfill, row) for backfill in found]

        return self._context.read_many(session, work)

    def cancel_backfill(
        self, name: str, backfill_id: int | None = None, *, session: Session | None = None
    ) -> BackfillInfo:
        """Make no more runs, and revoke those that have not started; without an id of the newest.

        A backfill that has ended keeps its end; what it made is revoked all the same. Fire times
        that were not reached stay as they were. Raises ScheduleNotFoundError and
        BackfillNotFoundError.
        """
        if backfill_id is not None:
            checks.check_integer("backfill_id", backfill_id, least=1, most=2**63 - 1)

        def work(session: Session) -> BackfillInfo:
            row = edits.lock(session, owner=self.owner, name=name)
            found = backfills.lock(session, schedule_id=row.id, backfill_id=backfill_id)
            if found is None:
                raise BackfillNotFoundError(owner=self.owner, name=name, backfill_id=backfill_id)
            _cancel(session, found, now=self._context.clock.now())
            return BackfillInfo.of(found, row)

        return self._context.write(session, work)


def _instant(field: str, value: Any) -> datetime:
    found = checks.check_instant(field, value)
    if found is None:
        raise checks.invalid(field, value, "must be an aware datetime, such as datetime.now(UTC)")
    return found


def _new(
    context: Context,
    session: Session,
    row: Schedule,
    span: tuple[datetime, datetime],
    *,
    now: datetime,
) -> Backfill:
    start, end = span
    if start > end:
        raise checks.invalid("start", start, f"must not be after end = {end!r}")
    if end > now + MAX_CLOCK_SKEW:
        rule = f"must not lie in the future (it is {now} now): beat itself runs what is to come"
        raise checks.invalid("end", end, rule)
    task_allowlist.check(context.settings, owner=row.owner, task=row.task)
    _check_no_unfinished(session, row)
    end = max(start, min(end, now))
    with naming_schedule(row):
        found = fire_times(context.spec(row), start=start, end=end, limit=MAX_FIRE_TIMES + 1)
    if not 0 < len(found) <= MAX_FIRE_TIMES:
        raise _count_error(row, start, end, len(found))
    return Backfill(
        schedule_id=row.id,
        start_at=start,
        end_at=end,
        total=len(found),
        made=0,
        present=0,
        next_fire_at=found[0],
        next_run_at=now,
        created_at=now,
        cancelled=False,
    )


def _check_no_unfinished(session: Session, row: Schedule) -> None:
    other = backfills.lock_unfinished(session, schedule_id=row.id)
    if other is not None:
        msg = (
            f"schedule {row.name!r} of owner {row.owner!r} has backfill {other.id} going on, from"
            f" {other.start_at} to {other.end_at}: wait for its end, or cancel_backfill() it"
        )
        raise InvalidScheduleError(msg, field="name")


def _count_error(row: Schedule, start: datetime, end: datetime, count: int) -> Exception:
    if count:
        rule = (
            f"there are more than {MAX_FIRE_TIMES} fire times up to {end}, as many as one backfill"
            " takes: split the range and ask for one part after the other"
        )
    else:
        anchor = row.start_at or row.anchor_at or row.created_at
        rule = (
            f"the schedule has no fire time up to {end}, within its start_at = {row.start_at} and"
            f" end_at = {row.end_at}: choose a range in which it fires (an interval without an"
            f" anchor counts from {anchor} on)"
        )
    return checks.invalid("start", start, rule)


def _cancel(session: Session, backfill: Backfill, *, now: datetime) -> None:
    reason = "the backfill was cancelled"
    revoked = backfills.revoke_unstarted(session, backfill, now=now, reason=reason)
    if backfill.finished_at is None:
        backfill.finished_at, backfill.next_run_at, backfill.cancelled = now, None, True
    elif revoked:
        backfill.cancelled = True
    session.flush()
