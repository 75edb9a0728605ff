"""The results of an import."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from celery_dynbeat.importing.found import Found


class Outcome(StrEnum):
    """The action of the import for one schedule."""

    CREATE = "create"
    UPDATE = "update"
    ADVANCE = "advance"
    PAUSE = "pause"
    KEEP = "keep"
    SKIP = "skip"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Result:
    """The action of the import for ``found``, which a dry run only reports.

    ``trigger`` is the new trigger in words. ``reason`` says why the schedule is skipped, refused or
    created paused, or what changes.
    """

    found: Found
    owner: str
    outcome: Outcome
    trigger: str = ""
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the result for JSON."""
        return {
            "outcome": str(self.outcome),
            "owner": self.owner,
            "name": self.found.name,
            "before": self.found.described,
            "after": self.trigger,
            "reason": self.reason,
            "notes": [{"topic": note.topic, "text": note.text} for note in self.found.notes],
        }
