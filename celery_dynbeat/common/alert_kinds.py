"""What an alert can be about, and how severe it is."""

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
