"""Group unsent alerts into messages, and deliver the messages. Any number of beats may do so.

    unsent alerts of a target --1 transaction--> a message for each severity
    message, due --lease--> delivered to its URLs --> sent
                                |  some URLs failed --> due again, with back-off, for these URLs
                                |  dynbeat_alert_retry_for has passed --> dropped, logged

- The first message of a target waits for ``dynbeat_alert_delay``, so that simultaneous alerts are
  one message. A target gets no other message for ``dynbeat_alert_interval``, with any number of
  beats. Openings of errors wait only for earlier messages about errors, so no warning and no
  recovery delays them.
- Each message has the id of the previous one of its target, and an index makes the pair unique. If
  two beats have read the same newest message, one of them therefore fails and reads again.
- Targets do not wait for each other, see ``sending``.
- A beat that is killed before the transaction leaves the alerts unsent. A beat that is killed while
  it delivers leaves a lease. When it ends, another beat delivers the message. This is the only way
  in which a target can get a duplicate.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import Row
from sqlalchemy.orm import Session

from celery_dynbeat.alerts.content import (
    DETAIL_LENGTH,
    MAX_EXAMPLES,
    Cause,
    Content,
    Example,
    Group,
    Progress,
    instant,
    severity_of,
)
from celery_dynbeat.alerts.delivery import Delivered, SendTask, deliver
from celery_dynbeat.alerts.sending import Sending
from celery_dynbeat.common.alert_kinds import URGENCY, AlertKind, Severity, Unsent
from celery_dynbeat.common.clock import Clock
from celery_dynbeat.common.settings import Settings, urls_of
from celery_dynbeat.common.text import error_cause
from celery_dynbeat.db.alert_models import AlertMessage
from celery_dynbeat.db.engine import Database
from celery_dynbeat.planning.alerting import end_of_wait
from celery_dynbeat.store.alerts import messages
from celery_dynbeat.store.alerts.messages import Newest, Waiting

if TYPE_CHECKING:
    from celery_dynbeat.alerts.owner_notices import NoticeWriter

#: Seconds until the next look for due messages, while a delivery has not ended.
LOOK_EVERY = 2.0
RETENTION = timedelta(days=7)
PRUNE_EVERY = timedelta(minutes=10)
PRUNED = 500


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
        send_task: SendTask | None = None,
    ) -> None:
        self._database = database
        self._clock = clock
        self._interval = settings.alert_interval
        self._pruned_at: datetime | None = None
        self._writer = MessageWriter(database, settings)
        self._notices = _notice_writer(database, settings)
        self._sending = Sending(
            database=database,
            clock=clock,
            settings=settings,
            node=node,
            deliver=deliver,
            send_task=send_task,
        )

    def run_once(self) -> datetime | None:
        """Write the messages that are due and deliver them. Return when more are due, or None.

        Raises the error of the database.
        """
        # Results that the last call could not write.
        self._sending.finish(within=0)
        waiting_until = self._write_and_start()
        while self._sending.is_busy:
            self._sending.finish(within=LOOK_EVERY)
            waiting_until = self._write_and_start()
        self._prune(self._clock.now())
        times = (waiting_until, self._database.read(messages.next_try_at))
        return min((at for at in times if at is not None), default=None)

    def _write_and_start(self) -> datetime | None:
        """Write the messages that are due and start deliveries; return until when others wait."""
        now = self._clock.now()
        times = [self._writer.write_due(now)]
        if self._notices is not None:
            times.append(self._notices.write_due(now))
        self._sending.start_due()
        return min((at for at in times if at is not None), default=None)

    def _prune(self, now: datetime) -> None:
        """Delete old messages, at most PRUNED each PRUNE_EVERY."""
        # A ``now`` before the last time means that the clock was set back.
        if self._pruned_at is not None and timedelta(0) <= now - self._pruned_at < PRUNE_EVERY:
            return
        # The rate limit needs the newest message.
        before = now - max(RETENTION, self._interval)
        ids = self._database.read(partial(messages.old_messages, before=before, limit=PRUNED))
        if ids:
            self._database.run(partial(messages.delete_messages, ids=ids))
        self._pruned_at = now


def _notice_writer(database: Database, settings: Settings) -> "NoticeWriter | None":
    if settings.recipient is None:
        return None
    # A late import: most applications have no such setting.
    from celery_dynbeat.alerts.owner_notices import NoticeWriter  # noqa: PLC0415

    return NoticeWriter(database, settings)


_Alerts = Sequence[Row[Any]]


@dataclass(frozen=True, slots=True)
class MessageWriter:
    """Writes the messages of all targets."""

    database: Database
    settings: Settings

    def write_due(self, now: datetime) -> datetime | None:
        """Write the messages of the targets that do not have to wait.

        Return until when others wait.
        """
        waiting = self.database.read_in_transaction(messages.waiting)
        due = (self._write_if_due(each, now) for each in waiting)
        return min((at for at in due if at is not None), default=None)

    def _write_if_due(self, waiting: Waiting, now: datetime) -> datetime | None:
        """Return when the messages are due; None if they were written."""

        def read(session: Session) -> datetime:
            newest = messages.newest(session, target=waiting.target)
            return self._decide(session, waiting, newest, now=now)[0]

        due_at = self.database.read_in_transaction(read)
        if due_at > now:
            return due_at
        write = partial(self._write, waiting=waiting, now=now)
        return self.database.run_after_conflicts(write)

    def _due_at(self, waiting: Waiting, newest: Newest | None, *, now: datetime) -> datetime:
        settings = self.settings
        since, wait = waiting.opened_since, settings.alert_delay
        if since is None:
            since, wait = waiting.since, max(settings.alert_delay, settings.alert_interval)
        instants = [end_of_wait(since, wait, now=now)]
        if newest is not None:
            instants.append(end_of_wait(newest.at, settings.alert_interval, now=now))
        return max(instants)

    def _decide(
        self, session: Session, waiting: Waiting, newest: Newest | None, *, now: datetime
    ) -> tuple[datetime, bool]:
        """Return when messages are due, and whether only those about errors are."""
        due_at = self._due_at(waiting, newest, now=now)
        if due_at <= now or waiting.urgent_since is None:
            return due_at, False
        newest_error = messages.newest_error(session, target=waiting.target)
        errors = waiting._replace(opened_since=waiting.urgent_since)
        errors_at = self._due_at(errors, newest_error, now=now)
        return min(due_at, errors_at), True

    def _write(self, session: Session, *, waiting: Waiting, now: datetime) -> datetime | None:
        newest = messages.lock_newest(session, target=waiting.target)
        due_at, only_urgent = self._decide(session, waiting, newest, now=now)
        if due_at > now:
            return due_at
        target = waiting.target
        damping = self.settings.alert_interval
        lock = partial(messages.lock_unsent, target=target, now=now, damping=damping)
        if urls_of(self.settings.alert_urls, target):
            # This comes before the alerts are locked. Otherwise, two beats could each lock a part
            # of them.
            previous_id = 0 if newest is None else newest.id
            first = messages.insert(session, target=target, previous_id=previous_id, at=now)
            taken = lock(session, only_urgent=only_urgent)
            # An erased owner must not appear in a message.
            _fill(session, first, [alert for alert in taken if alert.has_schedule], now=now)
            left = [alert.id for alert in taken if not alert.has_schedule]
        else:
            left = [alert.id for alert in lock(session, only_urgent=False)]
        messages.mark_taken(session, left, message_id=None)
        return None


def _fill(session: Session, first: AlertMessage, taken: _Alerts, *, now: datetime) -> None:
    """Let ``first``, and a message for each other severity, report the alerts, errors first."""
    by_severity: defaultdict[Severity, list[Row[Any]]] = defaultdict(list)
    for alert in taken:
        severity = severity_of(AlertKind(alert.kind), Unsent(alert.unsent))
        by_severity[severity].append(alert)
    if not by_severity:
        session.delete(first)
    message = None
    for severity in sorted(by_severity, key=list(Severity).index):
        message = first if message is None else _next(session, message)
        message.severity = severity
        reported = by_severity[severity]
        message.payload = _content(session, severity, reported, now=now).to_json()
        ids = [alert.id for alert in reported]
        messages.mark_taken(session, ids, message_id=message.id)


def _next(session: Session, message: AlertMessage) -> AlertMessage:
    return messages.insert(
        session, target=message.target, previous_id=message.id, at=message.created_at
    )


def _content(session: Session, severity: Severity, alerts: _Alerts, *, now: datetime) -> Content:
    groups: defaultdict[tuple[AlertKind, Unsent], list[Row[Any]]] = defaultdict(list)
    for alert in alerts:
        groups[AlertKind(alert.kind), Unsent(alert.unsent)].append(alert)
    return Content(
        severity=severity,
        groups=[
            _group(session, kind, state, groups[kind, state], now=now)
            for kind, state in sorted(groups, key=lambda group: (URGENCY[group[0]], group[1]))
        ],
    )


def _group(
    session: Session, kind: AlertKind, state: Unsent, alerts: _Alerts, *, now: datetime
) -> Group:
    still: Mapping[int, Sequence[str]] = {}
    if state is Unsent.RECOVERED:
        found = messages.open_kinds(session, [alert.schedule_id for alert in alerts])
        still = {alert.id: found[alert.schedule_id] for alert in alerts}
        still = {key: sorted(kinds, key=_urgency) for key, kinds in still.items() if kinds}
    by_cause = _by_cause(session, [alert.id for alert in alerts])
    shown = _shown([list(ids) for ids in by_cause.values()])
    rows = messages.examples(session, [each for ids in shown for each in ids])
    return Group(
        kind=kind,
        state=state,
        count=len(alerts),
        still_open=len(still),
        causes=[
            Cause(
                task=task,
                count=len(ids),
                examples=[
                    _example(rows[each], still=still.get(each, ()), now=now) for each in examples
                ],
            )
            for ((task, _), ids), examples in zip(by_cause.items(), shown, strict=True)
            if examples
        ],
    )


def _urgency(kind: str) -> int:
    return URGENCY[AlertKind(kind)]


def _by_cause(
    session: Session, ids: Sequence[int]
) -> Mapping[tuple[str | None, str], Sequence[int]]:
    """Return alerts by their task and error, the first cause first.

    Errors that differ only in numbers count as the same error.
    """
    rows = messages.causes(session, ids)
    by_cause: defaultdict[tuple[str | None, str], list[int]] = defaultdict(list)
    for each in ids:
        row = rows[each]
        by_cause[row.task, error_cause(row.detail)].append(each)
    return by_cause


def _shown(causes: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
    """Return the alerts of each cause that a message shows, first one alert per large cause."""
    largest = sorted(range(len(causes)), key=lambda cause: -len(causes[cause]))[:MAX_EXAMPLES]
    numbers = [int(cause in largest) for cause in range(len(causes))]
    left = MAX_EXAMPLES - sum(numbers)
    for cause in sorted(largest):
        more = min(left, len(causes[cause]) - 1)
        numbers[cause] += more
        left -= more
    return [ids[:number] for ids, number in zip(causes, numbers, strict=True)]


def _example(row: Row[Any], *, still: Sequence[str], now: datetime) -> Example:
    alert = row.Alert
    return Example(
        owner=alert.owner,
        name=alert.name,
        task=row.task,
        since=instant(alert.opened_at) or "",
        ended=instant(alert.recovered_at),
        run_id=alert.run_id,
        value=alert.value,
        facts=alert.fact_count,
        detail=None if alert.detail is None else alert.detail[:DETAIL_LENGTH],
        progress=_progress(row, now=now) if alert.kind == AlertKind.LATE else None,
        still=still,
    )


def _progress(row: Row[Any], *, now: datetime) -> Progress:
    """Return what became of a late run until now."""
    if row.started_at is not None:
        return Progress.STARTED
    if row.sent_at is not None:
        return Progress.SENT
    is_overdue = row.next_run_at is not None and row.next_run_at <= now
    # A run without sent_at is pending. If there is no run, an outage has ended, or beat is
    # claiming.
    return Progress.NOT_SENT if is_overdue or row.Alert.run_id is not None else Progress.SENT_LATE
