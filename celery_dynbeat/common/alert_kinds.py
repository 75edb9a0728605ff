"""The kinds of alerts, and their severities."""

import hashlib
from collections.abc import Mapping
from enum import StrEnum


class AlertKind(StrEnum):
    """The kind of an alert. Programs filter by it: a name does not change."""

    FAILED = "failed"
    LOST = "lost"
    LATE = "late"
    SLOW = "slow"
    SILENT = "silent"
    FREQUENT = "frequent"
    QUARANTINED = "quarantined"
    PAUSED = "paused"
    BEATS_MISSING = "beats_missing"
    WORKERS_MISSING = "workers_missing"
    CLOCKS_DIFFER = "clocks_differ"


class Severity(StrEnum):
    """The severity of an alert or of a message."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Unsent(StrEnum):
    """The part of an alert that no message reports yet."""

    OPENED = "opened"
    RECOVERED = "recovered"


class OwnerNotice(StrEnum):
    """The state of the notice to the owner about an alert."""

    #: No notice reports that the alert opened.
    OPENED = "opened"
    #: A notice has reported that the alert opened, and perhaps that it recovered.
    REPORTED = "reported"
    #: The opening was reported, the recovery was not.
    RECOVERED = "recovered"


class NoticeKind(StrEnum):
    """The kind of a notice to an owner. Applications filter by it: a name does not change."""

    FAILING = "failing"
    PAUSED = "paused"
    CANNOT_RUN = "cannot_run"
    WORKS_AGAIN = "works_again"
    CAN_RUN_AGAIN = "can_run_again"


#: The kinds of alerts that an owner gets a notice about.
NOTICE_KINDS: Mapping[AlertKind, NoticeKind] = {
    AlertKind.FAILED: NoticeKind.FAILING,
    AlertKind.LOST: NoticeKind.FAILING,
    AlertKind.PAUSED: NoticeKind.PAUSED,
    AlertKind.QUARANTINED: NoticeKind.CANNOT_RUN,
}
#: The start of the target of a notice. The name of a target in the settings never contains a colon.
NOTICE_TARGET = "owner:"
#: Logs, metrics and lists show this name instead.
OWNERS = "(owners)"


def notice_target(owner: str) -> str:
    """Return the target of the notices to an owner. Its name could be longer than the column."""
    return f"{NOTICE_TARGET}{hashlib.sha256(owner.encode()).hexdigest()[:40]}"


def shown_target(target: str) -> str:
    """Return the name of the target of a message, or OWNERS for a notice."""
    return OWNERS if target.startswith(NOTICE_TARGET) else target


#: The kinds of alerts about beats and workers. No schedule has them.
NODE_KINDS = (AlertKind.BEATS_MISSING, AlertKind.WORKERS_MISSING, AlertKind.CLOCKS_DIFFER)
SCHEDULE_KINDS = tuple(kind for kind in AlertKind if kind not in NODE_KINDS)
_WARNINGS = frozenset({AlertKind.LATE, AlertKind.SLOW, AlertKind.FREQUENT, *NODE_KINDS})
#: The kinds in the order of their urgency.
URGENCY: Mapping[AlertKind, int] = {
    kind: number
    for number, kind in enumerate(
        (
            AlertKind.LOST,
            AlertKind.QUARANTINED,
            AlertKind.SILENT,
            AlertKind.FAILED,
            AlertKind.PAUSED,
            *NODE_KINDS,
            AlertKind.LATE,
            AlertKind.SLOW,
            AlertKind.FREQUENT,
        )
    )
}
#: The severity of an open alert. A recovery has the severity "info".
SEVERITIES: Mapping[AlertKind, Severity] = {
    kind: Severity.WARNING if kind in _WARNINGS else Severity.ERROR for kind in AlertKind
}
