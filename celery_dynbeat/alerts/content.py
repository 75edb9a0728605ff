"""What a message says: groups of alerts with their number and examples."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from celery_dynbeat.common.alert_kinds import SEVERITIES, AlertKind, Severity, Unsent

#: Alerts of a group that a message shows.
MAX_EXAMPLES = 10
#: Characters of an error in a message.
DETAIL_LENGTH = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One alert of a group. Instants are in ISO format, in UTC.

    ``value`` is in seconds for late, slow and silent, a number of runs for frequent.
    ``facts`` is how often the rule was broken since ``since``.
    """

    owner: str
    name: str
    task: str | None
    since: str
    ended: str | None
    run_id: str | None
    value: float | None
    facts: int
    detail: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The alerts of one kind that were opened, or have recovered (``change``)."""

    kind: AlertKind
    change: Unsent
    count: int
    examples: Sequence[Example]


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The alerts of one message, the largest group first."""

    severity: Severity
    groups: Sequence[Group]

    @property
    def total(self) -> int:
        """The number of alerts, shown or not."""
        return sum(group.count for group in self.groups)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"severity": self.severity, "groups": [asdict(group) for group in self.groups]}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Content":
        """Return the content of ``to_json``."""
        groups = [
            Group(
                kind=AlertKind(group["kind"]),
                change=Unsent(group["change"]),
                count=group["count"],
                examples=[Example(**example) for example in group["examples"]],
            )
            for group in stored["groups"]
        ]
        return cls(severity=Severity(stored["severity"]), groups=groups)


def severity_of(kind: AlertKind, change: Unsent) -> Severity:
    """Return the severity of the message about an alert."""
    return Severity.INFO if change is Unsent.RECOVERED else SEVERITIES[kind]


def instant(value: datetime | None) -> str | None:
    """Return an aware instant as text, to the second."""
    return None if value is None else value.strftime("%Y-%m-%dT%H:%M:%SZ")
