"""The progress of a schedule that another scheduler has run until now."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """The progress of a schedule in the other scheduler.

    - ``after``: it has processed the fire times up to this instant. None means up to now.
    - ``last_run_at``: when it last sent the task.
    - ``anchor_at``: the instant from which it counts an interval; None means from now.
    - ``run_count``: how often it has sent the task.
    """

    after: datetime | None = None
    last_run_at: datetime | None = None
    anchor_at: datetime | None = None
    run_count: int = 0

    def columns(self, *, now: datetime) -> dict[str, Any]:
        """Return the columns of the progress."""
        return {
            "last_run_at": self.last_run_at,
            "run_count": self.run_count,
            "anchor_at": self.anchor_at or now,
        }
