"""A node's row: that this process is alive, and since when."""

import logging
import os
import time
from datetime import datetime, timedelta
from functools import partial

from celery_dynbeat.common.clock import Clock
from celery_dynbeat.common.events import Event
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.store import nodes

logger = logging.getLogger(__name__)

#: Beats within one dynbeat_node_timeout.
BEATS = 3


class Heartbeat:
    """Writes the row of this process. Never raises: a node lives without its database too."""

    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        kind: NodeKind,
        name: str,
        timeout: timedelta,
    ) -> None:
        self._database = database
        self._clock = clock
        self._kind = kind
        self._name = name
        self._pid = os.getpid()
        self._born = time.monotonic()
        self._started_at: datetime | None = None
        self._written: float | None = None
        self._entered = False
        self._progressed: float | None = None
        self._error: str | None = None
        self._notifier: str | None = None
        self._outages: str | None = None
        self.every = timeout / BEATS

    def progress(self) -> None:
        """Note that the process has just done what it is there for. Writes nothing."""
        self._progressed = time.monotonic()

    def beat(
        self,
        *,
        error: str | None = None,
        notifier: str | None = None,
        outages: str | None = None,
    ) -> bool:
        """Say that the process is alive, unless that was said a moment ago.

        ``error`` is what keeps it from making progress, ``notifier`` how a beat receives
        notifications, ``outages`` the report of what it cannot publish to; a change of one of them
        is written at once. Returns whether the row was written now and was this process's own
        before: no other process uses the name of the node.
        """
        elapsed = None if self._written is None else time.monotonic() - self._written
        fresh = elapsed is not None and elapsed < self.every.total_seconds()
        changed = (error, notifier, outages) != (self._error, self._notifier, self._outages)
        if fresh and not changed:
            return False
        self._error, self._notifier, self._outages, known = error, notifier, outages, False
        try:
            known = self._write()
        # Whatever the driver raises: the next beat tries again.
        except Exception as failure:  # noqa: BLE001
            logger.warning(
                "heartbeat of %s not written: %s",
                self._name,
                type(failure).__name__,
                extra={"event": Event.HEARTBEAT_FAILED},
            )
        self._written = time.monotonic()
        return known

    def deregister(self) -> None:
        """Say that the process ends in good order."""
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
        except Exception as error:  # noqa: BLE001 - it ends, whatever the database says
            logger.warning(
                "end of %s not written: %s",
                self._name,
                type(error).__name__,
                extra={"event": Event.HEARTBEAT_FAILED},
            )

    def _write(self) -> bool:
        now = self._clock.now()
        heartbeat = nodes.NodeHeartbeat(
            kind=self._kind,
            name=self._name,
            pid=self._pid,
            seen_at=now,
            progressed_at=None if self._progressed is None else _ago(now, self._progressed),
            error=self._error,
            notifier=self._notifier,
            outages=self._outages,
        )
        # Not by name and pid alone: in containers a predecessor had the same.
        known = self._entered and self._database.run(partial(nodes.refresh, heartbeat=heartbeat))
        if not known:
            if self._started_at is None:
                self._started_at = _ago(now, self._born)
            # Not computed anew: after a step of the clock, what this node runs would seem to have
            # begun before it.
            self._database.run(
                partial(nodes.register, heartbeat=heartbeat, started_at=self._started_at)
            )
            self._entered = True
        return known


def _ago(now: datetime, reading: float) -> datetime:
    """Return the instant at which the monotonic clock showed ``reading``."""
    return now - timedelta(seconds=time.monotonic() - reading)
