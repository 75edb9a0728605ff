"""The results of the API's calls for requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from celery_dynbeat.api.results.base import Info

if TYPE_CHECKING:
    from celery_dynbeat.db.models import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestInfo(Info):
    """A snapshot of a request that ``backfill`` or ``rerun_many`` has stored.

    - ``kind`` is ``"backfill"`` or ``"rerun"``. ``since`` and ``until`` limit the fire times: since
      <= fire time < until. Instants are aware and in UTC.
    - The request covers the runs of all owners if ``owner`` is None, of all schedules if ``name``
      is None, and of all tasks if ``task`` is None. ``statuses`` limits the runs that a rerun
      repeats; a backfill has none.
    - ``total`` is the number of fire times of a backfill, or of runs that matched a rerun.
      ``created`` of them became new runs, and ``excluded`` of them did not. A fire time is excluded
      if it already had a run. A run is excluded if it has changed or has a newer rerun. It is also
      excluded if its schedule is deleted or may not run its task.
    - ``now`` is true if the runs do not wait for the end of quiet hours.
    - ``waiting`` is the number of new runs that wait for a place.
    - ``status`` is ``"running"`` until all are created or excluded, and then ``"finished"`` or
      ``"cancelled"``. The runs of a finished request can still be unfinished, or have failed. The
      ``request_id`` of a run is the ``id`` of its request.
    """

    _PROPERTIES: ClassVar[tuple[str, ...]] = ("progress",)

    id: int
    kind: str
    owner: str | None
    name: str | None
    task: str | None
    statuses: Sequence[str]
    since: datetime
    until: datetime
    batch_size: int
    now: bool
    total: int
    created: int
    excluded: int
    waiting: int
    status: str
    created_at: datetime
    finished_at: datetime | None

    @classmethod
    def of(cls, row: "Request", *, waiting: int = 0) -> "RequestInfo":
        """Return a snapshot of a row, of which ``waiting`` runs wait for a place."""
        status = "running" if row.finished_at is None else "finished"
        special: dict[str, Any] = {
            "kind": str(row.kind),
            "now": row.ignores_quiet_hours,
            "waiting": waiting,
            # None means that the value has too many digits or levels for Python.
            "statuses": tuple(row.statuses or ()),
            "status": "cancelled" if row.cancelled else status,
        }
        plain = {name: getattr(row, name) for name in cls.__slots__ if name not in special}
        return cls(**plain, **special)

    @property
    def progress(self) -> float:
        """The fraction that has been created or excluded, from 0.0 to 1.0."""
        if self.status == "finished" or not self.total:
            return 1.0
        return min(1.0, (self.created + self.excluded) / self.total)
