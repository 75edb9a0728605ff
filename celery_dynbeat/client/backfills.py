"""The backfills of a schedule: create, list, cancel."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from celery_dynbeat.client import checks
from celery_dynbeat.client.checks import check_limit
from celery_dynbeat.client.edit import audit, edits
from celery_dynbeat.client.results import BackfillInfo
from celery_dynbeat.common import task_allowlist
from celery_dynbeat.common.actions import Action
from celery_dynbeat.common.errors import (
    BackfillNotFoundError,
    InvalidScheduleError,
    ScheduleNotFoundError,
)
from celery_dynbeat.db.models import Backfill, Schedule
from celery_dynbeat.planning.backfill_planning import fire_times
from celery_dynbeat.planning.schedule_spec import with_search_budget
from celery_dynbeat.runtime.context import Context, naming_schedule
from celery_dynbeat.store import backfills, schedules
from celery_dynbeat.triggers.search_budget import PLAN_STEPS

#: Fire times of one backfill.
MAX_FIRE_TIMES = 10_000
#: Unfinished runs of a schedule's backfills at any time.
MAX_BACKFILL_BATCH = 1_000
#: An ``end`` in the future by at most this means now: the caller's clock may be ahead.
MAX_CLOCK_SKEW = timedelta(minutes=1)


class BackfillCalls:
    """The calls of OwnerSchedules for backfills."""

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

        ``start`` and ``end`` are aware datetimes in the past. Beat creates the runs while no
        schedule is due. At most ``batch_size`` of them are unfinished at any time, or one if runs
        of the schedule must not overlap. They do not count against ``max_runs``. The backfill of a
        paused schedule waits for the resume.

        Raises ScheduleNotFoundError. Raises InvalidScheduleError if the range contains no fire time
        or more than 10,000, if finding them takes too many steps, or if the schedule has a running
        backfill.
        """
        start = checks.check_required_instant("start", start)
        end = checks.check_required_instant("end", end)
        checks.check_integer("batch_size", batch_size, minimum=1, maximum=MAX_BACKFILL_BATCH)

        def work(session: Session) -> BackfillInfo:
            row = edits.lock(session, owner=self.owner, name=name)
            now = self._context.clock.now()
            backfill = _new_backfill(self._context, session, row, start=start, end=end, now=now)
            backfill.batch_size = batch_size
            backfills.add(session, backfill)
            self._context.notifier.notify(session)
            info = BackfillInfo.of(backfill, row)
            self._record_backfill(session, info, Action.BACKFILL, now=now)
            return info

        return self._context.write(session, work)

    def backfills(
        self, name: str, *, limit: int = 20, session: Session | None = None
    ) -> Sequence[BackfillInfo]:
        """Return up to ``limit`` backfills of the schedule, newest first.

        Raises ScheduleNotFoundError.
        """
        check_limit("limit", limit)
        checks.check_name("name", name)

        def work(session: Session) -> Sequence[BackfillInfo]:
            row = schedules.get(session, owner=self.owner, name=name)
            if row is None:
                raise ScheduleNotFoundError(owner=self.owner, name=name)
            history = backfills.history(session, schedule_id=row.id, limit=limit)
            return [BackfillInfo.of(backfill, row) for backfill in history]

        return self._context.read_many(session, work)

    def cancel_backfill(
        self, name: str, backfill_id: int | None = None, *, session: Session | None = None
    ) -> BackfillInfo:
        """Stop a backfill and revoke its runs that have not started.

        Without ``backfill_id`` the newest backfill is cancelled. A backfill that has ended keeps
        its ``finished_at``. Fire times without a run stay without a run. Raises
        ScheduleNotFoundError and BackfillNotFoundError.
        """
        if backfill_id is not None:
            checks.check_integer("backfill_id", backfill_id, minimum=1, maximum=2**63 - 1)

        def work(session: Session) -> BackfillInfo:
            row = edits.lock(session, owner=self.owner, name=name)
            backfill = backfills.lock(session, schedule_id=row.id, backfill_id=backfill_id)
            if backfill is None:
                raise BackfillNotFoundError(owner=self.owner, name=name, backfill_id=backfill_id)
            now = self._context.clock.now()
            _cancel(session, backfill, now=now)
            info = BackfillInfo.of(backfill, row)
            self._record_backfill(session, info, Action.CANCEL_BACKFILL, now=now)
            return info

        return self._context.write(session, work)

    def _record_backfill(
        self, session: Session, info: BackfillInfo, action: Action, *, now: datetime
    ) -> None:
        new = {
            "backfill_id": info.id,
            "start_at": info.start_at.isoformat(),
            "end_at": info.end_at.isoformat(),
            "total": info.total,
        }
        edit = audit.Edit(owner=self.owner, name=info.name, action=action, new=new)
        audit.record(self._context, session, [edit], now=now)


def _new_backfill(
    context: Context,
    session: Session,
    row: Schedule,
    *,
    start: datetime,
    end: datetime,
    now: datetime,
) -> Backfill:
    if start > end:
        raise checks.invalid("start", start, f"must not be after end = {end}")
    if end > now + MAX_CLOCK_SKEW:
        rule = f"must not lie in the future (it is {now} now): beat runs future fire times itself"
        raise checks.invalid("end", end, rule)
    task_allowlist.check(context.settings, owner=row.owner, task=row.task)
    _check_no_unfinished(session, row)
    end = max(start, min(end, now))
    with naming_schedule(row):
        # A quarter of a budget is spare. The row is locked, so the search must end soon.
        spec = with_search_budget(context.spec(row), steps=4 * PLAN_STEPS)
        instants = fire_times(spec, start=start, end=end, limit=MAX_FIRE_TIMES + 1)
    if instants and not spec.trigger.has_spare_budget:
        raise _cost_error(start, end, instants)
    if not 0 < len(instants) <= MAX_FIRE_TIMES:
        raise _count_error(row, start, end, len(instants))
    return Backfill(
        schedule_id=row.id,
        start_at=start,
        end_at=end,
        total=len(instants),
        made=0,
        present=0,
        next_fire_at=instants[0],
        next_run_at=now,
        created_at=now,
        cancelled=False,
    )


def _check_no_unfinished(session: Session, row: Schedule) -> None:
    other = backfills.lock_unfinished(session, schedule_id=row.id)
    if other is not None:
        msg = (
            f"schedule {row.name!r} of owner {row.owner!r} has the running backfill {other.id},"
            f" {other.start_at} to {other.end_at}: wait for its end, or call cancel_backfill()"
        )
        raise InvalidScheduleError(msg, field="name")


def _count_error(row: Schedule, start: datetime, end: datetime, count: int) -> Exception:
    if count:
        rule = (
            f"there are more than {MAX_FIRE_TIMES} fire times up to {end}, the limit of one"
            " backfill: split the range, and create one backfill after the other"
        )
    else:
        anchor = row.start_at or row.anchor_at or row.created_at
        rule = (
            f"the schedule has no fire time up to {end}, within its start_at = {row.start_at} and"
            f" end_at = {row.end_at}: choose a range in which it fires (an interval without its own"
            f" anchor counts from {anchor})"
        )
    return checks.invalid("start", start, rule)


def _cost_error(start: datetime, end: datetime, found: Sequence[datetime]) -> Exception:
    rule = (
        f"to find the fire times up to {end} takes more than {PLAN_STEPS} steps: split the range,"
        f" for example after the first {len(found)}, at {found[-1]}, and create one backfill after"
        " the other"
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
