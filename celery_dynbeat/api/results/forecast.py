"""What the API returns for a forecast."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from celery_dynbeat.api.results.base import Info


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRow(Info):
    """The ``runs`` of a queue that come due in the minute or hour from ``start_at`` on.

    ``queue`` None: the queue is not known, as ``explain`` says.
    """

    start_at: datetime
    queue: str | None
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRuns(Info):
    """The runs of an owner in a minute or hour."""

    owner: str
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastPeak(Info):
    """A minute or hour with many runs, of all queues, and its largest owners, at most five."""

    start_at: datetime
    runs: int
    owners: Sequence[OwnerRuns]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastInfo(Info):
    """The runs that come due from ``since`` to before ``until``, recurrences included.

    - ``per`` is ``"minute"`` or ``"hour"``. ``since`` and ``until`` are whole ones, in UTC.
    - ``rows`` are ordered by time and queue. A minute without runs has no row.
    - ``schedules`` run in this time or before it. ``sampled`` is the share of them whose runs were
      computed. ``incomplete`` of them have more runs than are counted: their trigger is too costly.
    - ``is_estimate``: the share is below 1, or schedules are incomplete.
    - ``is_cut``: not all schedules were read, and no sample of them could be drawn. The runs are
      lower bounds.
    - ``capacity`` is the number of runs that the workers can start in a minute or hour: that of
      ``dynbeat_capacity_per_minute``, else the most that they started in a minute of the last day.
      None for the forecast of an owner, and without such runs.
    - ``peaks`` are the minutes or hours with the most runs, at most ten. ``spikes`` are those of
      them that exceed the capacity.
    """

    _PROPERTIES: ClassVar[tuple[str, ...]] = ("is_estimate", "spikes")

    since: datetime
    until: datetime
    now: datetime
    per: str
    rows: Sequence[ForecastRow]
    schedules: int
    sampled: float
    incomplete: int
    is_cut: bool
    capacity: int | None
    peaks: Sequence[ForecastPeak]

    @property
    def is_estimate(self) -> bool:
        """Whether the numbers are an estimate."""
        return self.sampled < 1 or self.incomplete > 0 or self.is_cut

    @property
    def spikes(self) -> Sequence[ForecastPeak]:
        """The peaks above the capacity, in the order of time."""
        if self.capacity is None:
            return []
        above = [peak for peak in self.peaks if peak.runs > self.capacity]
        return sorted(above, key=lambda peak: peak.start_at)
