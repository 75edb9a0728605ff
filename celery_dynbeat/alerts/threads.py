"""The threads that evaluate alerts and send messages. The passes of beat never wait for them.

A thread wakes some seconds after a pass, or when facts were stored. A pass that fails is logged
once, and repeated with a back-off.
"""

import logging
import sys
import threading
from collections.abc import Callable

from celery_dynbeat.alerts.alert_pass import AlertPass
from celery_dynbeat.alerts.delivery import SendTask
from celery_dynbeat.alerts.messages import Messages
from celery_dynbeat.common.clock import BackOff, Clock
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.engine import Database, reason_of
from celery_dynbeat.telemetry import events, subscribe, unsubscribe

logger = logging.getLogger(__name__)

#: Seconds between two passes. Workers store facts without a notification.
POLL_INTERVAL = 2.0
#: Seconds between two looks for messages to send.
MESSAGES_INTERVAL = 5.0
#: Seconds between a fact and its pass, so that many facts share a pass.
COLLECT_FOR = 0.2
#: ``close`` waits this many seconds for the running pass. It can be repeated by any beat.
CLOSE_TIMEOUT = 2.0
FIRST_BACK_OFF, MAX_BACK_OFF = 2.0, 60.0
#: Seconds after which a thread of beat releases the interpreter to another that waits for it.
SWITCH_INTERVAL = 0.0005


class AlertThread:
    """Calls ``run_pass`` until it is closed, each ``interval`` seconds and after new facts."""

    def __init__(
        self,
        run_pass: Callable[[], object],
        *,
        name: str = "dynbeat-alerts",
        interval: float = POLL_INTERVAL,
        first_back_off: float = FIRST_BACK_OFF,
        close_timeout: float = CLOSE_TIMEOUT,
    ) -> None:
        self._run_pass, self._interval = run_pass, interval
        self._back_off = BackOff(first=first_back_off, maximum=MAX_BACK_OFF, jitter=0.5)
        self._close_timeout = close_timeout
        self._wake, self._closing = threading.Event(), threading.Event()
        # The thread is a daemon thread, because a server that does not respond must not block the
        # exit.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        subscribe(self._on_facts, events.AlertFactsStored)
        self._thread.start()

    def close(self) -> None:
        """Ask the thread to end, and wait up to ``close_timeout`` seconds. May be called twice."""
        unsubscribe(self._on_facts, events.AlertFactsStored)
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(self._close_timeout)

    def rest(self, seconds: float) -> bool:
        """Wait for some seconds, or until the thread is asked to end; return whether it is."""
        return self._closing.wait(seconds)

    def _on_facts(self, event: events.AlertFactsStored) -> None:
        del event
        self._wake.set()

    def _work(self) -> None:
        while not self._closing.is_set():
            delay = self._pass()
            if self._back_off.failures:
                # A fact must not end the back-off.
                self._closing.wait(delay)
            elif self._wake.wait(delay):
                self._closing.wait(COLLECT_FOR)
            self._wake.clear()

    def _pass(self) -> float:
        try:
            self._run_pass()
        # Any error: it must not end the thread. The next pass tries again.
        except Exception as error:  # noqa: BLE001
            return self._log_failure(error)
        if self._back_off.failures:
            logger.info(
                "passes of %s succeed again",
                self._thread.name,
                extra={"event": Event.ALERT_PASS_RECOVERED},
            )
        self._back_off.reset()
        return self._interval

    def _log_failure(self, error: Exception) -> float:
        if not self._back_off.failures:
            logger.error(
                "pass of %s failed, and is repeated: %s",
                self._thread.name,
                reason_of(error),
                exc_info=logger.isEnabledFor(logging.DEBUG),
                extra={"event": Event.ALERT_PASS_FAILED},
            )
        return self._back_off.next_delay()


class AlertThreads:
    """The threads of beat ``node``. One evaluates, and with targets, another sends messages."""

    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        settings: Settings,
        node: str,
        send_task: SendTask | None = None,
    ) -> None:
        evaluation = AlertPass(database=database, clock=clock, settings=settings)
        evaluating = AlertThread(lambda: evaluation.run(rest=evaluating.rest))
        self._threads = [evaluating]
        if settings.recipient is not None:
            # A wrong path stops beat at its start, and not the first notice.
            settings.recipient.load()
        if any(settings.alert_urls.values()) or settings.recipient is not None:
            messages = Messages(
                database=database, clock=clock, settings=settings, node=node, send_task=send_task
            )
            # A separate thread, because a delivery may take dynbeat_alert_timeout.
            self._threads.append(
                AlertThread(
                    messages.run_once, name="dynbeat-alert-messages", interval=MESSAGES_INTERVAL
                )
            )

    def start(self) -> None:
        """Start the threads, and let the passes of beat wait less for them."""
        # A pass takes the interpreter again after each reply of the database and of the broker.
        # With Python's interval of 5 ms it waits that long each time for an evaluation.
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL))
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the threads. May be called twice."""
        for thread in self._threads:
            thread.close()
