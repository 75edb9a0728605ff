"""The results of the runs of one owner."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from celery_dynbeat.api.lists.history import filter_of
from celery_dynbeat.api.results import BoundedCount
from celery_dynbeat.api.results.base import Info
from celery_dynbeat.common.states import was_started
from celery_dynbeat.insights.statistics.lag import lag_of, percentile
from celery_dynbeat.process.context import Context
from celery_dynbeat.store.runs import run_pages
from celery_dynbeat.store.runs.run_filters import UNSUCCESSFUL


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerUsage(Info):
    """The runs of an owner: their number, the failed or lost, and the skipped fire times.

    They come from the newest 10,000 rows. The lag covers runs that their schedules made, and is
    None if there are no such runs.
    """

    runs: BoundedCount
    failed: BoundedCount
    skipped: BoundedCount
    lag_p50: timedelta | None
    lag_p99: timedelta | None


def owner_usage(
    context: Context,
    *,
    owner: str,
    since: datetime,
    until: datetime,
    session: Session | None = None,
) -> OwnerUsage:
    """Return the usage of ``owner`` with since <= fire time <= until."""
    matching = filter_of(
        owner=owner,
        name=None,
        status=None,
        task=None,
        origin=None,
        since=since,
        until=until + timedelta.resolution,
    )
    found = context.read_many(session, lambda session: run_pages.newest(session, matching=matching))
    numbers = Counter(row.status for row in found.rows)
    skipped = sum(not was_started(row.status, row.attempt) for row in found.rows)
    lags = [lag for lag in map(lag_of, found.rows) if lag is not None]

    def counted(number: int) -> BoundedCount:
        return BoundedCount(count=number, exact=found.last is None)

    return OwnerUsage(
        runs=counted(numbers.total() - skipped),
        failed=counted(sum(numbers[each] for each in UNSUCCESSFUL)),
        skipped=counted(skipped),
        lag_p50=percentile(lags, 0.5),
        lag_p99=percentile(lags, 0.99),
    )
