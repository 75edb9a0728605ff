"""The alerts about the installation: missing beats and workers, and beats that cannot send.

An alert opens when a beat has seen its cause for half a node timeout: after an outage of the
database all nodes seem to have died until their next heartbeats.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from types import SimpleNamespace

from sqlalchemy.orm import Session

from celery_dynbeat.alerts import writing
from celery_dynbeat.broker.outages import PUBLISHING
from celery_dynbeat.common.alert_kinds import NO_SCHEDULE, AlertKind
from celery_dynbeat.common.clock import Clock
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.health.nodes import Limits, SeenNode, missing_nodes, of_kind, seen
from celery_dynbeat.process.heartbeat import NEVER, effective_node_timeout
from celery_dynbeat.store import alerts, health

EVERY = timedelta(seconds=10)
_MISSING = {AlertKind.BEATS_MISSING: NodeKind.BEAT, AlertKind.WORKERS_MISSING: NodeKind.WORKER}
_KINDS = (*_MISSING, AlertKind.STOPPED)
_INSTALLATION = SimpleNamespace(id=NO_SCHEDULE, owner="", name="", task="")


@dataclass(frozen=True, slots=True)
class _NodeCauses:
    causes: Mapping[AlertKind, str]
    is_any_open: bool


class NodeCheck:
    """Checks the nodes. Remembers since when this process has seen each cause."""

    def __init__(self, *, database: Database, clock: Clock, settings: Settings) -> None:
        self._database, self._clock, self._settings = database, clock, settings
        self._limits = Limits.of(settings)
        self._seen_since: Mapping[AlertKind, datetime] = {}
        self._checked_at: datetime | None = None

    def run(self, now: datetime) -> None:
        """Open and end the alerts. Raises the error of the database if it is unreachable."""
        # After a step of the clock, all nodes seem to have been silent.
        if effective_node_timeout(self._clock, self._settings) == NEVER:
            return
        found = self._database.read_in_transaction(partial(self._read, now=now))
        last, self._checked_at = self._checked_at, now
        # The database was away, or its clock was set back.
        if last is None or not timedelta(0) <= now - last < 3 * EVERY:
            self._seen_since = {}
        self._seen_since = {kind: self._seen_since.get(kind, now) for kind in found.causes}
        lasting = {
            kind: since
            for kind, since in self._seen_since.items()
            if now - since >= self._limits.node_timeout / 2
        }
        if lasting or found.is_any_open:
            self._database.run(partial(_write, found=found, lasting=lasting, now=now))

    def _read(self, session: Session, *, now: datetime) -> _NodeCauses:
        limits = self._limits
        rows = health.read_nodes(session, since=limits.nodes_since(now))
        nodes = seen(rows, now=now, timeout=limits.node_timeout)
        causes = {}
        for alert, kind in _MISSING.items():
            missing = missing_nodes(nodes, kind, now=now, limits=limits)
            if missing is not None:
                causes[alert] = missing.text
        failing = list(_cannot_send(of_kind(nodes, NodeKind.BEAT)))
        if failing:
            causes[AlertKind.STOPPED] = "; ".join(failing)
        return _NodeCauses(causes, bool(alerts.open_of(session, NO_SCHEDULE)))


def _cannot_send(beats: Sequence[SeenNode]) -> Iterator[str]:
    """Yield what each living beat cannot do: make a pass, or publish to a queue."""
    for beat in beats:
        if beat.is_alive and beat.row.error is not None:
            yield f"{beat.row.name}: {beat.row.error}"
        for each in beat.outages if beat.is_alive else ():
            if each.kind in PUBLISHING:
                yield f"{beat.row.name}: {each.kind} {each.name!r}: {each.error}"


def _write(
    session: Session, *, found: _NodeCauses, lasting: Mapping[AlertKind, datetime], now: datetime
) -> None:
    if found.causes.keys() & lasting.keys():
        # Before the alerts, in the order of all locks.
        alerts.lock(session)
    for kind in _KINDS:
        row = alerts.lock_of(session, [NO_SCHEDULE], kind=kind).get(NO_SCHEDULE)
        is_open = row is not None and row.recovered_at is None
        text = found.causes.get(kind)
        if text is not None and kind in lasting and not is_open:
            cause = writing.AlertCause(subject=_INSTALLATION, since=lasting[kind], text=text)
            writing.write_opened(session, kind=kind, found={NO_SCHEDULE: cause})
        elif row is not None and is_open and text is None:
            writing.write_ended(session, [(row, True)], now=now)
