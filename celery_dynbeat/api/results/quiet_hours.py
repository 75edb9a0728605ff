"""The results of the API's calls for quiet hours."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from celery_dynbeat.api.results.base import Info
from celery_dynbeat.planning.quiet_hours import QuietHours


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietHoursInfo(Info):
    """The quiet hours of an owner or a group.

    ``policy`` is ``"after"`` or ``"skip"``. In ``to_dict``, each window is a text, such as
    ``"mon-fri 22:00-07:00"``.
    """

    owner: str
    windows: Sequence[QuietHours]
    policy: str

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that ``json.dumps`` accepts."""
        return {
            "owner": self.owner,
            "windows": [str(each) for each in self.windows],
            "policy": self.policy,
        }
