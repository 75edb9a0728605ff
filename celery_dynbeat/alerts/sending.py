"""Deliver messages to several targets at the same time, each in a child process.

    due --lease--> in flight: a thread waits for the child process --> the result is written

- A target has one message in flight, and all targets together MAX_IN_FLIGHT. A server that does not
  answer therefore delays only the messages of its target.
- Messages to operators are leased before those to owners, and one place in flight is kept for them.
- One thread leases and writes results. The threads of deliveries do not use the database, so they
  need no connections.
- The result of a delivery is kept until it is written. If its lease ends first, another beat takes
  the lease and delivers the message again. - A message records which URLs have accepted it. It does
  not store the URLs, but a mark of each: a hash with a random salt of the message. A URL can
  contain a short password, so the hash is slow: PBKDF2 with the number of rounds that OWASP
  recommends. Marks are computed only for a message that some URLs of its target have accepted and
  others have not.
"""

import hashlib
import logging
import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy.exc import InterfaceError, OperationalError

from celery_dynbeat.alerts.content import DETAIL_LENGTH, Content
from celery_dynbeat.alerts.delivery import START_TIMEOUT, Delivered, DeliveryError, SendTask
from celery_dynbeat.common.alert_kinds import NOTICE_TARGET, shown_target
from celery_dynbeat.common.clock import Clock
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.settings import Settings, urls_of
from celery_dynbeat.db.engine import Database
from celery_dynbeat.store.alerts import messages
from celery_dynbeat.telemetry import emit, events

if TYPE_CHECKING:
    from celery_dynbeat.alerts.notice_sending import NoticeSending

logger = logging.getLogger(__name__)


