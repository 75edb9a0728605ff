"""Forecast how many runs come due, by minute and queue.

    pages of the due index, a transaction for each -> groups of schedules -> runs by bin and queue
                 more schedules than ``Effort.rows` -> a random sample of them

A held schedule waits for the end of its hold, if the hold has an end. A run that must not overlap
another one counts: how long a run will take is not known.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, NamedTuple

from celery.app.routes import MapRoute
from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.results import ForecastInfo, ForecastPeak, ForecastRow, OwnerRuns
from celery_dynbeat.broker.task_message import MessageSender, queue_of
from celery_dynbeat.db.statements import in_parts
from celery_dynbeat.planning.forecasting import Bins, Counts, Forecast
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import holds, schedules
from celery_dynbeat.store.runs import run_samples, skips
from celery_dynbeat.store.schedules import planned_runs
from celery_dynbeat.store.schedules.schedule_filters import ScheduleFilter

WIDTHS = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1)}
#: Minutes or hours of one forecast.
MAX_BINS = 1_440
#: Schedules of one page, and of the sample if there are too many.
PAGE, SAMPLE_SIZE = 5_000, 2_000
#: Owners whose holds one statement reads.
OWNERS_PER_STATEMENT = 200
#: A schedule that runs so soon may run while the pages are read. A later page then repeats it.
_SOON = timedelta(minutes=1)
#: Of the last day, the spans whose runs are counted, and those that give the capacity.
_DAY, _SPANS, _FULLEST, _MAX_STARTS = timedelta(days=1), 288, 3, 20_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Effort(NamedTuple):
    """The cost limits of one forecast.

    The schedules that it reads, the steps of its searches (``triggers.base``), and the index
    entries that it counts for the capacity.
    """

    rows: int
    steps: int
    entries: int


#: For a person who waits for a few seconds, and for a page or a scrape.
THOROUGH, QUICK = Effort(200_000, 2_000_000, 300_000), Effort(20_000, 200_000, 60_000)


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
    effort: Effort,
    with_capacity: bool = True,
    session: Session | None = None,
) -> ForecastInfo:
    """Return the runs in ``bins``. ``ForecastCalls`` describes the result."""
    reader = _Reader(
        context,
        session,
        matching=ScheduleFilter(owner=owner),
        queue=queue,
        queues=_Queues(context, now),
        made=Forecast(context.settings, bins),
        until=bins.end,
        now=now,
    )
    counts, is_cut = reader.count(effort)
    capacity = None
    if with_capacity and owner is None:
        capacity = _capacity(context, session, per, now=now, entries=effort.entries)

    def start_of(number: int) -> datetime:
        return bins.start + number * bins.width

    ordered = sorted(counts.runs.items(), key=lambda item: (item[0][0], item[0][1] or ""))
    return ForecastInfo(
        since=bins.start,
        until=bins.end,
        now=now,
        per=per,
        rows=[
            ForecastRow(start_at=start_of(number), queue=name, runs=runs)
            for (number, name), runs in ordered
        ],
        schedules=counts.schedules,
        sampled=counts.computed / counts.schedules if counts.schedules else 1.0,
        incomplete=counts.incomplete,
        is_cut=is_cut,
        capacity=capacity,
        peaks=[
            ForecastPeak(
                start_at=start_of(peak.bin),
                runs=peak.runs,
                owners=[OwnerRuns(owner=name, runs=runs) for name, runs in peak.owners],
            )
            for peak in counts.peaks
        ],
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the schedules of a forecast. ``queue`` and ``matching`` select some of them."""

    context: Context
    session: Session | None
    matching: ScheduleFilter
    queue: str | None
    queues: "_Queues"
    made: Forecast
    until: datetime
    now: datetime

    def count(self, effort: Effort) -> tuple[Counts, bool]:
        """Return the runs, and whether schedules were left out."""
        # A page that is loaded again shows the same numbers.
        rng = Random(f"{self.until} {self.queue}")  # noqa: S311 - no secret
        scale = self.context.read_many(
            self.session, lambda session: self._add_sample(session, rng, limit=effort.rows)
        )
        is_cut = scale is None and self._add_pages(limit=effort.rows)
        return self.made.count(steps=effort.steps, rng=rng, scale=scale or 1.0), is_cut

    def _add_sample(self, session: Session, rng: Random, *, limit: int) -> float | None:
        """Add a sample if more than ``limit`` schedules match.

        Returns how many schedules each schedule of the sample stands for. None means that the
        caller must read all of them.
        """
        if not planned_runs.has_more_than(
            session, matching=self.matching, until=self.until, limit=limit
        ):
            return None
        drawn = planned_runs.sample(
            session,
            matching=self.matching,
            until=self.until,
            size=SAMPLE_SIZE,
            rng=rng,
            more=self.queues.columns,
        )
        if drawn is None:
            return None
        self._add(session, [row for each in drawn.draws for row in each])
        return drawn.frame / len(drawn.draws)

    def _add_pages(self, *, limit: int) -> bool:
        """Add the schedules page by page. Return whether some were left out."""
        seen: set[int] = set()
        key: tuple[datetime, int] | None = None

        def add_page(session: Session) -> tuple[datetime, int] | None:
            page = planned_runs.page(
                session,
                matching=self.matching,
                until=self.until,
                after=key,
                limit=PAGE,
                more=self.queues.columns,
            )
            self._add(session, [row for row in page.rows if row.id not in seen])
            seen.update(row.id for row in page.rows if row.next_run_at <= self.now + _SOON)
            return page.last_key

        for _ in range(0, limit + 1, PAGE):
            key = self.context.read_many(self.session, add_page)
            if key is None:
                return False
        return True

    def _add(self, session: Session, rows: Sequence[Any]) -> None:
        """Add the rows of the queue, with what their holds and ``skip()`` change."""
        of_queue = [(row, self.queues.of(row)) for row in rows]
        chosen = [(row, name) for row, name in of_queue if self.queue in {None, name}]
        skipped = skips.of_rows(session, [row for row, _ in chosen], now=self.now)
        calendars = schedules.calendars_of(session, [row for row, _ in chosen])
        end_of = _ends(session, {row.owner for row, _ in chosen}, now=self.now)
        for row, name in chosen:
            end, claim_at = end_of(row.owner), max(row.next_run_at, self.now)
            # A hold that ends before the schedule is due changes nothing.
            claim_at = claim_at if end is None else max(claim_at, end)
            self.made.add(
                row,
                queue=name,
                claim_at=claim_at,
                skipped=skipped.get(row.id, ()),
                calendars=calendars,
            )


