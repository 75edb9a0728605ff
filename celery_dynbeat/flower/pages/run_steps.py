"""The steps of a run, as its page shows them. PURE.

due -> recorded -> ready (after a wait) -> sent -> started -> ended
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from operator import itemgetter

from celery_dynbeat.api.results import RunInfo
from celery_dynbeat.common import states
from celery_dynbeat.common.states import UNFINISHED, UNOWNED, Origin, was_started


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step that the run reached, and how long it took since the previous one.

    ``start`` and ``share`` place that time in the whole run: fractions from 0 to 1.
    """

    label: str
    at: datetime
    took: timedelta | None
    start: float
    share: float


def steps(run: RunInfo) -> Sequence[Step]:
    """Return the steps that the run has reached, in their order."""
    reached = list(_reached(run))
    first, last = reached[0][1], max(at for _, at in reached)
    # The clocks of machines differ, so a later step can have an earlier time.
    whole = max((last - first).total_seconds(), 1e-6)
    found = [Step(label=reached[0][0], at=first, took=None, start=0.0, share=0.0)]
    for (_, before), (label, at) in pairwise(reached):
        took = max(at - before, timedelta(0))
        start = min(1.0, max(0.0, (before - first).total_seconds() / whole))
        share = min(1.0 - start, took.total_seconds() / whole)
        found.append(Step(label=label, at=at, took=took, start=start, share=share))
    return found


def _reached(run: RunInfo) -> Iterator[tuple[str, datetime]]:
    # A rerun or a backfill did not wait since its old fire time, so the time counts from its
    # record.
    if run.origin == Origin.SCHEDULE and was_started(run.status, run.attempt):
        yield "due", run.scheduled_for
    recorded = [("recorded", run.created_at)]
    recorded += [] if run.ready_at is None else [("ready", run.ready_at)]
    yield from sorted(recorded, key=itemgetter(1))
    for label, at in (("sent", run.sent_at), ("started", run.started_at)):
        if at is not None:
            yield label, at
    if run.finished_at is not None:
        yield run.status, run.finished_at


def can_rerun(run: RunInfo) -> bool:
    """Return whether the run can run again. Its schedule can still refuse it."""
    return states.can_rerun(run.status, run.attempt) and run.schedule_id is not None


def can_cancel(run: RunInfo) -> bool:
    """Return whether the run can be cancelled, because no worker executes it."""
    return run.status in UNOWNED


def is_unfinished(run: RunInfo) -> bool:
    """Return whether the run can still change."""
    return run.status in UNFINISHED
