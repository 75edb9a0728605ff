"""Runs and planned runs by bins of time, for windows with many schedules."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from sqlalchemy.orm import Session

from celery_dynbeat.api.results import Info
from celery_dynbeat.insights.statistics.last_minutes import live_minutes
from celery_dynbeat.store import rollups
from celery_dynbeat.store.schedules import window_runs
from celery_dynbeat.store.schedules.schedule_filters import ScheduleFilter
from celery_dynbeat.store.schedules.window_runs import WindowCounts, span_of
from celery_dynbeat.store.span_reads import Span

MAX_BINS = 400
_WIDTHS = tuple(
    timedelta(minutes=minutes)
    for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 10_080)
)


class Reads(NamedTuple):
    """The number of rows that are read first in each bin, and of further rows for full bins."""

    first: int
    again: int


#: A tag also reads the schedule of each run.
PAST_READS, FILTERED_READS, TAGGED_READS = Reads(50, 15_000), Reads(30, 6_000), Reads(25, 0)
#: Rows that are read of one bin.
MAX_ROWS_OF_BIN = 20_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin(Info):
    """The runs from ``start_at`` to before ``end_at``.

    - ``past`` is the number of runs without skipped ones. ``failed`` of them failed or were lost.
      Without a filter, these are the runs that ended in the bin.
    - ``planned`` is the number of upcoming runs. Due runs count in the bin of ``now``.
    - ``more`` means that the numbers of past runs are lower bounds.
    """

    start_at: datetime
    end_at: datetime
    past: int
    failed: int
    planned: int
    more: bool


def bins_of(since: datetime, until: datetime) -> Sequence[Span]:
    """Return at most MAX_BINS + 1 equal bins that contain the window.

    They begin at multiples of their width, which is a minute for windows up to six hours.
    """
    widths = (width for width in _WIDTHS if (until - since) / width <= MAX_BINS)
    width = next(widths, _WIDTHS[-1])
    start = _EPOCH + (since - _EPOCH) // width * width
    bins = []
    while start < until:
        bins.append(Span(start, start + width))
        start += width
    return bins


def count_past(
    session: Session, matching: ScheduleFilter, bins: Sequence[Span], *, now: datetime
) -> Sequence[WindowCounts]:
    """Return the counts of the runs in each bin until ``now``."""
    past = [span for span in bins if span.start < now]
    if counts_by_end(matching):
        return [*_count_ended(session, past, now=now), *[WindowCounts()] * (len(bins) - len(past))]
    spans = [span_of(matching, start, min(end, now)) for start, end in past]
    counts = _count(
        lambda some, limit: window_runs.count_in_spans(
            session, matching=matching, spans=some, limit=limit
        ),
        spans,
        _reads(matching, is_filtered=matching.task is not None),
    )
    return [*counts, *[WindowCounts()] * (len(bins) - len(past))]


def counts_by_end(matching: ScheduleFilter) -> bool:
    """Return whether the runs of all schedules match. Their counts come from the rollup."""
    return matching.owner is None and matching.task is None and matching.tag is None


def _count_ended(
    session: Session, bins: Sequence[Span], *, now: datetime
) -> Sequence[WindowCounts]:
    newest, known_until = live_minutes(session, now=now)
    counts = []
    for span, (runs, failed) in zip(bins, rollups.count_spans(session, bins), strict=True):
        live = [each for at, each in newest.items() if span.start <= at < span.end]
        counts.append(
            WindowCounts(
                runs + sum(each.ended for each in live),
                failed + sum(each.unsuccessful for each in live),
                is_more=min(span.end, now) > known_until,
            )
        )
    return counts


def _reads(matching: ScheduleFilter, *, is_filtered: bool) -> Reads:
    if matching.tag is not None:
        return TAGGED_READS
    return FILTERED_READS if is_filtered else PAST_READS


def count_instants(instants: Sequence[datetime], spans: Sequence[Span]) -> Sequence[int]:
    """Return how many of the sorted instants lie in each span."""
    return [bisect_left(instants, end) - bisect_left(instants, start) for start, end in spans]


def sums_of_minutes(
    minutes: Iterable[tuple[datetime, int]], spans: Sequence[Span]
) -> Sequence[int]:
    """Return the sum of the numbers of the minutes in each of the adjacent spans."""
    sums = [0] * len(spans)
    start, width = spans[0].start, spans[0].end - spans[0].start
    for at, number in minutes:
        sums[(at - start) // width] += number
    return sums


def _count(
    count: Callable[[Sequence[Span], int], Sequence[WindowCounts]],
    spans: Sequence[Span],
    reads: Reads,
) -> list[WindowCounts]:
    """Return the counts of the spans. Those with many rows get a higher limit, if they are few."""
    counts = list(count(spans, reads.first))
    full = [number for number, found in enumerate(counts) if found.is_more]
    limit = min(reads.again // max(len(full), 1), MAX_ROWS_OF_BIN)
    if limit > reads.first:
        again = count([spans[number] for number in full], limit)
        for number, found in zip(full, again, strict=True):
            counts[number] = found
    return counts


def bins_from(
    bins: Sequence[Span], past: Sequence[WindowCounts], planned: Sequence[int]
) -> Sequence[Bin]:
    """Return the bins with their counts."""
    return [
        Bin(
            start_at=span.start,
            end_at=span.end,
            past=ran.runs,
            failed=ran.failed,
            planned=number,
            more=ran.is_more,
        )
        for span, ran, number in zip(bins, past, planned, strict=True)
    ]
