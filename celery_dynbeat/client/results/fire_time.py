"""What the API returns for an upcoming fire time."""

from dataclasses import dataclass
from datetime import datetime

from celery_dynbeat.client.results.base import Info


@dataclass(frozen=True, slots=True, kw_only=True)
class FireTime(Info):
    """An upcoming fire time. ``at`` is aware and in UTC.

    ``is_skipped`` means that ``skip()`` took it out. ``reason`` then says by whom and why, such as
    ``"skipped by alice@example.com: public holiday"``.
    """

    at: datetime
    is_skipped: bool = False
    reason: str | None = None
