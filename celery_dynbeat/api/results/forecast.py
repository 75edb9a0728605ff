"""The results of forecasts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from celery_dynbeat.api.results.base import Info


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRow(Info):
    """The number of ``runs`` of a queue that become due in the minute or hour from ``start_at``.

    ``queue`` is None if the queue is not known.
    """

    start_at: datetime
    queue: str | None
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastInfo(Info):
    """The runs that become due from ``since`` until ``until``, including recurrences.

    - ``per`` is ``"minute"`` or ``"hour"``. ``since`` and ``until`` are whole minutes or hours in
      UTC.
    - ``rows`` are ordered by time and queue. A minute without runs has no row.
    - ``is_at_least`` is true if there can be more runs, because not all were counted.
    - ``total`` is the sum of the runs. ``busiest_at`` is the minute or hour with the most runs,
      the first one if several have as many, and ``busiest_runs`` their number.
    """

    _PROPERTIES: ClassVar[tuple[str, ...]] = ("total", "busiest_at", "busiest_runs")

    since: datetime
    until: datetime
    now: datetime
    per: str
    rows: Sequence[ForecastRow]
    is_at_least: bool

    @property
    def total(self) -> int:
        """The number of all runs."""
        return sum(row.runs for row in self.rows)

    @property
    def busiest_at(self) -> datetime | None:
        """The start of the minute or hour with the most runs. None if there are no runs."""
        return max(self._by_start(), key=self._by_start().__getitem__, default=None)

    @property
    def busiest_runs(self) -> int:
        """The number of runs in the minute or hour with the most runs."""
        return max(self._by_start().values(), default=0)

    def _by_start(self) -> Counter[datetime]:
        counts: Counter[datetime] = Counter()
        for row in self.rows:
            counts[row.start_at] += row.runs
        return counts
