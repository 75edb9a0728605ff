"""The results of the calls that show how much of a limit is used."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from celery_dynbeat.api.results.base import Info


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitUsage(Info):
    """How many schedules or runs a limit counts, and how many it allows.

    ``setting`` names the setting that contains the limit, as in an OwnerLimitError.
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
    """How many schedules and runs an owner has, and the limits on these numbers.

    - ``limits`` is the limit on schedules, and ``run_limits`` the limit on runs. Each is empty
      without a limit.
    - ``running`` is the number of runs that have a place, of all owners with the same
      ``running_key``. ``waiting`` is the number of runs of the owner that wait for a place. Without
      a limit on its runs, an owner has no key and needs no places.
    """

    _PROPERTIES = ("remaining",)

    owner: str
    schedules: int
    limits: Sequence[LimitUsage]
    running: int = 0
    waiting: int = 0
    run_limits: Sequence[LimitUsage] = ()
    running_key: str | None = None

    @property
    def remaining(self) -> int | None:
        """How many more schedules the owner may have, or None without a limit."""
        return min((each.remaining for each in self.limits), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingOwner(Info):
    """An owner whose runs wait for a place.

    ``since`` is when the oldest of the ``waiting`` runs was recorded. ``running`` runs have a place
    of ``running_key``, and ``max_running`` may have one. None means that the limit was removed, so
    that the runs are sent.
    """

    owner: str
    waiting: int
    since: datetime
    running_key: str
    running: int
    max_running: int | None
