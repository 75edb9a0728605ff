"""Group unsent alerts into messages, and deliver the messages. Any number of beats may do so.

    unsent alerts of a target --1 transaction--> a message for each severity
    message, due --lease--> delivered to its URLs --> sent
                                |  some URLs failed --> due again, with back-off, for these URLs
                                |  dynbeat_alert_retry_for has passed --> dropped, logged

- The first message of a target waits for ``dynbeat_alert_delay``, so that simultaneous alerts are
  one message. Later ones keep ``dynbeat_alert_interval``.
- Targets do not wait for each other, see ``sending``.
- A beat that is killed before the transaction leaves the alerts unsent. A beat that is killed while
  it delivers leaves a lease. When it ends, another beat delivers the message: this is the one
  duplicate that a target can get.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial

from celery_dynbeat.alerts.delivery import Delivered, deliver
from celery_dynbeat.alerts.sending import Sending
from celery_dynbeat.alerts.writing import MessageWriter
from celery_dynbeat.common.clock import Clock
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.engine import Database
from celery_dynbeat.store import alert_messages

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
    ) -> None:
        self._database = database
        self._clock = clock
        self._interval = settings.alert_interval
        self._pruned_at: datetime | None = None
        self._writer = MessageWriter(database, settings)
        self._sending = Sending(
            database=database, clock=clock, settings=settings, node=node, deliver=deliver
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
        times = (waiting_until, self._database.read(alert_messages.next_try_at))
        return min((at for at in times if at is not None), default=None)

    def _write_and_start(self) -> datetime | None:
        """Write the messages that are due and start deliveries; return until when others wait."""
        waiting_until = self._writer.write_due(self._clock.now())
        self._sending.start_due()
        return waiting_until

    def _prune(self, now: datetime) -> None:
        """Delete old messages, at most PRUNED each PRUNE_EVERY."""
        # A ``now`` before the last time: the clock was set back.
        if self._pruned_at is not None and timedelta(0) <= now - self._pruned_at < PRUNE_EVERY:
            return
        # The rate limit needs the newest message.
        before = now - max(RETENTION, self._interval)
        ids = self._database.read(partial(alert_messages.old_messages, before=before, limit=PRUNED))
        if ids:
            self._database.run(partial(alert_messages.delete_messages, ids=ids))
        self._pruned_at = now
