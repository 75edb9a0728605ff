"""The results of the API's calls for holds."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from celery_dynbeat.api.results.base import Info

if TYPE_CHECKING:
    from celery_dynbeat.db.models import Hold


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldInfo(Info):
    """A snapshot of a hold. Instants are aware and in UTC.

    - ``owner`` is None if everything is held.
    - ``actor`` is "" if the hold was made without an actor.
    - ``until_at`` is None if the hold lasts until ``release``.
    """

    id: int
    owner: str | None
    actor: str
    reason: str
    created_at: datetime
    until_at: datetime | None

    def covers(self, fire_time: datetime) -> bool:
        """Return whether the hold, if it is not released early, stops a future fire time."""
        return self.until_at is None or fire_time < self.until_at

    @classmethod
    def of(cls, row: "Hold") -> "HoldInfo":
        """Return a snapshot of a row."""
        return cls(**{name: getattr(row, name) for name in cls.__slots__})
