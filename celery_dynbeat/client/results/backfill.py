"""What the API returns for a backfill."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from celery_dynbeat.client.results.base import Info

if TYPE_CHECKING:
    from celery_dynbeat.db.models import Backfill, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillInfo(Info):
    """A snapshot of a backfill. Instants are aware and in UTC.

    - ``total`` is the number of fire times from ``start_at`` to ``end_at``. ``made`` of them became
      runs, ``present`` of them already had a run.
    - ``status`` is ``"running"`` until each fire time has a run, then ``"finished"``, or
      ``"cancelled"``. The runs of a finished backfill can be unfinished or failed.
    """

    _PROPERTIES: ClassVar[tuple[str, ...]] = ("progress",)

    id: int
    owner: str
    name: str
    start_at: datetime
    end_at: datetime
    total: int
    made: int
    present: int
    status: str
    created_at: datetime
    finished_at: datetime | None

    @classmethod
    def of(cls, row: "Backfill", schedule: "Schedule") -> "BackfillInfo":
        """Return a snapshot of a row; ``schedule`` is the row's schedule."""
        special: dict[str, Any] = {
            "owner": schedule.owner,
            "name": schedule.name,
            "status": _status_of(row),
        }
        plain = {name: getattr(row, name) for name in cls.__slots__ if name not in special}
        return cls(**plain, **special)

    @property
    def progress(self) -> float:
        """The fraction of the fire times that have a run: 0.0 to 1.0."""
        if self.status == "finished" or not self.total:
            return 1.0
        return min(1.0, (self.made + self.present) / self.total)


def _status_of(row: "Backfill") -> str:
    if row.cancelled:
        return "cancelled"
    return "running" if row.finished_at is None else "finished"
