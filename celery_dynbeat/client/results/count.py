"""What the API returns for a count."""

from dataclasses import dataclass

from celery_dynbeat.client.results.base import Info


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedCount(Info):
    """A number of schedules or runs. If it is not ``exact``, there are at least ``count``.

    Its text is ``"123"``, or ``"10,000+"`` if it is not exact.
    """

    count: int
    exact: bool

    def __str__(self) -> str:
        return f"{self.count:,}" if self.exact else f"{self.count:,}+"
