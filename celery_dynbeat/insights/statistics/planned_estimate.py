"""An estimate of the upcoming runs of many schedules, from the runs of a random sample."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf, sqrt
from random import Random
from statistics import fmean, stdev
from typing import NamedTuple

from sqlalchemy.orm import Session

from celery_dynbeat.api.results import Info
from celery_dynbeat.insights.statistics.histogram import count_instants
from celery_dynbeat.insights.statistics.planned_ticks import planned_ticks
from celery_dynbeat.process.context import Context
from celery_dynbeat.store.schedules import planned_runs
from celery_dynbeat.store.schedules.planned_runs import PlannedCounts
from celery_dynbeat.store.schedules.schedule_filters import ScheduleFilter
from celery_dynbeat.store.span_reads import Span

#: Schedules in a sample, and the fewest that an estimate needs.
SAMPLE_SIZE, MIN_SAMPLE = 500, 10
#: Upcoming runs of a sample that are computed. Each takes some microseconds.
MAX_SAMPLED_TICKS = 40_000
#: This many draws are followed, as long as their runs are at most MAX_SAMPLED_TICKS.
_STRIDES = (1, 3, 9, 27)
#: Standard errors on each side of an estimate that contain the number in 19 of 20 cases.
_STANDARD_ERRORS = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEstimate(Info):
    """About ``runs`` upcoming runs, plus or minus ``error`` in 19 of 20 cases.

    They are estimated from the fire times of ``sampled`` out of about ``schedules`` schedules.
    """

    runs: int
    error: int
    sampled: int
    schedules: int

    def __str__(self) -> str:
        """Return the estimate in words."""
        return (
            f"about {self.runs:,} runs (plus or minus {self.error:,}), estimated from a sample of"
            f" {self.sampled:,} of {self.schedules:,} schedules"
        )


class EstimatedCounts(NamedTuple):
    """The upcoming runs in each bin. If ``estimate`` is None, all schedules are counted."""

    counts: Sequence[PlannedCounts]
    estimate: PlannedEstimate | None


def estimate_planned(
    context: Context,
    session: Session,
    matching: ScheduleFilter,
    bins: Sequence[Span],
    *,
    now: datetime,
) -> EstimatedCounts | None:
    """Estimate the upcoming runs in each bin, and in all bins together.

    None if the fire times of a few schedules are too many, or if too few schedules match.
    """
    since, until = bins[0].start, bins[-1].end
    # A page that is loaded again shows the same numbers.
    rng = Random(f"{since} {until}")  # noqa: S311 - no secret
    drawn = planned_runs.sample(session, matching=matching, until=until, size=SAMPLE_SIZE, rng=rng)
    draws = [] if drawn is None else [*drawn.draws]
    rng.shuffle(draws)
    for stride in _STRIDES:
        # The sample of a sample is also random: that its runs are too many adds no bias.
        part = draws[::stride]
        rows = [row for each in part for row in each]
        if drawn is None or len(rows) < MIN_SAMPLE:
            return None
        found = planned_ticks(
            context, session, rows, now=now, since=since, until=until, limit=MAX_SAMPLED_TICKS
        )
        if not found.is_cut:
            scale = drawn.frame / len(part)
            counts = [
                PlannedCounts(round(each.planned * scale))
                for each in count_instants([at for at, _ in found.ticks], bins)
            ]
            runs = dict.fromkeys((row.id for row in rows), 0)
            for _, row in found.ticks:
                runs[row.id] += 1
            totals = [sum(runs[row.id] for row in each) for each in part]
            estimate = PlannedEstimate(
                runs=round(fmean(totals) * drawn.frame),
                error=round(_STANDARD_ERRORS * _standard_error(totals, drawn.frame)),
                sampled=len(rows),
                schedules=round(len(rows) * scale),
            )
            is_exact = len(part) == drawn.frame
            return EstimatedCounts(counts, None if is_exact else estimate)
    return None


def _standard_error(totals: Sequence[int], frame: int) -> float:
    """Return the standard error of ``frame`` times the mean of draws without replacement."""
    if len(totals) < 2:  # noqa: PLR2004 - one draw has no deviation
        return inf
    share = min(len(totals) / frame, 1)
    return frame * stdev(totals) * sqrt((1 - share) / len(totals))
