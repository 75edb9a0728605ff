"""The state of beats and workers, derived from their rows, and which of them are missing. PURE."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from celery_dynbeat.broker.outages import ReportedOutage, parse_report
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.models import Node, NodeKind
from celery_dynbeat.store.health import MAX_NAMED, MAX_NODES

#: A stopped node counts for this many node timeouts, in which its successor can start.
RESTART_TIMEOUTS = 2
#: A larger offset of a node's clock is a warning.
MAX_CLOCK_OFFSET = timedelta(seconds=5)
#: For how long a node is shown after its last heartbeat.
SHOWN_FOR = timedelta(hours=1)


class NodeState(StrEnum):
    """The state of a node, derived from its row."""

    #: The node sends heartbeats and made no progress yet.
    STARTING = "starting"
    WORKING = "working"
    #: The node sends heartbeats and made no progress for dynbeat_node_timeout.
    NO_PROGRESS = "no_progress"
    #: The node sent no heartbeat for dynbeat_node_timeout and did not deregister.
    GONE = "gone"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """For how long a state may last before it is a problem.

    ``node_timeout`` limits how long a node may send no heartbeat or make no progress. ``lag``
    limits how long a schedule may be due, and how long no worker may be alive. ``overdue`` limits
    how long a run may be overdue. ``expected`` is the expected number of nodes of each kind, or
    None.
    """

    node_timeout: timedelta
    lag: timedelta
    overdue: timedelta
    expected: Mapping[NodeKind, int] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Settings, *, max_lag: timedelta | None = None) -> "Limits":
        """Return the limits of the settings.

        The default of ``max_lag`` is two polls of a beat that receives no notification, plus the
        time after which the sweep resends a run of another beat.
        """
        default = 2 * settings.poll_interval + settings.dispatch_timeout
        return cls(
            node_timeout=settings.node_timeout,
            lag=default if max_lag is None else max_lag,
            overdue=2 * settings.dispatch_timeout,
            expected={NodeKind(kind): number for kind, number in settings.expected_nodes.items()},
        )

    def nodes_since(self, now: datetime) -> datetime:
        """Return since when a node must have been seen to be shown."""
        return now - max(SHOWN_FOR, self.node_timeout)


@dataclass(frozen=True, slots=True)
class SeenNode:
    """The row of a beat or a worker, and its state at one instant."""

    row: Node
    state: NodeState

    @property
    def is_alive(self) -> bool:
        """Whether the node sends heartbeats."""
        return self.state not in {NodeState.GONE, NodeState.STOPPED}

    @property
    def works(self) -> bool:
        """Whether the node makes progress."""
        return self.state is NodeState.WORKING

    @property
    def last_seen_at(self) -> datetime:
        """The end of a node that stopped, or else its last heartbeat."""
        return self.row.stopped_at or self.row.seen_at

    @property
    def queues(self) -> frozenset[str] | None:
        """The queues of a worker, or None if they are not known."""
        return reported_names(self.row.queues)

    @property
    def tasks(self) -> frozenset[str] | None:
        """The tasks of a worker, or None if they are not known."""
        return reported_names(self.row.tasks)

    @property
    def outages(self) -> Sequence[ReportedOutage]:
        """What a beat cannot publish to, its failing duties, and the rows that it leaves out."""
        return parse_report(self.row.outages)

    @property
    def clock_differs(self) -> bool:
        """Whether the clock of a living node differs much from the database's clock."""
        offset = abs(self.row.clock_offset or 0)
        return self.is_alive and offset > MAX_CLOCK_OFFSET.total_seconds()


def seen(rows: Iterable[Node], *, now: datetime, timeout: timedelta) -> list[SeenNode]:
    """Return the nodes with their states at ``now``."""
    return [SeenNode(row, _state_of(row, now=now, timeout=timeout)) for row in rows]


def of_kind(nodes: Iterable[SeenNode], kind: NodeKind) -> list[SeenNode]:
    """Return the nodes of a kind."""
    return [node for node in nodes if node.row.kind == kind]


def _state_of(node: Node, *, now: datetime, timeout: timedelta) -> NodeState:
    if node.stopped_at is not None:
        return NodeState.STOPPED
    if now - node.seen_at > timeout:
        return NodeState.GONE
    if now - (node.progressed_at or node.started_at) > timeout:
        return NodeState.NO_PROGRESS
    return NodeState.STARTING if node.progressed_at is None else NodeState.WORKING


def reported_names(text: str | None) -> frozenset[str] | None:
    """Return the names that a worker reports, or None if they are not known.

    ``text`` is an array of JSON, or None if the node reports nothing. Manual SQL can damage it.
    """
    try:
        names = None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None
    return frozenset(map(str, names)) if isinstance(names, list) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingNodes:
    """The nodes of a kind that are missing: ``number`` of them, and those that died."""

    kind: NodeKind
    alive: int
    number: int
    expected: int | None
    died: Sequence[Node]

    @property
    def text(self) -> str:
        """What is missing."""
        text = f"{self.kind}s alive: {self.alive}"
        text += "" if self.expected is None else f", expected: {self.expected}"
        names = [
            f"{node.name} (last heartbeat at {node.seen_at:%Y-%m-%dT%H:%M:%SZ})"
            for node in self.died[:MAX_NAMED]
        ]
        return f"{text}; died without a replacement: {', '.join(names)}" if names else text

    @property
    def hint(self) -> str:
        """What to do."""
        kinds = f"{self.kind}s"
        hint = f"start the missing {kinds}; the log or the host of each one shows why it ended"
        if self.expected is not None:
            hint += "; or correct dynbeat_expected_nodes"
        return hint


def missing_nodes(
    nodes: Sequence[SeenNode], kind: NodeKind, *, now: datetime, limits: Limits
) -> MissingNodes | None:
    """Return the missing nodes of a kind, or None if none is missing or this is not certain.

    With an expected number, fewer nodes are alive. Otherwise, a node died without a stop, and no
    other node has started since then. A stop counts only after the time that a restart takes. The
    same is true for each absence after the start of all nodes.
    """
    restarting_since = now - RESTART_TIMEOUTS * limits.node_timeout
    if all(node.row.started_at > restarting_since for node in nodes if node.is_alive):
        return None
    nodes = of_kind(nodes, kind)
    # Others may be cut off.
    if len(nodes) >= MAX_NODES:
        return None
    alive = sum(node.is_alive for node in nodes)
    stops = (node.row.stopped_at for node in nodes)
    restarting = sum(stop is not None and stop > restarting_since for stop in stops)
    died = _unreplaced(nodes)
    expected = limits.expected.get(kind)
    number = len(died) if expected is None else expected - alive - restarting
    if number <= 0:
        return None
    return MissingNodes(
        kind=kind, alive=alive, number=number, expected=expected, died=died[:number]
    )


def _unreplaced(nodes: Sequence[SeenNode]) -> Sequence[Node]:
    """Return the nodes that died, the last first, without those that a later start replaced."""
    died = [node.row for node in nodes if node.state is NodeState.GONE]
    starts = sorted(node.row.started_at for node in nodes if node.state is not NodeState.GONE)
    left = []
    for node in sorted(died, key=lambda node: node.seen_at, reverse=True):
        if starts and starts[-1] > node.seen_at:
            starts.pop()
        else:
            left.append(node)
    return left