def _ends(session: Session, owners: set[str], *, now: datetime) -> Callable[[str], datetime | None]:
    """Return a function that gives the end of the holds of an owner, None without a hold."""
    of_all = holds.end_of(session, owner=None, now=now)
    if not holds.of_owners(session, now=now, limit=1):
        return lambda _owner: of_all
    of_owner: dict[str, datetime] = {}
    # Read in parts, because an owner can be in many groups, and each name is a parameter.
    for part in in_parts(sorted(owners), OWNERS_PER_STATEMENT):
        of_owner |= holds.ends_of(session, part, now=now)
    earliest = of_all or datetime.min.replace(tzinfo=UTC)
    latest = {owner: max(end, earliest) for owner, end in of_owner.items()}
    return lambda owner: latest.get(owner, of_all)


class _Queues:
    """The queues of schedules, as beat chooses them."""

    def __init__(self, context: Context, now: datetime) -> None:
        app = context.app
        # The queue of a task is in its definition.
        app.loader.import_default_modules()
        self._sender = MessageSender(app, now=lambda: now, driver_type="")
        self._now = now
        # Only a function of the application can depend on the arguments, which may be large.
        self._has_functions = any(not isinstance(route, MapRoute) for route in app.amqp.routes)
        self.columns = ("options", *(("args", "kwargs") if self._has_functions else ()))
        self._found: dict[tuple[str, str], str | None] = {}

    def of(self, row: Any) -> str | None:
        """Return the queue of a row, or None if it is not known."""
        if self._has_functions:
            return self._queue(row, args=row.args or (), kwargs=row.kwargs or {})
        key = (row.task, json.dumps(row.options) if row.options else "")
        if key not in self._found:
            self._found[key] = self._queue(row, args=(), kwargs={})
        return self._found[key]

    def _queue(self, row: Any, *, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        options = row.options or {}
        return queue_of(
            self._sender, task=row.task, args=args, kwargs=kwargs, options=options, now=self._now
        )


def _capacity(
    context: Context, session: Session | None, per: str, *, now: datetime, entries: int
) -> int | None:
    """Return the number of runs that the workers can start in a minute or hour."""
    of_minute = context.settings.capacity_per_minute or context.read_many(
        session, lambda session: _most_starts(session, now=now, entries=entries)
    )
    return None if of_minute is None else of_minute * (WIDTHS[per] // WIDTHS["minute"])


def _most_starts(session: Session, *, now: datetime, entries: int) -> int | None:
    """Return the most runs that started in a minute of the last day, as far as they are read.

    They are searched for where most runs were created.
    """
    length = _DAY / _SPANS
    spans = run_samples.spans_of(now - _DAY, length=length, count=_SPANS)
    limit = entries // _SPANS // 4
    counts = list(run_samples.count(session, spans=spans, limit=limit))
    full = [number for number, count in enumerate(counts) if count >= limit]
    if full:
        chosen = [spans[number] for number in full]
        again = run_samples.count(session, spans=chosen, limit=max(entries // len(full), limit))
        for number, count in zip(full, again, strict=True):
            counts[number] = count
    fullest = sorted(range(_SPANS), key=lambda number: -counts[number])[:_FULLEST]
    starts = Counter(_started_minutes(session, now - _DAY, length, fullest))
    return max(starts.values(), default=None)


def _started_minutes(
    session: Session, since: datetime, length: timedelta, spans: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yield the span and the starting minute of the first runs of each span."""
    for number in spans:
        start = since + number * length
        for at in run_samples.start_times(session, since=start, limit=_MAX_STARTS):
            yield number, (at - _EPOCH) // WIDTHS["minute"]
