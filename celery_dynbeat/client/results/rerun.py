"""What the API returns for a request to run ended runs again."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from celery_dynbeat.client.results.base import Info

if TYPE_CHECKING:
    from celery_dynbeat.db.models import Rerun


@dataclass(frozen=True, slots=True, kw_only=True)
class RerunInfo(Info):
    """A snapshot of what ``rerun_many`` requested. Instants are aware and in UTC.

    - ``owner`` None means the runs of all owners, ``name`` None those of all schedules,
      ``task`` None those of all tasks.
    - ``total`` is the number of runs that matched at the request. ``made`` of them run again.
      ``left_out`` of them do not: they changed or have a newer rerun, or their schedule is deleted,
      paused or quarantined or must not run its task.
    - ``status`` is ``"running"`` until each run is made or left out, then ``"finished"``, or
      ``"cancelled"``. The new runs of a finished request can be unfinished or failed.
    """

    _PROPERTIES: ClassVar[tuple[str, ...]] = ("progress",)

    id: int
    owner: str | None
    name: str | None
    task: str | None
    statuses: Sequence[str]
    since: datetime
    until: datetime
    batch_size: int
    total: int
    made: int
    left_out: int
    status: str
    created_at: datetime
    finished_at: datetime | None

    @classmethod
    def of(cls, row: "Rerun") -> "RerunInfo":
        """Return a snapshot of a row."""
        special: dict[str, Any] = {"statuses": tuple(row.statuses), "status": _status_of(row)}
        plain = {name: getattr(row, name) for name in cls.__slots__ if name not in special}
        return cls(**plain, **special)

    @property
    def progress(self) -> float:
        """The fraction of the runs that are made or left out: 0.0 to 1.0."""
        if self.status == "finished" or not self.total:
            return 1.0
        return min(1.0, (self.made + self.left_out) / self.total)


def _status_of(row: "Rerun") -> str:
    if row.cancelled:
        return "cancelled"
    return "running" if row.finished_at is None else "finished"
