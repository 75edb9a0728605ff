"""The beats and workers of an installation."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from celery_dynbeat.api.results.base import Info
from celery_dynbeat.broker import outages
from celery_dynbeat.db.models import Node
from celery_dynbeat.health.evaluation import ALIVE, NodeState, clock_differs, state_of
from celery_dynbeat.process.context import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageInfo(Info):
    """A queue, exchange or task that a beat cannot publish to.

    ``kind`` is ``"queue"``, ``"exchange"`` or ``"task"``. ``since`` is an instant as ISO 8601 text.
    """

    kind: str
    name: str
    since: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus(Info):
    """A beat or worker, and its state.

    - ``kind`` is ``"beat"`` or ``"worker"``.
    - ``seen_at`` is the last heartbeat, ``progressed_at`` the last progress, ``stopped_at`` the
      regular end.
    - ``error`` is what prevents progress.
    - ``notifier`` and ``outages`` concern a beat. ``notifier`` is None for a worker.
    - ``queues`` are the queues of a worker, or None if they are not known.
    - ``clock_offset`` is the clock of its host minus the database's clock, in seconds, or None if
      it is not known. ``clock_differs`` is true if this is a warning, which is possible only for a
      living node.
    """

    kind: str
    name: str
    state: NodeState
    is_alive: bool
    pid: int
    started_at: datetime
    seen_at: datetime
    progressed_at: datetime | None
    stopped_at: datetime | None
    notifier: str | None
    error: str | None
    outages: Sequence[OutageInfo]
    queues: Sequence[str] | None
    clock_offset: float | None
    clock_differs: bool

    @classmethod
    def of(cls, context: Context, row: Node, *, now: datetime) -> "NodeStatus":
        """Return the state of a node at ``now``."""
        state = state_of(row, now=now, timeout=context.settings.node_timeout)
        return cls(
            kind=row.kind,
            name=row.name,
            state=state,
            is_alive=state in ALIVE,
            pid=row.pid,
            started_at=row.started_at,
            seen_at=row.seen_at,
            progressed_at=row.progressed_at,
            stopped_at=row.stopped_at,
            notifier=row.notifier,
            error=row.error,
            outages=tuple(
                OutageInfo(kind=each.kind, name=each.name, since=each.since, error=each.error)
                for each in outages.parse_report(row.outages)
            ),
            queues=_names(row.queues),
            clock_offset=row.clock_offset,
            clock_differs=state in ALIVE and clock_differs(row),
        )


def _names(text: str | None) -> Sequence[str] | None:
    try:
        names = json.loads(text or "null")
    except (ValueError, RecursionError):
        return None
    return tuple(map(str, names)) if isinstance(names, list) else None
