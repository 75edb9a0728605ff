"""Run past fire times of a schedule."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.edit.named import OwnerCalls
from celery_dynbeat.api.requests import recorded
from celery_dynbeat.api.results import RequestInfo
from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.common.settings import check_task_allowed
from celery_dynbeat.common.states import Action, RequestKind
from celery_dynbeat.common.text import MAX_REQUEST_BATCH
from celery_dynbeat.db.models import Request, Schedule
from celery_dynbeat.planning import spec_from_row, with_search_budget, with_skipped
from celery_dynbeat.planning.backfill_planning import fire_times
from celery_dynbeat.planning.plan import MICROSECOND
from celery_dynbeat.process.context import Context, naming_schedule
from celery_dynbeat.store import requests, schedules
from celery_dynbeat.triggers.base import PLAN_STEPS

#: Fire times of one backfill.
MAX_FIRE_TIMES = 10_000
#: An ``until`` in the future by at most this means now: the caller's clock may be ahead.
MAX_CLOCK_SKEW = timedelta(minutes=1)


class BackfillCalls(OwnerCalls):
    """The call of OwnerSchedules that requests a backfill."""

    def backfill(
        self,
        name: str,
        *,
        since: datetime,
        until: datetime,
        batch_size: int = 100,
        now: bool = False,
        actor: str | None = None,
        reason: str | None = None,
        session: Session | None = None,
    ) -> RequestInfo:
        """Run the past fire times of a schedule that have no run: since <= fire time < until.

        ``since`` and ``until`` are aware datetimes in the past. Beat creates the runs while no
        schedule is due, and starts with the oldest fire time. At most ``batch_size`` of these runs
        are unfinished at any time, or one run if runs of the schedule must not overlap. The runs do
        not count against ``max_runs``, and a pause of the schedule does not stop them. In the quiet
        hours of the owner, the runs wait for their end, unless ``now`` is true. ``actor`` and
        ``reason`` are recorded in the audit; ``acting()`` sets their defaults.

        Raises ScheduleNotFoundError. Raises InvalidScheduleError if the span contains no fire time
        or more than 10,000, if finding them takes too many steps, or if the schedule already has a
        running backfill.

        >>> request = mine.backfill(
        ...     "digest",
        ...     since=datetime(2025, 12, 1, tzinfo=UTC),
        ...     until=datetime(2025, 12, 8, tzinfo=UTC),
        ... )
        >>> request.total
        5
        """
        since = checks.check_required_instant("since", since)
        until = checks.check_required_instant("until", until)
        checks.check_integer("batch_size", batch_size, minimum=1, maximum=MAX_REQUEST_BATCH)
        checks.check_flag("now", now)

        def work(session: Session) -> RequestInfo:
            row = self._lock(session, name, None)
            at = self._context.clock.now()
            backfill = _new_backfill(self._context, session, row, since=since, until=until, now=at)
            backfill.batch_size, backfill.ignores_quiet_hours = batch_size, now
            schedules.touch(session, [row.id])
            requests.add(session, backfill)
            self._context.notifier.notify(session)
            return recorded(self._context, session, backfill, Action.BACKFILL, now=at)

        return self._write(session, work, actor=actor, reason=reason)


def _new_backfill(
    context: Context,
    session: Session,
    row: Schedule,
    *,
    since: datetime,
    until: datetime,
    now: datetime,
) -> Request:
    if since > until:
        raise checks.invalid("since", since, f"must not be after until = {until}")
    if until > now + MAX_CLOCK_SKEW:
        rule = f"must not lie in the future (it is {now} now): beat runs future fire times itself"
        raise checks.invalid("until", until, rule)
    check_task_allowed(context.settings, owner=row.owner, task=row.task)
    _check_no_unfinished(session, row)
    # A fire time at this instant has passed.
    until = max(since, min(until, now + MICROSECOND))
    calendars = schedules.calendars_of(session, [row])
    with naming_schedule(row):
        whole = with_skipped(spec_from_row(row, context.settings, calendars))
        # A quarter of a budget is spare. The row is locked, so the search must end soon.
        spec = with_search_budget(whole, steps=4 * PLAN_STEPS)
        before = since - MICROSECOND
        instants = fire_times(spec, after=before, until=until, limit=MAX_FIRE_TIMES + 1)
    if instants and not spec.trigger.has_spare_budget:
        raise _cost_error(since, until, instants)
    if not 0 < len(instants) <= MAX_FIRE_TIMES:
        raise _count_error(row, since, until, len(instants))
    return Request(
        kind=RequestKind.BACKFILL,
        owner=row.owner,
        name=row.name,
        schedule_id=row.id,
        since=since,
        until=until,
        total=len(instants),
        after_at=before,
        next_run_at=now,
        created_at=now,
    )


def _check_no_unfinished(session: Session, row: Schedule) -> None:
    other = requests.lock_unfinished_backfill(session, schedule_id=row.id)
    if other is not None:
        msg = (
            f"schedule {row.name!r} of owner {row.owner!r} has the running backfill {other.id},"
            f" {other.since} to {other.until}: wait for its end, or call cancel_request({other.id})"
        )
        raise InvalidScheduleError(msg, field="name")


def _count_error(row: Schedule, since: datetime, until: datetime, count: int) -> Exception:
    if count:
        rule = (
            f"there are more than {MAX_FIRE_TIMES} fire times up to {until}, the limit of one"
            " backfill: split the span, and create the backfills one after another"
        )
    else:
        anchor = row.start_at or row.anchor_at or row.created_at
        rule = (
            f"the schedule has no fire time up to {until}, within its start_at = {row.start_at} and"
            f" end_at = {row.end_at}: choose a span in which it fires (an interval without its own"
            f" anchor counts from {anchor})"
        )
    return checks.invalid("since", since, rule)


def _cost_error(since: datetime, until: datetime, found: Sequence[datetime]) -> Exception:
    rule = (
        f"finding the fire times up to {until} takes more than {PLAN_STEPS} steps: split the span, "
        f"for example after the first {len(found)}, at {found[-1]}, and create the backfills one "
        "after another"
    )
    return checks.invalid("since", since, rule)
