"""The results of the API's calls for holds."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from celery_dynbeat.api.results.base import Info
from celery_dynbeat.api.results.page import BoundedCount

if TYPE_CHECKING:
    from celery_dynbeat.db.models import Hold


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldInfo(Info):
    """A snapshot of a hold. Instants are aware and in UTC.

    - ``owner`` is None if everything is held.
    - ``actor`` made the hold or changed it last. It is "" if the call named no actor.
    - ``created_at`` is when the hold began. A second ``hold()`` does not change it.
    - ``until_at`` is None if the hold lasts until ``release``.
    - ``schedules`` is the number of schedules that the hold stops: those with a next run.
      ``waiting_runs`` is the number of runs that wait for its end. Both read at most 10,000 rows.
      Only ``holds()`` counts; in other results both are None.
    """

    owner: str | None
    actor: str
    reason: str
    created_at: datetime
    until_at: datetime | None
    schedules: BoundedCount | None = None
    waiting_runs: BoundedCount | None = None

    @classmethod
    def of(cls, row: "Hold") -> "HoldInfo":
        """Return a snapshot of a row, without counts."""
        return cls(
            owner=row.owner,
            actor=row.actor,
            reason=row.reason,
            created_at=row.created_at,
            until_at=row.until_at,
        )
