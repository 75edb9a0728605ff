"""Deliver messages to several targets at the same time.

    due --lease--> in flight: a thread waits for the child process --> the result is written

- A target has one message in flight, and all targets together MAX_IN_FLIGHT. So a server that does
  not answer delays only the messages of its target.
- One thread leases and writes results. The threads of deliveries do not use the database: they need
  no connections.
- The result of a delivery is kept until it is written. A lease that ends first passes to another
  beat, which delivers the message again.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy.exc import InterfaceError, OperationalError

from celery_dynbeat.alerts import url_marks
from celery_dynbeat.alerts.content import Content
from celery_dynbeat.alerts.delivery import START_TIMEOUT, Delivered, DeliveryError
from celery_dynbeat.alerts.tries import Result, ended_values, report
from celery_dynbeat.common.alert_settings import urls_of
from celery_dynbeat.common.clock import Clock
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.engine import Database
from celery_dynbeat.store import alert_messages

#: Each delivery is a process of about 60 MB.
MAX_IN_FLIGHT = 4
#: For the write of the result, after the delivery has ended.
LEASE_MARGIN = timedelta(seconds=30)
NO_URL = "the target has no URL"


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
    ) -> None:
        self._database = database
        self._clock = clock
        self._settings = settings
        self._node = node
        self._deliver = deliver
        self._in_flight: dict[str, _InFlight] = {}

    @property
    def is_busy(self) -> bool:
        """Whether a delivery has not ended, or its result is not written."""
        return bool(self._in_flight)

    def start_due(self) -> None:
        """Start the deliveries of due messages, the longest due first."""
        while len(self._in_flight) < MAX_IN_FLIGHT:
            message = self._lease()
            if message is None:
                return
            result = _in_thread(partial(self._try, message))
            self._in_flight[message["target"]] = _InFlight(message, result)

    def _lease(self) -> Mapping[str, Any] | None:
        now, busy = self._clock.now(), list(self._in_flight)
        # SQLite has one writer at a time: do not lock it without need.
        if not self._database.read(partial(alert_messages.has_due, now=now, without=busy)):
            return None
        until = now + self._settings.alert_timeout + START_TIMEOUT + LEASE_MARGIN
        lease = partial(alert_messages.lease, now=now, node=self._node, until=until)
        return self._database.run(partial(lease, without=busy))

    def _try(self, message: Mapping[str, Any]) -> Result:
        """Deliver to the URLs that have not accepted the message. Uses no database."""
        urls = dict.fromkeys(urls_of(self._settings.alert_urls, message["target"]))
        if not urls:
            # An operator may have removed them by mistake.
            return Result(delivered=message["delivered"], errors=[NO_URL])
        accepted = url_marks.marked(urls, message["delivered"])
        left = [url for url in urls if url not in accepted]
        errors = dict(zip(left, self._deliver_to(message, left), strict=True))
        refused = [error for error in errors.values() if error is not None]
        if not refused:
            return Result(delivered=(), errors=())
        new = [url for url, error in errors.items() if error is None]
        return Result(delivered=url_marks.add_marks(message["delivered"], new), errors=refused)

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
        """Write the results of deliveries that have ended; wait up to ``within`` seconds for one.

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
            # Unreachable: the result is written later.
            raise
        except BaseException:
            del self._in_flight[target]
            raise
        del self._in_flight[target]

    def _end(self, ended: _InFlight) -> None:
        values = ended_values(
            ended.message,
            ended.result.result(),
            now=self._clock.now(),
            retry_for=self._settings.alert_retry_for,
        )
        end = partial(alert_messages.end_try, message_id=ended.message["id"], node=self._node)
        if self._database.run(partial(end, values=values)):
            report(ended.message, values)


def _in_thread(work: Callable[[], Result]) -> "Future[Result]":
    """Call ``work`` in a daemon thread: the exit of the process does not wait for it."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        # The thread that reads the result raises it.
        except BaseException as error:  # noqa: BLE001
            future.set_exception(error)

    threading.Thread(target=run, name="dynbeat-alert-delivery", daemon=True).start()
    return future
