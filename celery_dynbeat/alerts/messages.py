"""Group unsent alerts into messages, and deliver the messages. Any number of beats may do so.

    unsent alerts of a target --1 transaction--> a message for each severity
    message, due --lease--> delivered to its URLs --> sent
                                |  some URLs failed --> due again, with back-off, for these URLs
                                |  dynbeat_alert_retry_for has passed --> dropped, logged

- The first message of a target waits for ``dynbeat_alert_delay``, so that simultaneous alerts are
  one message. Later ones keep ``dynbeat_alert_interval``.
- A beat that is killed before the transaction leaves the alerts unsent. A beat that is killed while
  it delivers leaves a lease. When it ends, another beat delivers the message: this is the one
  duplicate that a target can get.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import Row
from sqlalchemy.orm import Session

from celery_dynbeat import signals
from celery_dynbeat.alerts.content import (
    DETAIL_LENGTH,
    MAX_EXAMPLES,
    Content,
    Example,
    Group,
    instant,
    severity_of,
)
from celery_dynbeat.alerts.delivery import START_TIMEOUT, Delivered, DeliveryError, deliver
from celery_dynbeat.common.alert_kinds import AlertKind, Severity, Unsent
from celery_dynbeat.common.alert_settings import DEFAULT_TARGET
from celery_dynbeat.common.clock import Clock
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.alert_models import AlertMessage
from celery_dynbeat.db.engine import Database
from celery_dynbeat.signals.sending import send
from celery_dynbeat.store import alert_messages

logger = logging.getLogger(__name__)

FIRST_PAUSE, MAX_PAUSE = timedelta(seconds=10), timedelta(minutes=10)
#: For the write of the result, after the delivery has ended.
LEASE_MARGIN = timedelta(seconds=30)
RETENTION = timedelta(days=7)
PRUNED = 500

_Alerts = Sequence[Row[Any]]


class Messages:
    """The messages of one beat, which is called ``node`` in leases."""

    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        settings: Settings,
        node: str,
        deliver: Callable[..., Delivered] = deliver,
    ) -> None:
        self._database = database
        self._clock = clock
        self._settings = settings
        self._node = node
        self._deliver = deliver

    def run_once(self) -> datetime | None:
        """Write the messages that are due and deliver them. Return when more are due, or None.

        Raises the error of the database.
        """
        now = self._clock.now()
        waiting_until = self._write_due(now)
        while self._deliver_one():
            pass
        self._database.run(partial(alert_messages.prune, before=now - RETENTION, limit=PRUNED))
        times = (waiting_until, self._database.read(alert_messages.next_try_at))
        return min((at for at in times if at is not None), default=None)

    def _write_due(self, now: datetime) -> datetime | None:
        """Write the messages of the targets that need not wait; return until when others wait."""
        later = []
        for target, since in self._database.read(alert_messages.waiting):
            due_at = self._due_at(target, since)
            if due_at > now:
                later.append(due_at)
            else:
                self._database.run(partial(self._write, target=target, now=now))
        return min(later, default=None)

    def _due_at(self, target: str, since: datetime) -> datetime:
        newest = self._database.read(partial(alert_messages.newest_message_at, target=target))
        first = since + self._settings.alert_delay
        return first if newest is None else max(first, newest + self._settings.alert_interval)

    def _write(self, session: Session, *, target: str, now: datetime) -> None:
        taken = alert_messages.lock_unsent(session, target=target)
        by_severity: defaultdict[Severity, list[Row[Any]]] = defaultdict(list)
        for alert in taken:
            severity = severity_of(AlertKind(alert.kind), Unsent(alert.unsent))
            by_severity[severity].append(alert)
        for severity, alerts in by_severity.items() if self._urls(target) else ():
            content = _content(session, severity, alerts)
            message = AlertMessage(
                target=target,
                severity=severity,
                payload=content.to_json(),
                created_at=now,
                next_try_at=now,
            )
            alert_messages.add(session, message)
        alert_messages.mark_taken(session, [alert.id for alert in taken])

    def _urls(self, target: str) -> Sequence[str]:
        """Return the URLs of a target; those of the default one if it has been removed."""
        targets = self._settings.alert_urls
        return targets.get(target, targets.get(DEFAULT_TARGET, ()))

    def _deliver_one(self) -> bool:
        """Deliver the message that has been due the longest; return False without one."""
        now = self._clock.now()
        until = now + self._settings.alert_timeout + START_TIMEOUT + LEASE_MARGIN
        message = self._database.run(
            partial(alert_messages.lease, now=now, node=self._node, until=until)
        )
        if message is None:
            return False
        urls = self._urls(message["target"])
        delivered = {index for index in message["delivered"] if isinstance(index, int)}
        # A URL is known by its position: it is not stored.
        left = [index for index in range(len(urls)) if index not in delivered]
        errors = self._try(message, [urls[index] for index in left])
        accepted = [index for index, error in zip(left, errors, strict=True) if error is None]
        failed = [error for error in errors if error is not None]
        self._end_try(message, sorted({*delivered, *accepted}), failed)
        return True

    def _try(self, message: Mapping[str, Any], urls: Sequence[str]) -> Sequence[str | None]:
        if not urls:
            return ()
        try:
            content = Content.from_json(message["payload"])
            delivered = self._deliver(
                content,
                urls,
                application=self._settings.application,
                templates=self._settings.alert_templates,
                timeout=self._settings.alert_timeout,
            )
        except (DeliveryError, ValueError, KeyError, TypeError) as error:
            return [f"{error}" or type(error).__name__] * len(urls)
        return delivered.errors

    def _end_try(
        self, message: Mapping[str, Any], delivered: Sequence[int], errors: Sequence[str]
    ) -> None:
        now = self._clock.now()
        error = "; ".join(dict.fromkeys(errors))[:DETAIL_LENGTH] or None
        values: dict[str, Any] = {"delivered": list(delivered), "error": error}
        if not errors:
            values |= {"next_try_at": None, "sent_at": now}
        elif now - message["created_at"] >= self._settings.alert_retry_for:
            values |= {"next_try_at": None, "dropped_at": now}
        else:
            values |= {"next_try_at": now + _pause(message["attempts"])}
        end = partial(alert_messages.end_try, message_id=message["id"], node=self._node)
        if self._database.run(partial(end, values=values)):
            _report(message, error, values)


def _pause(attempts: int) -> timedelta:
    doubled: timedelta = FIRST_PAUSE * 2 ** min(attempts - 1, 10)
    return min(doubled, MAX_PAUSE)


def _content(session: Session, severity: Severity, alerts: _Alerts) -> Content:
    groups: defaultdict[tuple[AlertKind, Unsent], list[int]] = defaultdict(list)
    for alert in alerts:
        groups[AlertKind(alert.kind), Unsent(alert.unsent)].append(alert.id)
    return Content(
        severity=severity,
        groups=[
            Group(
                kind=kind,
                change=change,
                count=len(ids),
                examples=[
                    _example(alert, task)
                    for alert, task in alert_messages.examples(session, ids[:MAX_EXAMPLES])
                ],
            )
            for (kind, change), ids in sorted(groups.items(), key=lambda item: -len(item[1]))
        ],
    )


def _example(alert: Any, task: str | None) -> Example:
    return Example(
        owner=alert.owner,
        name=alert.name,
        task=task,
        since=instant(alert.opened_at) or "",
        ended=instant(alert.recovered_at),
        run_id=alert.run_id,
        value=alert.value,
        facts=alert.fact_count,
        detail=None if alert.detail is None else alert.detail[:DETAIL_LENGTH],
    )


def _report(message: Mapping[str, Any], error: str | None, values: Mapping[str, Any]) -> None:
    """Log the result of a try, and send the signal of a message that has ended."""
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
