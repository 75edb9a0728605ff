"""Statistics of the lag: how long after its fire time a run was sent."""

import bisect
from collections import Counter
from collections.abc import Sequence
from math import ceil

from sqlalchemy import Engine, select

from celery_dynbeat.db.models import Run

#: Upper bounds of the histogram's buckets in milliseconds, ten for each power of ten.
BOUNDS = tuple(round(10 ** (step / 10), 2) for step in range(41))


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that ``share`` (0 to 1) of ``values`` do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, ceil(len(ordered) * share) - 1)]


def histogram(values: Sequence[float]) -> list[tuple[float, int]]:
    """Return (upper bound, count) for each bucket of milliseconds.

    The last bucket also counts larger values.
    """
    last = len(BOUNDS) - 1
    counts = Counter(min(bisect.bisect_left(BOUNDS, value), last) for value in values)
    return [(bound, counts[index]) for index, bound in enumerate(BOUNDS)]


def lags_by_owner(engine: Engine, *, task: str | None = None) -> list[tuple[str, float]]:
    """Return the owner and the lag in seconds of each run; AssertionError for an unsent run.

    With ``task``, only runs of this task.
    """
    statement = select(Run.owner, Run.sent_at, Run.fire_at)
    if task is not None:
        statement = statement.where(Run.task == task)
    with engine.connect() as connection:
        rows = connection.execute(statement).all()
    lags: list[tuple[str, float]] = []
    for owner, sent_at, fire_at in rows:
        assert sent_at is not None, "a run has no sent_at"
        lags.append((owner, (sent_at - fire_at).total_seconds()))
    return lags
