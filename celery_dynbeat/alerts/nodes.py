"""Open and end the alerts about beats and workers: those that are missing, and clocks that differ.

Any number of beats check the same rows. An alert opens when a beat has seen its cause for half a
node timeout: after an outage of the database all nodes seem to have died until their next
heartbeats.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy.orm import Session

from celery_dynbeat.alerts.opening import state_of
from celery_dynbeat.common.alert_kinds import NODE_KINDS, AlertKind
from celery_dynbeat.common.settings import DEFAULT_TARGET, Settings
from celery_dynbeat.db.alert_models import NO_SCHEDULE
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.health.evaluation import (
    ALIVE,
    SHOWN_FOR,
    Limits,
    clock_warning,
    missing_nodes,
)
from celery_dynbeat.health.evaluation import state_of as state_of_node
from celery_dynbeat.health.problem import Problem
from celery_dynbeat.planning.alerting import AlertState, Fact, after_facts, recovered
from celery_dynbeat.store import health
from celery_dynbeat.store.alerts import alerts
from celery_dynbeat.telemetry import emit_on_commit, events, has_listeners

_KINDS = {
    AlertKind.BEATS_MISSING: NodeKind.BEAT,
    AlertKind.WORKERS_MISSING: NodeKind.WORKER,
}


@dataclass(frozen=True, slots=True)
class _Found:
    """The causes of alerts at an instant, the numbers of living nodes, and the open alerts."""

    causes: Mapping[AlertKind, Problem]
    alive: Mapping[AlertKind, int]
    is_any_open: bool


class NodeCheck:
    """Checks the nodes. Remembers since when this process has seen each cause."""

    def __init__(self, settings: Settings, *, every: timedelta) -> None:
        self._settings = settings
        self._limits = Limits.of(settings)
        self._every = every
        self._seen_since: Mapping[AlertKind, datetime] = {}
        self._checked_at: datetime | None = None

    def run(self, database: Database, *, now: datetime) -> tuple[int, int]:
        """Check the nodes; return the numbers of alerts that opened and that recovered.

        Raises IntegrityError if another beat opens an alert at the same time.
        """
        found = database.read_in_transaction(partial(self._read, now=now))
        last, self._checked_at = self._checked_at, now
        # The database was away, or its clock was set back.
        if last is None or not timedelta(0) <= now - last < 3 * self._every:
            self._seen_since = {}
        self._seen_since = {kind: self._seen_since.get(kind, now) for kind in found.causes}
        lasting = [
            kind
            for kind, since in self._seen_since.items()
            if now - since >= self._limits.node_timeout / 2
        ]
        if not lasting and not found.is_any_open:
            return 0, 0
        return database.run(partial(self._write, found=found, lasting=lasting, now=now))

    def _read(self, session: Session, *, now: datetime) -> _Found:
        limits = self._limits
        since = now - max(SHOWN_FOR, limits.node_timeout)
        nodes = [
            node
            for kind in NodeKind
            for node in session.scalars(health.nodes_statement(kind, since=since))
        ]
        states = [
            (node.kind, state_of_node(node, now=now, timeout=limits.node_timeout)) for node in nodes
        ]
        causes = {
            alert: missing.problem
            for alert, kind in _KINDS.items()
            if (missing := missing_nodes(nodes, kind, now=now, limits=limits)) is not None
        }
        if (clocks := clock_warning(nodes, now=now, limits=limits)) is not None:
            causes[AlertKind.CLOCKS_DIFFER] = clocks
        return _Found(
            causes,
            {
                alert: sum(node_kind == kind and state in ALIVE for node_kind, state in states)
                for alert, kind in _KINDS.items()
            },
            alerts.is_any_open_of(session, NO_SCHEDULE),
        )

    def _write(
        self, session: Session, *, found: _Found, lasting: Collection[AlertKind], now: datetime
    ) -> tuple[int, int]:
        rows = {AlertKind(row.kind): row for row in alerts.lock_of(session, [NO_SCHEDULE])}
        opened = ended = 0
        for kind in NODE_KINDS:
            row, cause = rows.get(kind), found.causes.get(kind)
            state = None if row is None else state_of(row)
            is_open = row is not None and row.recovered_at is None
            if cause is not None and (is_open or kind in lasting):
                fact = Fact(kind=kind, at=now, value=found.alive.get(kind))
                after = after_facts(state, [fact], now=now, damping=self._settings.alert_interval)
                if after is not None:
                    _store(session, kind, after.state, detail=cause.text, now=now)
                if after is not None and after.opened:
                    opened += 1
                    _report(session, events.AlertOpened, kind, after.state, cause.text)
            elif row is not None and is_open and cause is None:
                before = state_of(row)
                state = recovered(before, now=now, reports=self._reports(kind, before, found))
                _store(session, kind, state, detail=row.detail, now=now)
                ended += 1
                _report(session, events.AlertRecovered, kind, state, row.detail)
        return opened, ended

    def _reports(self, kind: AlertKind, state: AlertState, found: _Found) -> bool:
        """Return whether to report the end of an alert. A node that died long ago is hidden."""
        alive = found.alive.get(kind)
        is_better = alive is None or state.value is None or alive > state.value
        return self._settings.alert_recovered and is_better


def _store(
    session: Session, kind: AlertKind, state: AlertState, *, detail: str | None, now: datetime
) -> None:
    columns = {
        "owner": "",
        "name": "",
        "opened_at": state.opened_at,
        "last_at": state.last_at,
        "fact_count": state.fact_count,
        "value": state.value,
        "detail": detail,
        "target": DEFAULT_TARGET,
        "recovered_at": state.recovered_at,
        "unsent": state.unsent,
        "unsent_at": state.unsent_at,
        "snoozed_until": state.snoozed_until,
        "checked_at": now if state.recovered_at is None else None,
    }
    if state.id is None:
        new = {"schedule_id": NO_SCHEDULE, "kind": kind.value, "run_id": None}
        alerts.insert(session, [{**new, **columns}])
    else:
        alerts.update(session, [{"id": state.id, **columns}])


def _report(
    session: Session,
    event_type: type[events.AlertOpened],
    kind: AlertKind,
    state: AlertState,
    detail: str | None,
) -> None:
    if has_listeners(event_type):
        event = event_type(
            kind=kind.value,
            schedule_id=NO_SCHEDULE,
            owner="",
            schedule="",
            task="",
            opened_at=state.opened_at,
            run_id=None,
            value=None,
            detail=detail,
        )
        emit_on_commit(session, event)
