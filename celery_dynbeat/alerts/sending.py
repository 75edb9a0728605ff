"""Send unreported alerts to the URLs, and deliver a message with Apprise.

    unreported alerts --lease--> this beat sends them to each URL --all accepted--> reported

- One beat has the lease of the messages, which is one row. If the beat dies, another beat sends the
  alerts when the lease has ended, also to URLs that had accepted them: a message may come twice,
  and none is lost.
- Which URL has accepted which alert is only known in the memory of the beat. An URL that refuses is
  tried again after growing pauses, and does not delay the others.
- An URL gets one message per INTERVAL. Alerts about the installation do not wait.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeAlias

from sqlalchemy.orm import Session

from celery_dynbeat.alerts.digest import Digest, digest_of
from celery_dynbeat.alerts.text import without_secrets
from celery_dynbeat.alerts.writing import named
from celery_dynbeat.common.alert_kinds import NO_SCHEDULE
from celery_dynbeat.common.clock import BackOff
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.statements import Row
from celery_dynbeat.process.daemon_call import call_in_thread
from celery_dynbeat.process.left_out import LeftOut
from celery_dynbeat.store import alerts
from celery_dynbeat.telemetry import emit, events

logger = logging.getLogger(__name__)

#: Alerts that one message counts.
MAX_ALERTS = 10_000
EVERY = timedelta(seconds=10)
#: The shortest time between two messages to one URL.
INTERVAL = timedelta(minutes=5)
#: For one message to one URL.
TIMEOUT = timedelta(seconds=10)
#: In addition to the time-out of each URL, and to the time-outs of all URLs.
JOIN_MARGIN, LEASE_MARGIN = timedelta(seconds=1), timedelta(seconds=30)
FIRST_PAUSE, MAX_PAUSE = 10.0, 600.0
#: An alert that a URL has refused for this long is given up.
RETRY_FOR = timedelta(days=1)
NOT_INSTALLED = "No module named 'apprise': install celery-dynbeat[alerts]"
NOT_UNDERSTOOD = "Apprise does not understand this URL, or a package that it needs is missing"
TIMED_OUT = "no answer in time"
_ERROR_LENGTH = 300
#: Whether this thread delivers a message. Apprise copies the context to its threads.
_is_delivering: ContextVar[bool] = ContextVar("is_delivering", default=False)

#: Delivers a message to a URL within a time; returns the reason of a refusal, or None.
Send: TypeAlias = Callable[[str, Digest, timedelta], str | None]
_Key: TypeAlias = tuple[int, datetime, str, bool]


@dataclass(slots=True)
class _Url:
    """What this beat knows about one URL. ``number`` counts the URLs of the setting from 1."""

    number: int
    url: str
    accepted: set[_Key] = field(default_factory=set)
    sent_at: datetime | None = None
    failing_since: datetime | None = None
    next_try_at: datetime | None = None
    back_off: BackOff = field(
        default_factory=lambda: BackOff(first=FIRST_PAUSE, maximum=MAX_PAUSE, jitter=0.1)
    )

    def forget_failures(self) -> None:
        """Forget since when the URL has refused messages."""
        self.failing_since = self.next_try_at = None
        self.back_off.reset()


class Sending:
    """Sends the alerts of all beats while it has the lease of the messages."""

    def __init__(
        self,
        *,
        database: Database,
        settings: Settings,
        node: str,
        left_out: LeftOut[int],
        send: Send | None = None,
    ) -> None:
        self._database, self._settings, self._left_out = database, settings, left_out
        self._node, self._send = node, send or deliver
        self._urls = self._new_urls()

    def _new_urls(self) -> Sequence[_Url]:
        urls = self._settings.alert_urls or ()
        return [_Url(number, url) for number, url in enumerate(urls, start=1)]

    def run(self, now: datetime) -> None:
        """Send what is due. Raises the error of the database if it is unreachable."""
        if not self._urls:
            return
        if not (self._database.read(alerts.has_unreported) and self._lease(now)):
            # Another beat sends, or all is reported: what the URLs have accepted counts no more.
            self._urls = self._new_urls()
            return
        rows = self._database.read(partial(alerts.unreported, limit=MAX_ALERTS))
        last = self._database.read(alerts.last_report)
        for each in self._urls:
            left = [row for row in rows if _key(row) not in each.accepted]
            if not left:
                each.forget_failures()
            elif self._is_due(each, left, last=last, now=now):
                self._try(each, left, now=now)
        accepted = set.intersection(*(each.accepted for each in self._urls))
        self._mark([row for row in rows if _key(row) in accepted], now=now)
        present = {_key(row) for row in rows}
        for each in self._urls:
            each.accepted &= present

    def _lease(self, now: datetime) -> bool:
        length = len(self._urls) * (TIMEOUT + JOIN_MARGIN) + LEASE_MARGIN
        until = now + min(length, alerts.MAX_LEASE)
        return self._database.run(partial(alerts.lease, node=self._node, now=now, until=until))

    def _mark(self, rows: Sequence[Row], *, now: datetime) -> None:
        left_out = self._left_out.ids(now)
        reported = {row.id: row for row in rows if row.schedule_id not in left_out}

        def work(session: Session, ids: Sequence[int]) -> None:
            alerts.mark_reported(session, [reported[key] for key in ids], now=now)

        _, refused = self._database.run_in_parts(work, list(reported), in_transaction=True)
        for key, error in refused.items():
            self._left_out.add(named(reported[key]), error, now=now)

    def _is_due(
        self, url: _Url, rows: Sequence[Row], *, last: datetime | None, now: datetime
    ) -> bool:
        if url.next_try_at is not None:
            return now >= url.next_try_at
        if any(row.schedule_id == NO_SCHEDULE for row in rows):
            return True
        before = max((at for at in (last, url.sent_at) if at is not None), default=None)
        # An instant in the future means that the clock was set back.
        return before is None or not timedelta(0) <= now - before < INTERVAL

    def _try(self, url: _Url, rows: Sequence[Row], *, now: datetime) -> None:
        still_open = self._database.read(alerts.count_open)
        message = digest_of(
            rows,
            still_open=still_open,
            application=self._settings.application,
            flower_url=self._settings.flower_url,
        )
        error = self._send(url.url, message, TIMEOUT)
        if error is None:
            url.accepted |= {_key(row) for row in rows}
            url.sent_at = now
            url.forget_failures()
            emit(events.AlertMessageSent(url=url.number, alerts=len(rows)))
            return
        if url.failing_since is None:
            url.failing_since = now
            logger.warning(
                "URL %s of dynbeat_alert_urls did not accept a message, and is tried again: %s",
                url.number,
                error,
                extra={"event": Event.ALERT_DELAYED, "url": url.number},
            )
        url.next_try_at = now + timedelta(seconds=url.back_off.next_delay())
        # A new alert is not given up because the URL refused others for a day.
        old = [row for row in rows if now - (row.recovered_at or row.opened_at) >= RETRY_FOR]
        if old and now - url.failing_since >= RETRY_FOR:
            url.accepted |= {_key(row) for row in old}
            dropped = events.AlertMessageDropped(url=url.number, alerts=len(old), error=error)
            emit(dropped)


def _key(row: Row) -> _Key:
    # The end counts: a URL that has accepted the opening must also report the recovery.
    return (row.id, row.opened_at, row.unreported, row.recovered_at is None)


def deliver(url: str, message: Digest, timeout: timedelta) -> str | None:
    """Deliver a message with Apprise; return why the URL did not accept it, or None.

    The error contains no part of the URL. A plug-in that ignores the time limit is left behind.
    """
    try:
        # Late, because it takes 0.3 s and 30 MB, and most beats have nothing to send. Not in the
        # time of the server.
        import apprise  # noqa: F401, PLC0415
    except ModuleNotFoundError:
        return NOT_INSTALLED

    def work() -> str | None:
        try:
            return _notify(url, message, timeout)
        # A plug-in can raise any exception, and its text can contain the URL.
        except Exception as error:  # noqa: BLE001
            return type(error).__name__

    sent = call_in_thread(work, name="dynbeat-alert-delivery")
    try:
        return sent.result((timeout + JOIN_MARGIN).total_seconds())
    except FutureTimeoutError:
        return TIMED_OUT


def _notify(url: str, message: Digest, timeout: timedelta) -> str | None:
    import apprise  # noqa: PLC0415

    _hide_log_records()
    # A redirect could send the message to another server, such as one in a private network.
    asset = apprise.AppriseAsset(http_redirects=False)
    service: Any = apprise.Apprise.instantiate(url, asset=asset)
    if not service:
        return NOT_UNDERSTOOD
    if type(service).__name__ == "NotifyJSON":
        service.payload_extras["alert"] = message.fields
    sender = apprise.Apprise(asset=asset)
    sender.add(service)
    outcome = sender.notify(
        title=message.title,
        body=message.body,
        notify_type=message.type,
        body_format=apprise.NotifyFormat.TEXT,
        log_level=logging.WARNING,
        timeout=timeout.total_seconds(),
    )
    return _error(next(iter(outcome.results)), url)


def _hide_log_records() -> None:
    """Keep the records of Apprise and of its libraries out of the log: they contain URLs."""
    logging.getLogger("apprise").propagate = False
    # The debug records of urllib3 contain the path, in which many services have their token.
    for each in (logging.getLogger("urllib3.connectionpool"), *logging.getLogger().handlers):
        each.addFilter(_is_of_another_thread)
    _is_delivering.set(True)


def _is_of_another_thread(_record: logging.LogRecord) -> bool:
    return not _is_delivering.get()


def _error(result: Any, url: str) -> str | None:
    if result:
        return None
    from apprise.result import AppriseResultStatus  # noqa: PLC0415

    if result.status == AppriseResultStatus.TIMEOUT:
        return TIMED_OUT
    logged = [str(entry.message) for entry in result.logs()]
    return without_secrets(" ".join(logged) or "refused", url)[:_ERROR_LENGTH]
