"""The end of a try to deliver a message: sent, dropped, or due again."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from celery_dynbeat.alerts.content import DETAIL_LENGTH
from celery_dynbeat.common.events import Event
from celery_dynbeat.telemetry import events
from celery_dynbeat.telemetry.emitting import emit

logger = logging.getLogger(__name__)

FIRST_PAUSE, MAX_PAUSE = timedelta(seconds=10), timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The errors of a try, and the marks of the URLs that have accepted the message so far."""

    delivered: Sequence[Any]
    errors: Sequence[str]


def ended_values(
    message: Mapping[str, Any], result: Result, *, now: datetime, retry_for: timedelta
) -> Mapping[str, Any]:
    """Return the columns of a message after a try."""
    # PostgreSQL stores no NUL.
    error = "; ".join(dict.fromkeys(result.errors)).replace("\x00", "")[:DETAIL_LENGTH] or None
    values = {"delivered": list(result.delivered), "error": error}
    if not result.errors:
        return values | {"next_try_at": None, "sent_at": now}
    if now - message["created_at"] >= retry_for:
        # No try will need the marks.
        return values | {"next_try_at": None, "dropped_at": now, "delivered": []}
    return values | {"next_try_at": now + _pause(message["attempts"])}


def _pause(attempts: int) -> timedelta:
    doubled: timedelta = FIRST_PAUSE * 2 ** min(attempts - 1, 10)
    return min(doubled, MAX_PAUSE)


def report(message: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Emit the event of a message that has ended; log a try that failed."""
    error = values["error"]
    content = {
        "target": message["target"],
        "severity": message["severity"],
        "message_id": message["id"],
    }
    if "sent_at" in values:
        emit(events.AlertMessageSent(**content))
    elif "dropped_at" in values:
        attempts = message["attempts"]
        emit(events.AlertMessageDropped(**content, attempts=attempts, error=error))
    else:
        logger.warning(
            "alert message %s to target %r not delivered, next try at %s: %s",
            message["id"],
            message["target"],
            values["next_try_at"],
            error,
            extra={
                "event": Event.ALERT_DELAYED,
                "target": message["target"],
                "message_id": message["id"],
            },
        )
