"""A node's row: that this process is alive, and since when."""

import logging
import os
import time
from datetime import timedelta

from celery_dynbeat.clock import Clock
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.events import Event
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
        self._written: float | None = None
        self.every = timeout / BEATS

    def beat(self) -> None:
        """Say that the process is alive, unless that was said a moment ago."""
        elapsed = None if self._written is None else time.monotonic() - self._written
        if elapsed is not None and elapsed < self.every.total_seconds():
            return
        try:
            self._write()
        # Whatever the driver raises: the next beat tries again.
        except Exception as error:  # noqa: BLE001
            logger.warning(
                "heartbeat of %s not written: %s",
                self._name,
                type(error).__name__,
                extra={"event": Event.HEARTBEAT_FAILED},
            )
        self._written = time.monotonic()

    def leave(self) -> None:
        """Say that the process ends in good order."""
        now = self._clock.now()
        try:
            self._database.run(
                lambda session: nodes.leave(
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

    def _write(self) -> None:
        now = self._clock.now()
        node = {"kind": self._kind, "name": self._name, "pid": self._pid}
        known = self._written is not None and self._database.run(
            lambda session: nodes.refresh(session, **node, now=now),  # type: ignore[arg-type]
        )
        if not known:
            started_at = now - timedelta(seconds=time.monotonic() - self._born)
            self._database.run(
                lambda session: nodes.enter(session, **node, started_at=started_at, now=now),  # type: ignore[arg-type]
            )
