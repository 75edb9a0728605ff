"""What the API returns for an alert."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery_dynbeat.client.views.base import Info
from celery_dynbeat.common.alert_kinds import SEVERITIES, AlertKind
from celery_dynbeat.db.alert_models import Alert


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertInfo(Info):
    """A snapshot of the last alert of one kind of a schedule. Instants are aware and in UTC.

    - ``kind`` is a value of ``AlertKind``, ``severity`` is ``"error"`` or ``"warning"``.
    - ``fact_count``: how often the rule was broken since ``opened_at``, at last at ``last_at``.
    - ``value``: the seconds by which the last run was late or slow, or a number of runs.
    - ``target`` is the name of the target that gets the messages.
    - ``recovered_at`` None: the alert is open.
    """

    id: int
    owner: str
    schedule: str
    kind: str
    severity: str
    opened_at: datetime
    last_at: datetime
    fact_count: int
    run_id: str | None
    value: float | None
    detail: str | None
    target: str
    recovered_at: datetime | None

    @classmethod
    def of(cls, row: Alert) -> "AlertInfo":
        """Return a snapshot of a row."""
        computed: dict[str, Any] = {
            "schedule": row.name,
            "severity": SEVERITIES[AlertKind(row.kind)].value,
        }
        values: dict[str, Any] = computed | {
            name: getattr(row, name) for name in cls.__slots__ if name not in computed
        }
        return cls(**values)
