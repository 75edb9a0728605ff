"""The results of the API's calls for changes."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from celery_dynbeat.api.results.base import Info

if TYPE_CHECKING:
    from celery_dynbeat.db.models import Change


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeInfo(Info):
    """One edit, for the audit. ``changed_at`` is aware and in UTC.

    - ``owner`` is None for an edit of everything. ``name`` is ``""`` for an edit of the owner.
    - ``before`` and ``after`` are the changed fields, named and written as in
      ``ScheduleInfo.to_dict``. A new schedule has no ``before``, and a deleted one has no
      ``after``.
    - ``actor`` and ``reason`` are ``""`` if none was given.
    """

    id: int
    changed_at: datetime
    owner: str | None
    name: str
    action: str
    actor: str
    reason: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None

    @classmethod
    def of(cls, row: "Change") -> "ChangeInfo":
        """Return a snapshot of a row."""
        special: dict[str, Any] = {"before": row.old_values, "after": row.new_values}
        plain = {name: getattr(row, name) for name in cls.__slots__ if name not in special}
        return cls(**plain, **special)
