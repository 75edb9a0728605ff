"""The heartbeats of this process, in the row that shows other processes that its node is alive."""

import logging
import os
import time
from datetime import datetime, timedelta
from functools import partial

from celery_dynbeat.common.clock import RESYNC_INTERVAL, Clock, DatabaseClock
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.engine import Database, reason_of
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.store import nodes

logger = logging.getLogger(__name__)

HEARTBEATS_PER_TIMEOUT = 3
#: The names of queues and of tasks.
_Names = tuple[str | None, str | None]


class HeartbeatWriter:
    """Writes the row of this node.

    Never raises an error, because the process continues to work without its database.

    ``timeout`` is dynbeat_node_timeout; ``interval`` is the time between two heartbeats. A beat has
    the ``entries_digest`` of its beat_schedule.
    """

    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        kind: NodeKind,
        name: str,
        timeout: timedelta,
        entries_digest: str | None = None,
    ) -> None:
        self._database = database
        self._clock = clock
        self._kind = kind
        self._name = name
        self._pid = os.getpid()
        self._entries_digest = entries_digest
        self._started_at: datetime | None = None
        self._is_registered = False
        # Monotonic readings.
        self._created = time.monotonic()
        self._written: float | None = None
        self._progressed: float | None = None
        self._error: str | None = None
        self._notifier: str | None = None
        self._outages: str | None = None
        self._names: _Names = (None, None)
        self._written_names: _Names = (None, None)
        self.interval = timeout / HEARTBEATS_PER_TIMEOUT

    def note_progress(self) -> None:
        """Note that the process makes progress. The next heartbeat writes it."""
        self._progressed = time.monotonic()

    def beat(
        self,
        *,
        error: str | None = None,
        notifier: str | None = None,
        outages: str | None = None,
        queues: str | None = None,
        tasks: str | None = None,
    ) -> bool:
        """Write a heartbeat if ``interval`` has passed since the last one or an argument changed.

        ``error`` is what prevents progress. ``notifier`` is how a beat receives notifications.
        ``outages`` reports the queues, exchanges and tasks that it cannot publish. ``queues`` and
        ``tasks`` are the names of a worker's queues and tasks, as JSON arrays. Returns whether this
        call wrote to a row that already belonged to this process. In this case, no other process
        uses the node's name.
        """
        elapsed = None if self._written is None else time.monotonic() - self._written
        is_fresh = elapsed is not None and elapsed < self.interval.total_seconds()
        changed = (error, notifier, outages) != (self._error, self._notifier, self._outages)
        changed = changed or (queues, tasks) != self._names
        if is_fresh and not changed:
            return False
        self._error, self._notifier, self._outages = error, notifier, outages
        self._names = (queues, tasks)
        is_own_row = False
        try:
            is_own_row = self._write()
        # Drivers raise errors of many classes. The next heartbeat tries again.
        except Exception as failure:  # noqa: BLE001
            logger.warning(
                "heartbeat of %s not written: %s",
                self._name,
                reason_of(failure),
                extra={"event": Event.HEARTBEAT_FAILED, "node": self._name},
            )
        self._written = time.monotonic()
        return is_own_row

    def deregister(self) -> None:
        """Write that the process stops."""
        try:
            now = self._clock.now()
            self._database.run(
                lambda session: nodes.deregister(
                    session,
                    kind=self._kind,
                    name=self._name,
                    pid=self._pid,
                    now=now,
                ),
            )
        except Exception as error:  # noqa: BLE001 - the process stops, with or without the database
            logger.warning(
                "end of %s not written: %s",
                self._name,
                reason_of(error),
                extra={"event": Event.HEARTBEAT_FAILED, "node": self._name},
            )

    def _write(self) -> bool:
        now = self._clock.now()
        heartbeat = nodes.NodeHeartbeat(
            kind=self._kind,
            name=self._name,
            pid=self._pid,
            seen_at=now,
            progressed_at=None if self._progressed is None else _instant_of(self._progressed, now),
            error=self._error,
            notifier=self._notifier,
            outages=self._outages,
            clock_offset=self._clock_offset(),
            queues=self._names[0],
            tasks=self._names[1],
            entries_digest=self._entries_digest,
        )
        # Name and pid alone are not enough, because in containers, the previous process may have
        # had the same ones.
        if self._is_registered and self._refresh(heartbeat):
            return True
        # Computed once. After a step of the clock, a later value would be after the start of the
        # runs that this node executes.
        if self._started_at is None:
            self._started_at = _instant_of(self._created, now)
        self._database.run(
            partial(nodes.register, heartbeat=heartbeat, started_at=self._started_at)
        )
        self._is_registered, self._written_names = True, self._names
        return False

    def _clock_offset(self) -> float | None:
        offset = self._clock.offset() if isinstance(self._clock, DatabaseClock) else None
        return None if offset is None else offset.total_seconds()

    def _refresh(self, heartbeat: nodes.NodeHeartbeat) -> bool:
        changed = self._names != self._written_names
        written = self._database.run(
            partial(nodes.refresh, heartbeat=heartbeat, with_names=changed)
        )
        if written:
            self._written_names = self._names
        return written


def _instant_of(reading: float, now: datetime) -> datetime:
    """Return the instant at which the monotonic clock showed ``reading``."""
    return now - timedelta(seconds=time.monotonic() - reading)


#: Longer than any node has been silent.
NEVER = timedelta(days=36_500)


def effective_node_timeout(clock: Clock, settings: Settings) -> timedelta:
    """Return how long a node may be silent before it counts as dead.

    Usually this is dynbeat_node_timeout. After a step of the database's clock all nodes seem to
    have been silent, and NEVER is returned. Each node reads the clock again within
    RESYNC_INTERVAL and then writes a heartbeat.
    """
    timeout = settings.node_timeout
    return timeout if clock.steady_for() > RESYNC_INTERVAL + timeout else NEVER
