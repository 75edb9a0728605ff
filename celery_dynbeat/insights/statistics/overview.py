"""The numbers of the strip above each page: due, late, running and failing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.api.lists import queries
from celery_dynbeat.api.results import BoundedCount
from celery_dynbeat.api.results.base import Info
from celery_dynbeat.common.states import UNSTARTED, State, Status
from celery_dynbeat.insights.statistics.lag import lag_percentile
from celery_dynbeat.insights.statistics.last_minutes import last_minutes
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import health
from celery_dynbeat.store.rollups import NOTHING
from celery_dynbeat.store.schedules import late_work
from celery_dynbeat.store.schedules.late_work import Late

MINUTES = 60
#: Quarantined and failing schedules that are counted.
MAX_SCHEDULES = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MinuteLag(Info):
    """The lag of the runs that ended in the minute from ``at``. ``count`` is the number of lags.

    Manual runs, backfills and reruns have no lag. If there is no lag, ``p50`` and ``p99`` are None.
    """

    at: datetime
    p50: timedelta | None
    p99: timedelta | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MinuteCount(Info):
    """A number of runs that ended in the minute from ``at``."""

    at: datetime
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview(Info):
    """The state of an installation at ``now``, by the clock of the database.

    - ``due`` counts schedules whose time has come, up to 1,000; none during a hold of everything.
    - ``overdue`` is the sum of ``overdue_schedules``, as ``count(state="overdue")`` counts them,
      and ``overdue_runs``, which beat sends again. ``oldest_overdue_at`` is when the oldest of them
      was due.
    - ``running`` counts runs that a worker executes, ``pending`` runs that none has started. At
      most 10,000 unfinished runs are read. ``oldest_pending_at`` is when the oldest was recorded.
    - ``quarantined`` and ``failing`` count schedules, up to 1,000.
    - The others count the runs that ended in the last 60 minutes, the present one included, with
      ``last_minutes``. ``failed_last_hour`` are the failed and lost ones, ``sent_by_minute`` those
      that beat has sent. ``lag_p50`` and ``lag_p99`` are percentiles of their lags. The lists have
      60 items, oldest first.
    """

    now: datetime
    due: BoundedCount
    overdue: BoundedCount
    overdue_schedules: BoundedCount
    overdue_runs: BoundedCount
    oldest_overdue_at: datetime | None
    running: BoundedCount
    pending: BoundedCount
    oldest_pending_at: datetime | None
    quarantined: BoundedCount
    failing: BoundedCount
    failed_last_hour: int
    lag_p50: timedelta | None
    lag_p99: timedelta | None
    lag_by_minute: Sequence[MinuteLag]
    failed_by_minute: Sequence[MinuteCount]
    sent_by_minute: Sequence[MinuteCount]


def overview(context: Context, *, session: Session | None = None) -> Overview:
    """Return the numbers of the strip. The number of rows that it reads is bounded."""
    return context.read_many(session, lambda session: _overview(context, session))


def _overview(context: Context, session: Session) -> Overview:
    now = context.now(session)
    return Overview(
        now=now,
        **_late(context, session, now=now),
        **_unfinished(session),
        quarantined=_schedules(context, session, State.QUARANTINED),
        failing=_schedules(context, session, State.FAILING),
        **_last_hour(session, now=now),
    )


def _schedules(context: Context, session: Session, state: State) -> BoundedCount:
    matching = queries.filter_of(context, owner=None, state=state)
    return queries.count(context, session, matching=matching, limit=MAX_SCHEDULES)


def _late(context: Context, session: Session, *, now: datetime) -> dict[str, Any]:
    matching = queries.filter_of(context, owner=None, state=State.OVERDUE)
    schedules = late_work.overdue_schedules(session, matching=matching)
    runs = late_work.overdue_runs(session, now=now)
    due_at = session.scalars(health.due_times_statement(now=now)).all()
    oldest = [late.oldest_at for late in (schedules, runs) if late.oldest_at is not None]
    both = Late(count=schedules.count + runs.count, is_more=schedules.is_more or runs.is_more)
    return {
        "due": BoundedCount(
            count=min(len(due_at), health.MAX_COUNTED), exact=len(due_at) <= health.MAX_COUNTED
        ),
        "overdue": _bounded(both),
        "overdue_schedules": _bounded(schedules),
        "overdue_runs": _bounded(runs),
        "oldest_overdue_at": min(oldest, default=None),
    }


def _bounded(late: Late) -> BoundedCount:
    return BoundedCount(count=late.count, exact=not late.is_more)


def _unfinished(session: Session) -> dict[str, Any]:
    numbers = health.count_unfinished(session)
    return {
        "running": _sum(numbers, [Status.RUNNING]),
        "pending": _sum(numbers, UNSTARTED),
        "oldest_pending_at": late_work.unstarted_runs(session).oldest_at,
    }


def _sum(numbers: Mapping[str, health.Count], statuses: Sequence[str]) -> BoundedCount:
    chosen = [numbers[status] for status in statuses]
    return BoundedCount(
        count=sum(each.count for each in chosen), exact=not any(each.more for each in chosen)
    )


def _last_hour(session: Session, *, now: datetime) -> dict[str, Any]:
    minutes = last_minutes(session, now=now, count=MINUTES)
    hour = sum((each.figures for each in minutes), NOTHING)
    return {
        "failed_last_hour": hour.unsuccessful,
        "lag_p50": lag_percentile(hour, 0.5),
        "lag_p99": lag_percentile(hour, 0.99),
        "lag_by_minute": tuple(
            MinuteLag(
                at=each.at,
                p50=lag_percentile(each.figures, 0.5),
                p99=lag_percentile(each.figures, 0.99),
                count=sum(each.figures.lags.values()),
            )
            for each in minutes
        ),
        "failed_by_minute": tuple(
            MinuteCount(at=each.at, count=each.figures.unsuccessful) for each in minutes
        ),
        "sent_by_minute": tuple(
            MinuteCount(at=each.at, count=each.figures.sent) for each in minutes
        ),
    }
