"""Write messages about unsent alerts, in one transaction for each target.

A target gets no other message for ``dynbeat_alert_interval``, with any number of beats. Each
message has the id of the previous one of its target, and an index makes the pair unique. So of two
beats that have read the same newest message, one fails, and reads again.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import Row
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from celery_dynbeat.alerts.content import (
    DETAIL_LENGTH,
    MAX_EXAMPLES,
    Content,
    Example,
    Group,
    instant,
    severity_of,
)
from celery_dynbeat.common.alert_kinds import AlertKind, Severity, Unsent
from celery_dynbeat.common.alert_settings import urls_of
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.alert_models import AlertMessage
from celery_dynbeat.db.engine import Database
from celery_dynbeat.store import alert_messages
from celery_dynbeat.store.alert_messages import Newest, Waiting

#: How often another beat can write a message first, before the write raises IntegrityError.
ATTEMPTS = 5

_Alerts = Sequence[Row[Any]]


@dataclass(frozen=True, slots=True)
class MessageWriter:
    """Writes the messages of all targets."""

    database: Database
    settings: Settings

    def write_due(self, now: datetime) -> datetime | None:
        """Write the messages of the targets that need not wait; return until when others wait."""
        waiting = self.database.read_in_transaction(alert_messages.waiting)
        due = (self._write_if_due(each, now) for each in waiting)
        return min((at for at in due if at is not None), default=None)

    def _write_if_due(self, waiting: Waiting, now: datetime) -> datetime | None:
        """Return when the messages are due; None if they were written."""
        read_newest = partial(alert_messages.newest, target=waiting.target)
        newest = self.database.read_in_transaction(read_newest)
        due_at = self._due_at(waiting, newest, now=now)
        if due_at > now:
            return due_at
        write = partial(self._write, waiting=waiting, now=now)
        for _ in range(ATTEMPTS - 1):
            try:
                return self.database.run(write)
            except IntegrityError:
                # Another beat has written a message. Now it is found.
                continue
        return self.database.run(write)

    def _due_at(self, waiting: Waiting, newest: Newest | None, *, now: datetime) -> datetime:
        instants = [_end_of_wait(waiting.since, self.settings.alert_delay, now=now)]
        if newest is not None:
            instants.append(_end_of_wait(newest.at, self.settings.alert_interval, now=now))
        return max(instants)

    def _write(self, session: Session, *, waiting: Waiting, now: datetime) -> datetime | None:
        newest = alert_messages.lock_newest(session, target=waiting.target)
        due_at = self._due_at(waiting, newest, now=now)
        if due_at > now:
            return due_at
        target = waiting.target
        if urls_of(self.settings.alert_urls, target):
            # Before the alerts are locked: otherwise two beats could each lock a part of them.
            first = _insert(session, target, previous_id=0 if newest is None else newest.id, at=now)
            taken = alert_messages.lock_unsent(session, target=target)
            # An erased owner must not appear in a message.
            _fill(session, first, [alert for alert in taken if alert.has_schedule])
        else:
            taken = alert_messages.lock_unsent(session, target=target)
        alert_messages.mark_taken(session, [alert.id for alert in taken])
        return None


def _end_of_wait(since: datetime, wait: timedelta, *, now: datetime) -> datetime:
    # An instant so far ahead: the clock was set back. Less can be the clock of another beat.
    return now if since > now + wait else since + wait


def _insert(session: Session, target: str, *, previous_id: int, at: datetime) -> AlertMessage:
    """Insert a message that reports nothing yet."""
    message = AlertMessage(
        target=target,
        previous_id=previous_id,
        severity=Severity.INFO,
        payload={},
        created_at=at,
        next_try_at=at,
    )
    alert_messages.add(session, message)
    return message


def _fill(session: Session, first: AlertMessage, taken: _Alerts) -> None:
    """Let ``first``, and a message for each other severity, report the alerts."""
    by_severity: defaultdict[Severity, list[Row[Any]]] = defaultdict(list)
    for alert in taken:
        severity = severity_of(AlertKind(alert.kind), Unsent(alert.unsent))
        by_severity[severity].append(alert)
    if not by_severity:
        session.delete(first)
    message = None
    for severity, alerts in by_severity.items():
        message = first if message is None else _next(session, message)
        message.severity = severity
        message.payload = _content(session, severity, alerts).to_json()


def _next(session: Session, message: AlertMessage) -> AlertMessage:
    return _insert(session, message.target, previous_id=message.id, at=message.created_at)


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
