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


class Severity(StrEnum):
    """The severity of an alert or of a message."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Unsent(StrEnum):
    """The part of an alert that no message reports yet."""

    OPENED = "opened"
    RECOVERED = "recovered"


_WARNINGS = frozenset({AlertKind.LATE, AlertKind.SLOW, AlertKind.FREQUENT})
#: The severity of an open alert. A recovery has the severity "info".
SEVERITIES: Mapping[AlertKind, Severity] = {
    kind: Severity.WARNING if kind in _WARNINGS else Severity.ERROR for kind in AlertKind
}
