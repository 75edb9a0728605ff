"""The content of a message: groups of alerts with their number and examples."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from celery_dynbeat.common.alert_kinds import SEVERITIES, AlertKind, Severity, Unsent

#: Alerts of a group that a message shows.
MAX_EXAMPLES = 10
#: Characters of an error in a message.
DETAIL_LENGTH = 300


class Progress(StrEnum):
    """The state of a late run when the message was written."""

    NOT_SENT = "not_sent"
    #: Sent to its queue, and not started.
    SENT = "sent"
    SENT_LATE = "sent_late"
    STARTED = "started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One alert of a group. Instants are in ISO format, in UTC.

    ``value`` is in seconds for late, slow and silent, a number of runs for frequent.
    ``facts`` is how often the rule was broken since ``since``. ``progress`` concerns a late run.
    ``still`` are the kinds of other alerts that are open after a recovery.
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
    progress: str | None = None
    still: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The alerts of a group with the same task and error, and some of them."""

    task: str | None
    count: int
    examples: Sequence[Example]

    @property
    def error(self) -> str | None:
        """The error of the first example. Part of the example, because an erasure removes both."""
        detail = self.examples[0].detail if self.examples else None
        return None if detail is None else detail.partition("\n")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The alerts of one kind that were opened, or have recovered (``state``).

    The first cause comes first. ``still_open`` is how many of the recovered schedules have other
    open alerts.
    """

    kind: AlertKind
    state: Unsent
    count: int
    causes: Sequence[Cause]
    still_open: int = 0

    @property
    def examples(self) -> Sequence[Example]:
        """The examples of all causes."""
        return [example for cause in self.causes for example in cause.examples]


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The alerts of one message, the most urgent group first."""

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
                state=Unsent(group["state"]),
                count=group["count"],
                still_open=group["still_open"],
                causes=[
                    Cause(
                        task=cause["task"],
                        count=cause["count"],
                        examples=[Example(**example) for example in cause["examples"]],
                    )
                    for cause in group["causes"]
                ],
            )
            for group in stored["groups"]
        ]
        return cls(severity=Severity(stored["severity"]), groups=groups)


def only_example(kind: AlertKind, state: Unsent, example: Example) -> Group:
    """Return the group of one alert."""
    cause = Cause(task=example.task, count=1, examples=[example])
    return Group(kind=kind, state=state, count=1, causes=[cause])


def severity_of(kind: AlertKind, state: Unsent) -> Severity:
    """Return the severity of the message about an alert."""
    return Severity.INFO if state is Unsent.RECOVERED else SEVERITIES[kind]


def instant(value: datetime | None) -> str | None:
    """Return an aware instant as text, to the second."""
    return None if value is None else value.strftime("%Y-%m-%dT%H:%M:%SZ")