#: Each delivery is a process of about 60 MB.
MAX_IN_FLIGHT = 4
MAX_NOTICES_IN_FLIGHT = MAX_IN_FLIGHT - 1
#: For the write of the result, after the delivery has ended.
LEASE_MARGIN = timedelta(seconds=30)
NO_URL = "the target has no URL"
NO_RECIPIENT = "dynbeat_recipient is not set where this beat runs"
FIRST_PAUSE, MAX_PAUSE = timedelta(seconds=10), timedelta(minutes=10)
ROUNDS = 600_000
_SALT_BYTES, _HASH_BYTES = 16, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The errors of a try, and the marks of the URLs that have accepted the message so far.

    ``is_unwanted`` is true if the message has no recipient and was not sent. ``is_logged`` is true
    if the errors are already logged.
    """

    delivered: Sequence[Any]
    errors: Sequence[str]
    is_unwanted: bool = False
    is_logged: bool = False


def ended_values(
    message: Mapping[str, Any], result: Result, *, now: datetime, retry_for: timedelta
) -> Mapping[str, Any]:
    """Return the columns of a message after a try."""
    # PostgreSQL stores no NUL.
    error = "; ".join(dict.fromkeys(result.errors)).replace("\x00", "")[:DETAIL_LENGTH] or None
    values = {"delivered": list(result.delivered), "error": error}
    if result.is_unwanted:
        return values | {"next_try_at": None}
    if not result.errors:
        return values | {"next_try_at": None, "sent_at": now}
    if now - message["created_at"] >= retry_for:
        # No try will need the marks.
        return values | {"next_try_at": None, "dropped_at": now, "delivered": []}
    return values | {"next_try_at": now + _pause(message["attempts"])}


def _pause(attempts: int) -> timedelta:
    doubled: timedelta = FIRST_PAUSE * 2 ** min(attempts - 1, 10)
    return min(doubled, MAX_PAUSE)


def report(
    message: Mapping[str, Any], values: Mapping[str, Any], *, is_logged: bool = False
) -> None:
    """Emit the event of a message that has ended; log a try that failed unless it is logged."""
    error = values["error"]
    target = shown_target(message["target"])
    content = {
        "target": target,
        "severity": message["severity"],
        "message_id": message["id"],
    }
    if "sent_at" in values:
        emit(events.AlertMessageSent(**content))
    elif "dropped_at" in values:
        attempts = message["attempts"]
        emit(events.AlertMessageDropped(**content, attempts=attempts, error=error))
    elif error is not None and not is_logged:
        logger.warning(
            "alert message %s to target %r not delivered, next try at %s: %s",
            message["id"],
            target,
            values["next_try_at"],
            error,
            extra={
                "event": Event.ALERT_DELAYED,
                "target": target,
                "message_id": message["id"],
            },
        )


@lru_cache(maxsize=256)
def _mark(url: str, salt: str) -> str:
    found = hashlib.pbkdf2_hmac("sha256", url.encode(), salt.encode(), ROUNDS, _HASH_BYTES)
    return f"{salt}:{found.hex()}"


def _salts(marks: Iterable[Any]) -> Sequence[str]:
    return sorted({mark.partition(":")[0] for mark in marks if isinstance(mark, str)})


def marked(urls: Iterable[str], marks: Collection[Any]) -> Collection[str]:
    """Return the URLs that ``marks`` contains, in their order. Unreadable marks are ignored."""
    salts = _salts(marks)
    return [url for url in urls if any(_mark(url, salt) in marks for salt in salts)]


def add_marks(marks: Sequence[Any], urls: Iterable[str]) -> Sequence[str]:
    """Return ``marks`` and the marks of ``urls``, all with the same salt if possible."""
    salt = next(iter(_salts(marks)), None) or secrets.token_hex(_SALT_BYTES)
    kept = [mark for mark in marks if isinstance(mark, str)]
    return [*kept, *(_mark(url, salt) for url in urls)]


def deliver_left(
    message: Mapping[str, Any],
    destinations: Sequence[str],
    deliver_to: Callable[[Sequence[str]], Sequence[str | None]],
    *,
    are_secret: bool = True,
) -> Result:
    """Deliver to the destinations that have not accepted the message yet.

    If ``are_secret`` is true, they are marked by slow hashes, and otherwise by their names.
    """
    marks = message["delivered"]
    accepted = set(marked(destinations, marks)) if are_secret else set(map(str, marks))
    left = [each for each in destinations if each not in accepted]
    errors = dict(zip(left, deliver_to(left), strict=True))
    refused = [error for error in errors.values() if error is not None]
    if not refused:
        return Result(delivered=(), errors=())
    new = [each for each, error in errors.items() if error is None]
    return Result(
        delivered=add_marks(marks, new) if are_secret else [*accepted, *new], errors=refused
    )


class _InFlight(NamedTuple):
    """A message, and the result of its delivery."""

    message: Mapping[str, Any]
    result: "Future[Result]"


class Sending:
    """The deliveries of one beat, which is called ``node`` in leases. For one thread."""

    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        settings: Settings,
        node: str,
        deliver: Callable[..., Delivered],
        send_task: SendTask | None = None,
    ) -> None:
        self._database = database
        self._clock = clock
        self._settings = settings
        self._node = node
        self._deliver = deliver
        self._in_flight: dict[str, _InFlight] = {}
        self._notices = self._notice_sending(send_task)

    def _notice_sending(self, send_task: SendTask | None) -> "NoticeSending | None":
        if self._settings.recipient is None:
            return None
        # A late import: most applications have no such setting.
        from celery_dynbeat.alerts.notice_sending import NoticeSending  # noqa: PLC0415

        return NoticeSending(self._settings, self._deliver, send_task)

    @property
    def is_busy(self) -> bool:
        """Whether a delivery has not ended, or its result is not written."""
        return bool(self._in_flight)

    def start_due(self) -> None:
        """Start the deliveries of due messages: to operators first, then the longest due first."""
        while len(self._in_flight) < MAX_IN_FLIGHT:
            message = self._lease()
            if message is None:
                return
            result = _in_thread(partial(self._try, message))
            self._in_flight[message["target"]] = _InFlight(message, result)

    def _lease(self) -> Mapping[str, Any] | None:
        now, busy = self._clock.now(), list(self._in_flight)
        # SQLite has one writer at a time: do not lock it without need.
        notices = sum(target.startswith(NOTICE_TARGET) for target in busy)
        with_notices = notices < MAX_NOTICES_IN_FLIGHT
        has_due = partial(messages.has_due, now=now, without=busy, with_notices=with_notices)
        if not self._database.read(has_due):
            return None
        until = now + self._settings.alert_timeout + START_TIMEOUT + LEASE_MARGIN
        lease = partial(messages.lease, now=now, node=self._node, until=until)
        return self._database.run(partial(lease, without=busy, with_notices=with_notices))

    def _try(self, message: Mapping[str, Any]) -> Result:
        """Deliver to the URLs that have not accepted the message. Uses no database."""
        if message["target"].startswith(NOTICE_TARGET):
            return self._try_notices(message)
        urls = dict.fromkeys(urls_of(self._settings.alert_urls, message["target"]))
        if not urls:
            # An operator may have removed them by mistake.
            return Result(delivered=message["delivered"], errors=[NO_URL])
        return deliver_left(message, list(urls), partial(self._deliver_to, message))

    def _try_notices(self, message: Mapping[str, Any]) -> Result:
        if self._notices is None:
            return Result(delivered=message["delivered"], errors=[NO_RECIPIENT])
        plan = self._notices.plan(message)
        if plan.error is not None:
            return Result(
                delivered=message["delivered"], errors=[plan.error], is_logged=plan.is_logged
            )
        if not plan.destinations:
            return Result(delivered=(), errors=(), is_unwanted=True)
        return deliver_left(message, plan.destinations, plan.deliver, are_secret=not plan.is_task)

    def _deliver_to(self, message: Mapping[str, Any], urls: Sequence[str]) -> Sequence[str | None]:
        if not urls:
            return ()
        try:
            delivered = self._deliver(
                Content.from_json(message["payload"]),
                urls,
                application=self._settings.application,
                flower_url=self._settings.flower_url,
                templates=self._settings.alert_templates,
                timeout=self._settings.alert_timeout,
            )
        except (DeliveryError, ValueError, KeyError, TypeError) as error:
            return [f"{error}" or type(error).__name__] * len(urls)
        return delivered.errors

    def finish(self, *, within: float) -> None:
        """Write the results of ended deliveries; wait up to ``within`` seconds for the first one.

        Raises the error of the database.
        """
        wait([each.result for each in self._in_flight.values()], within, FIRST_COMPLETED)
        for target, each in list(self._in_flight.items()):
            if each.result.done():
                self._write_result(target, each)

    def _write_result(self, target: str, ended: _InFlight) -> None:
        try:
            self._end(ended)
        except (OperationalError, InterfaceError):
            # The database is unreachable, so the result is written later.
            raise
        except BaseException:
            del self._in_flight[target]
            raise
        del self._in_flight[target]

    def _end(self, ended: _InFlight) -> None:
        result = ended.result.result()
        values = ended_values(
            ended.message,
            result,
            now=self._clock.now(),
            retry_for=self._settings.alert_retry_for,
        )
        end = partial(messages.end_try, message_id=ended.message["id"], node=self._node)
        if self._database.run(partial(end, values=values)):
            report(ended.message, values, is_logged=result.is_logged)


def _in_thread(work: Callable[[], Result]) -> "Future[Result]":
    """Call ``work`` in a daemon thread, so that the exit of the process does not wait for it."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        # The thread that reads the result raises it.
        except BaseException as error:  # noqa: BLE001
            future.set_exception(error)

    threading.Thread(target=run, name="dynbeat-alert-delivery", daemon=True).start()
    return future
