"""The end of a try to deliver a message: sent, dropped, or due again."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from celery_dynbeat import signals
from celery_dynbeat.alerts.content import DETAIL_LENGTH
from celery_dynbeat.common.events import Event
from celery_dynbeat.signals.sending import send

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
    """Log the result of a try, and send the signal of a message that has ended."""
    error = values["error"]
    extra = {"target": message["target"], "message_id": message["id"]}
    content = {"target": message["target"], "severity": message["severity"]}
    if "sent_at" in values:
        logger.info(
            "alert message %s sent to target %r",
            message["id"],
            message["target"],
            extra={"event": Event.ALERT_SENT, **extra},
        )
        send(signals.alert_message_sent, signals.AlertMessageEnded(**content, error=None))
    elif "dropped_at" in values:
        logger.error(
            "alert message %s to target %r dropped after %s tries: %s",
            message["id"],
            message["target"],
            message["attempts"],
            error,
            extra={"event": Event.ALERT_DROPPED, **extra},
        )
        send(signals.alert_message_dropped, signals.AlertMessageEnded(**content, error=error))
    else:
        logger.warning(
            "alert message %s to target %r not delivered, next try at %s: %s",
            message["id"],
            message["target"],
            values["next_try_at"],
            error,
            extra={"event": Event.ALERT_DELAYED, **extra},
        )
