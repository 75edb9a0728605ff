"""The results of forecasts."""

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
class OwnerRuns(Info):
    """The number of runs of an owner in a minute or hour."""

    owner: str
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastPeak(Info):
    """A minute or hour with many runs in all queues, and its five largest owners at most."""

    start_at: datetime
    runs: int
    owners: Sequence[OwnerRuns]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastInfo(Info):
    """The runs that become due from ``since`` until ``until``, including recurrences.

    - ``per`` is ``"minute"`` or ``"hour"``. ``since`` and ``until`` are whole minutes or hours in
      UTC.
    - ``rows`` are ordered by time and queue. A minute without runs has no row.
    - ``schedules`` is the number of schedules that run before ``until``. ``sampled`` is the
      fraction of them whose runs were computed. ``incomplete`` of them have more runs than were
      counted, because their trigger is too costly.
    - ``is_estimate`` is true if the fraction is below 1, or if schedules are incomplete.
    - ``is_cut`` is true if not all schedules were read, and no sample of them could be drawn. The
      numbers of runs are then lower bounds.
    - ``capacity`` is the number of runs that the workers can start in a minute or hour. It comes
      from ``dynbeat_capacity_per_minute``, or else from the busiest minute of the last day. It is
      None for the forecast of an owner, and if the workers have started no runs.
    - ``peaks`` are the minutes or hours with the most runs, at most ten. ``spikes`` are the peaks
      that exceed the capacity.
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
