"""What the API returns for the use of limits."""

from collections.abc import Sequence
from dataclasses import dataclass

from celery_dynbeat.api.results.base import Info


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitUsage(Info):
    """How many schedules a limit counts, and how many it allows.

    ``owner`` is whose limit it is: the owner, or a group such as ``"org:7/"``. ``setting`` is where
    the limit comes from, as in an OwnerLimitError.
    """

    _PROPERTIES = ("remaining",)

    owner: str
    used: int
    limit: int
    setting: str

    @property
    def remaining(self) -> int:
        """How many more schedules the limit allows, not below 0."""
        return max(self.limit - self.used, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage(Info):
    """How many schedules an owner or a group has, and the limits on that number.

    ``limits`` are those of the owner's groups, the largest group first, then the owner's own. It is
    empty if there is no limit.
    """

    _PROPERTIES = ("remaining",)

    owner: str
    schedules: int
    limits: Sequence[LimitUsage]

    @property
    def remaining(self) -> int | None:
        """How many more schedules the owner may have, None without a limit."""
        return min((each.remaining for each in self.limits), default=None)
