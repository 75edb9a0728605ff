"""Forecast how many runs come due, by minute and queue.

A schedule that a claim has found held has no run before its release. A run that must not overlap
another one counts: how long a run will take is not known.
"""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.lists.planned_ticks import count_planned
from celery_dynbeat.api.results import ForecastInfo, ForecastRow
from celery_dynbeat.broker.task_message import MessageSender, queue_of
from celery_dynbeat.process.context import Context
from celery_dynbeat.store.schedules.schedule_filters import ScheduleFilter

WIDTHS = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1)}
#: Minutes or hours of one forecast.
MAX_BINS = 1_440
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Bins(NamedTuple):
    """``number`` bins of equal ``width`` from ``start``."""

    start: datetime
    width: timedelta
    number: int

    @property
    def end(self) -> datetime:
        """The end of the last bin."""
        return self.start + self.number * self.width

    def start_of(self, at: datetime) -> datetime:
        """Return the start of the bin that contains ``at``."""
        return self.start + (at - self.start) // self.width * self.width


def whole_bins(since: datetime, until: datetime, per: str) -> Bins:
    """Return the whole minutes or hours that cover the span. Raises InvalidScheduleError."""
    width = WIDTHS[per]
    start = _EPOCH + (since - _EPOCH) // width * width
    count = -((start - until) // width)
    if not 0 < count <= MAX_BINS or until <= since:
        rule = f"must be after since = {since}, by at most {MAX_BINS * width}"
        raise checks.invalid("until", until, rule)
    return Bins(start, width, count)


def forecast(
    context: Context,
    *,
    bins: Bins,
    per: str,
    now: datetime,
    queue: str | None = None,
    owner: str | None = None,
    session: Session | None = None,
) -> ForecastInfo:
    """Return the runs in ``bins``. ``forecast()`` describes the result."""
    found = context.read_many(
        session,
        lambda session: count_planned(
            context,
            session,
            ScheduleFilter(owner=owner),
            now=now,
            since=bins.start,
            until=bins.end,
        ),
    )
    queues = _Queues(context, now)
    counts: Counter[tuple[datetime, str | None]] = Counter()
    for each, runs in found.runs.items():
        name = queues.of(each.task, each.options)
        if queue in {None, name}:
            counts[bins.start_of(each.minute), name] += runs
    ordered = sorted(counts.items(), key=lambda item: (item[0][0], item[0][1] or ""))
    return ForecastInfo(
        since=bins.start,
        until=bins.end,
        now=now,
        per=per,
        rows=[ForecastRow(start_at=at, queue=name, runs=runs) for (at, name), runs in ordered],
        is_at_least=found.is_at_least,
    )


class _Queues:
    """The queues of schedules, as beat chooses them.

    A router of the application is asked without the arguments of the run.
    """

    def __init__(self, context: Context, now: datetime) -> None:
        # The queue of a task is in its definition.
        context.app.loader.import_default_modules()
        self._sender = MessageSender(context.app, now=lambda: now, driver_type="")
        self._now = now
        self._found: dict[tuple[str, str], str | None] = {}

    def of(self, task: str, options: str) -> str | None:
        """Return the queue for a task and options, which are JSON; None if it is not known."""
        key = (task, options)
        if key not in self._found:
            self._found[key] = queue_of(
                self._sender,
                task=task,
                args=(),
                kwargs={},
                options=_parsed(options),
                now=self._now,
            )
        return self._found[key]


def _parsed(options: str) -> dict[str, object]:
    try:
        found = json.loads(options or "{}")
    # Only manual SQL stores such options. Beat quarantines the schedule.
    except (RecursionError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
