"""The results of the API's calls for quiet hours."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from celery_dynbeat.api.results.base import Info
from celery_dynbeat.common.quiet_rule import QuietHours


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietHoursInfo(Info):
    """The quiet hours of an owner, or with ``owner=None`` of ``dynbeat_quiet_hours``.

    ``calendar`` is the calendar of their quiet days, or None. In ``to_dict``, each window is a
    text, such as ``"mon-fri 22:00-07:00"``.
    """

    owner: str | None
    windows: Sequence[QuietHours]
    calendar: str | None = None

    def __str__(self) -> str:
        days = [] if self.calendar is None else [f"the days of {self.calendar}"]
        return ", ".join([*map(str, self.windows), *days])

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that ``json.dumps`` accepts."""
        return {
            "owner": self.owner,
            "windows": [str(each) for each in self.windows],
            "calendar": self.calendar,
        }
