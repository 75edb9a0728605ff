"""The results of the calls that show how much of a limit is used."""

from collections.abc import Sequence
from dataclasses import dataclass

from celery_dynbeat.api.results.base import Info


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitUsage(Info):
    """How many schedules or runs a limit counts, and how many it allows.

    ``owner`` is the owner that has the limit, or the group, such as ``"org:7/"``. ``setting`` names
    the setting that contains the limit, as in an OwnerLimitError.
    """

    _PROPERTIES = ("remaining",)

    owner: str
    used: int
    limit: int
    setting: str

    @property
    def remaining(self) -> int:
        """The number of further schedules or runs that the limit allows, at least 0."""
        return max(self.limit - self.used, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage(Info):
    """How many schedules and runs an owner or a group has, and the limits on these numbers.

    - ``limits`` are the limits on schedules: the limits of the owner's groups, the largest group
      first, and then the owner's own. The list is empty if there are no limits.
    - ``run_limits`` are the limits on runs in the same order: first max_running, and then
      max_starts_per_minute.
    - ``running`` is the number of runs that have a slot, and ``waiting`` is the number of runs that
      wait for one. Only runs of an owner with a limit on its runs have slots.
    """

    _PROPERTIES = ("remaining",)

    owner: str
    schedules: int
    limits: Sequence[LimitUsage]
    running: int = 0
    waiting: int = 0
    run_limits: Sequence[LimitUsage] = ()

    @property
    def remaining(self) -> int | None:
        """How many more schedules the owner may have, or None without a limit."""
        return min((each.remaining for each in self.limits), default=None)
