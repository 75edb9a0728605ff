"""The results of the API's calls for batches."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from celery_dynbeat.api.results.base import Info
from celery_dynbeat.common.states import UNFINISHED


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult(Info):
    """The batch that ``backfill`` or ``rerun_many`` has recorded.

    - ``batch_id`` is the id of the batch, or None if no run was recorded.
    - ``created`` is the number of its runs, at most 10,000.
    - ``excluded`` is the number of fire times that already had a run, or of runs that cannot run
      again: their schedule may not run its task, or they have a newer rerun.
    - ``left_since`` is the ``since`` of the next call for what is left, or None if nothing is left.
    """

    batch_id: str | None
    created: int
    excluded: int
    left_since: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchInfo(Info):
    """The progress of a batch: ``counts`` has the number of its runs by status.

    ``total`` is the number of its runs, and ``unfinished`` of those that have not ended.
    """

    _PROPERTIES: ClassVar[tuple[str, ...]] = ("total", "unfinished")

    id: str
    created_at: datetime
    counts: Mapping[str, int]

    @property
    def total(self) -> int:
        """The number of runs."""
        return sum(self.counts.values())

    @property
    def unfinished(self) -> int:
        """The number of runs that have not ended."""
        return sum(self.counts.get(status, 0) for status in UNFINISHED)
