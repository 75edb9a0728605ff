"""The results of the API's calls for alerts."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from celery_dynbeat.api.results.base import Info
from celery_dynbeat.common.alert_kinds import SEVERITIES, AlertKind

if TYPE_CHECKING:
    from celery_dynbeat.db.alert_models import Alert


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertInfo(Info):
    """A snapshot of a schedule's last alert of one kind. Instants are aware and in UTC.

    - ``kind`` is a value of ``AlertKind``. ``severity`` is ``"error"`` or ``"warning"``.
    - ``fact_count`` is how many times the rule has been broken since ``opened_at``. The last
      time was ``last_at``.
    - ``value`` is the number of seconds by which the last run was late or slow, or a number of runs
      or nodes.
    - ``owner`` and ``schedule`` of an alert about beats or workers are empty.
    - ``target`` is the name of the target that gets the messages.
    - ``recovered_at`` is None while the alert is open.
    - ``acknowledged_at`` and ``acknowledged_by`` are None if the alert has not been acknowledged.
    - ``snoozed_until`` is the instant before which no message reports the alert, and ``snoozed_by``
      is who snoozed it.
    - ``message_at`` is when the last message about the alert was written. ``message_status`` is
      ``"unsent"`` before the next message, ``"waiting"``, ``"failing"``, ``"sent"`` or
      ``"dropped"``, or None if there was no message in the last 7 days. ``message_error`` is the
      error of its last try.
    - ``owner_notice`` is ``"opened"`` before the notice to the owner, ``"reported"`` after it,
      ``"recovered"`` before the notice that the schedule works again, and None without a notice.
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
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    snoozed_until: datetime | None
    snoozed_by: str | None
    message_at: datetime | None
    message_status: str | None
    message_error: str | None
    owner_notice: str | None

    @classmethod
    def of(cls, row: Any) -> "AlertInfo":
        """Return a snapshot of an alert with its last message (``store.alerts.alerts.page``)."""
        alert: Alert = row.Alert
        computed: dict[str, Any] = {
            "schedule": alert.name,
            "severity": SEVERITIES[AlertKind(alert.kind)].value,
            "message_at": row.created_at,
            "message_status": _message_status(row),
            "message_error": row.error,
        }
        if alert.acknowledged_at is not None and alert.acknowledged_at < alert.opened_at:
            computed |= {"acknowledged_at": None, "acknowledged_by": None}
        values: dict[str, Any] = computed | {
            name: getattr(alert, name) for name in cls.__slots__ if name not in computed
        }
        return cls(**values)


def _message_status(row: Any) -> str | None:
    if row.Alert.unsent is not None:
        return "unsent"
    if row.created_at is None:
        return None
    if row.sent_at is not None:
        return "sent"
    if row.dropped_at is not None:
        return "dropped"
    return "waiting" if row.error is None else "failing"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertTargetInfo(Info):
    """The results of the messages to an alert target in the last 7 days.

    - ``urls`` is how many URLs the target has in the settings of this process.
    - ``unsent_alerts`` is the number of alerts that no message has reported yet, at most 10,000.
    - ``waiting`` is the number of messages that beat still has to send or retry, and ``failing`` is
      how many of them failed at their last try. ``next_try_at`` is when beat tries a waiting
      message next.
    - ``error`` is the error of the newest message that is failing or was dropped. It contains no
      part of a URL.
    """

    target: str
    urls: int
    unsent_alerts: int
    waiting: int
    failing: int
    sent: int
    dropped: int
    last_sent_at: datetime | None
    next_try_at: datetime | None
    error: str | None
