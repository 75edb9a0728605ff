"""Run past fire times of a schedule."""

from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.batches import check_pace, recorded
from celery_dynbeat.api.edit.named import OwnerCalls
from celery_dynbeat.api.results import BatchResult
from celery_dynbeat.common.settings import check_task_allowed
from celery_dynbeat.common.states import Action, Origin
from celery_dynbeat.common.text import MAX_BATCH
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.planning import spec_from_row, with_search_budget, with_skipped
from celery_dynbeat.planning.backfill_planning import fire_times
from celery_dynbeat.planning.plan import MICROSECOND
from celery_dynbeat.process.context import Context, naming_schedule
from celery_dynbeat.store import backfills, schedules
from celery_dynbeat.transitions.backfill import add_backfill
from celery_dynbeat.transitions.batches import Batch
from celery_dynbeat.triggers.base import PLAN_STEPS

#: An ``until`` in the future by at most this means now: the caller's clock may be ahead.
MAX_CLOCK_SKEW = timedelta(minutes=1)


class BackfillCalls(OwnerCalls):
    """The call of OwnerSchedules that runs past fire times."""

    def backfill(
        self,
        name: str,
        *,
        since: datetime,
        until: datetime,
        per_minute: int = 100,
        now: bool = False,
    ) -> BatchResult:
        """Run the past fire times of a schedule that have no run: since <= fire time < until.

        ``since`` and ``until`` are aware datetimes in the past. The call records the runs of at
        most 10,000 fire times, the oldest first, as a batch. If fire times are left, ``left_since``
        of the result is the ``since`` of the next call. Fire times that beat has not decided about
        are left to beat.

        Beat sends ``per_minute`` of these runs in a minute; those that were delayed by a hold, by
        quiet hours or by an outage follow together. If runs of the schedule must not
        overlap, it sends one at a time, while no other run of the schedule is unfinished. The runs
        do not count against ``max_runs``, and a pause of the schedule does not stop them. They wait
        for the end of a hold and for a place. In the quiet hours of the owner they wait for their
        end, unless ``now`` is true. ``actor`` and ``reason`` are recorded in the audit;
        ``acting()`` sets their defaults.

        Raises ScheduleNotFoundError. Raises InvalidScheduleError if the span contains no fire time.

        >>> result = mine.backfill(
        ...     "digest",
        ...     since=datetime(2025, 12, 1, tzinfo=UTC),
        ...     until=datetime(2025, 12, 8, tzinfo=UTC),
        ... )
        >>> result.created
        5
        """
        since = checks.check_required_instant("since", since)
        until = checks.check_required_instant("until", until)
        check_pace(per_minute)
        checks.check_flag("now", now)

        def work(session: Session) -> BatchResult:
            row = self._lock(session, name, None)
            at = self._context.clock.now()
            _check_span(since, until, now=at)
            check_task_allowed(self._context.settings, owner=row.owner, task=row.task)
            schedules.touch(session, [row.id])
            result = _record(
                self._context,
                session,
                row,
                since=since,
                # A fire time at this instant has passed.
                until=max(since, min(until, at + MICROSECOND)),
                per_minute=per_minute,
                at_once=now,
                now=at,
            )
            return recorded(
                self._context,
                session,
                result,
                owner=row.owner,
                name=row.name,
                action=Action.BACKFILL,
                at=at,
                since=since,
                until=until,
                per_minute=per_minute,
                now=now,
            )

        return self._write(work)


def _check_span(since: datetime, until: datetime, *, now: datetime) -> None:
    if since > until:
        raise checks.invalid("since", since, f"must not be after until = {until}")
    if until > now + MAX_CLOCK_SKEW:
        rule = f"must not lie in the future (it is {now} now): beat runs future fire times itself"
        raise checks.invalid("until", until, rule)


def _record(
    context: Context,
    session: Session,
    row: Schedule,
    *,
    since: datetime,
    until: datetime,
    per_minute: int,
    at_once: bool,
    now: datetime,
) -> BatchResult:
    calendars = schedules.calendars_of(session, [row])
    with naming_schedule(row):
        # A quarter of a budget is spare. The row is locked, so the search must end soon.
        spec = with_search_budget(
            with_skipped(spec_from_row(row, context.settings, calendars)), steps=4 * PLAN_STEPS
        )
        instants = fire_times(spec, after=since - MICROSECOND, until=until, limit=MAX_BATCH + 1)
    if not instants:
        raise _no_fire_time(row, since, until)
    left_since = None
    if len(instants) > MAX_BATCH:
        left_since = instants.pop()
    elif not spec.trigger.has_spare_budget:
        left_since = instants[-1] + MICROSECOND
        left_since = left_since if left_since < until else None
    if row.next_fire_at is not None and row.finished_at is None:
        # The claim decides about the others, also if they have passed.
        left_since = None if left_since is None or left_since >= row.next_fire_at else left_since
        instants = [at for at in instants if at < row.next_fire_at]
    present = backfills.fire_times_with_run(session, schedule_id=row.id, instants=instants)
    missing = [at for at in instants if at not in present]
    batch = Batch(
        Origin.BACKFILL,
        now=now,
        ignores_quiet_hours=at_once,
        per_minute=per_minute,
        size=len(missing),
    )
    created = add_backfill(
        session,
        row,
        missing,
        batch=batch,
        trigger=with_search_budget(
            with_skipped(spec_from_row(row, context.settings, calendars)), steps=4 * PLAN_STEPS
        ).trigger,
        now=now,
        settings=context.settings,
    )
    return BatchResult(
        batch_id=batch.id if created else None,
        created=created,
        excluded=len(instants) - created,
        left_since=left_since,
    )


def _no_fire_time(row: Schedule, since: datetime, until: datetime) -> Exception:
    anchor = row.start_at or row.anchor_at or row.created_at
    rule = (
        f"the schedule has no fire time up to {until}, within its start_at = {row.start_at} and"
        f" end_at = {row.end_at}: choose a span in which it fires (an interval without its own"
        f" anchor counts from {anchor})"
    )
    return checks.invalid("since", since, rule)
