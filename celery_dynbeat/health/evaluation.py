"""The evaluation of a health report: problems and warnings. Reads nothing itself.

Problems (unhealthy):
- the database or the broker is unreachable, or the tables are missing or outdated
- no beat makes progress
- a schedule is due for longer than max_lag
- a run is overdue for longer than twice dynbeat_dispatch_timeout
- a beat cannot publish to a queue or exchange, or cannot publish a task
- runs wait, and no worker was alive for max_lag
- runs wait in a queue that no living worker consumes
- no living worker has a task of this application that is due within an hour

Warnings (healthy, and degraded if a part does not work):
- one of several beats makes no progress
- some beats or workers are missing, or the clock of one differs from the database's clock
- no worker is alive, and no run waits
- schedules are quarantined, or have a trigger that only a newer version supports
- entries of beat_schedule are rejected
- the last runs of schedules all failed
- runs were lost within the last hour
- schedules are held
- runs wait for a place for long
- schedules have a queue that no living worker consumes, or a task that none has registered
- a beat uses another notifier than the configured one
- a duty of a beat fails, or a beat leaves out a row
- the tables belong to another application
- the schedules were planned with another release of the tz database
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from celery_dynbeat.broker import outages
from celery_dynbeat.common.alert_kinds import AlertKind
from celery_dynbeat.common.settings import Settings, tz_release
from celery_dynbeat.common.states import Status
from celery_dynbeat.common.text import counted
from celery_dynbeat.db.models import Node, NodeKind
from celery_dynbeat.db.schema import SET_SCHEMA
from celery_dynbeat.health.coverage import Coverage
from celery_dynbeat.health.problem import Problem
from celery_dynbeat.health.stopped_work import stopped_warnings, unserved_problems
from celery_dynbeat.store.health import MAX_NAMED, MAX_NODES, Tables

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


#: The states of a node that sends heartbeats.
ALIVE = (NodeState.STARTING, NodeState.WORKING, NodeState.NO_PROGRESS)


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
    expected: Mapping[NodeKind, int | None] = field(default_factory=dict)

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
            expected={
                NodeKind.BEAT: settings.expected_beats,
                NodeKind.WORKER: settings.expected_workers,
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseStatus:
    """The result of the database probe.

    ``clock_offset`` is this host's clock minus the database's. ``schema_error`` is None if the
    tables fit this version. ``loses_commits`` says that a crash of the server can undo a commit.
    """

    url: str
    error: str | None = None
    round_trip: timedelta | None = None
    clock_offset: timedelta | None = None
    revision: str | None = None
    schema_error: str | None = None
    loses_commits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatus:
    """The result of the broker probe; ``error`` is None if the broker is reachable."""

    url: str
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReport:
    """The state of an installation at ``now``, by the clock of the database.

    ``misconfigured`` is the error that prevented the probes. ``tables`` is None if they could not
    be read. ``application`` is the name of the application that runs the probes, or None if it has
    none. ``coverage`` is what no worker serves.
    """

    misconfigured: str | None = None
    application: str | None = None
    now: datetime | None = None
    database: DatabaseStatus | None = None
    broker: BrokerStatus | None = None
    notifier: str | None = None
    tables: Tables | None = None
    limits: Limits | None = None
    coverage: Coverage = field(default_factory=Coverage)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The problems and warnings of an installation."""

    problems: Sequence[Problem]
    warnings: Sequence[Problem]

    @property
    def healthy(self) -> bool:
        """Whether there is no problem. Warnings do not count."""
        return not self.problems

    @property
    def degraded(self) -> bool:
        """Whether schedules run, but a part of the installation does not work."""
        return self.healthy and any(each.code in _DEGRADING for each in self.warnings)


#: The warnings about a part that does not work.
_DEGRADING = frozenset(
    {
        AlertKind.BEATS_MISSING.value,
        AlertKind.WORKERS_MISSING.value,
        "beat_failing",
        "duty_failing",
        "row_left_out",
    }
)


def state_of(node: Node, *, now: datetime, timeout: timedelta) -> NodeState:
    """Return the state of ``node`` at ``now``."""
    if node.stopped_at is not None:
        return NodeState.STOPPED
    if now - node.seen_at > timeout:
        return NodeState.GONE
    if now - (node.progressed_at or node.started_at) > timeout:
        return NodeState.NO_PROGRESS
    return NodeState.STARTING if node.progressed_at is None else NodeState.WORKING


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingNodes:
    """The nodes of a kind that are missing: ``number`` of them, and those that died."""

    kind: NodeKind
    alive: int
    number: int
    expected: int | None
    died: Sequence[Node]

    @property
    def problem(self) -> Problem:
        """Return the warning."""
        kinds = f"{self.kind}s"
        text = f"{kinds} alive: {self.alive}"
        text += "" if self.expected is None else f", expected: {self.expected}"
        if self.died:
            text += f"; died without a replacement: {', '.join(map(_died, self.died[:MAX_NAMED]))}"
        hint = f"start the missing {kinds}; the log or the host of each one shows why it ended"
        if self.expected is not None:
            hint += f"; or correct dynbeat_expected_{kinds}"
        return Problem(_MISSING[self.kind], text, hint)


_MISSING = {
    NodeKind.BEAT: AlertKind.BEATS_MISSING.value,
    NodeKind.WORKER: AlertKind.WORKERS_MISSING.value,
}


def _died(node: Node) -> str:
    return f"{node.name} (last heartbeat at {node.seen_at:%Y-%m-%dT%H:%M:%SZ})"


def missing_nodes(
    nodes: Sequence[Node], kind: NodeKind, *, now: datetime, limits: Limits
) -> MissingNodes | None:
    """Return the missing nodes of a kind, or None if none is missing or this is not certain.

    With an expected number, fewer nodes are alive. Otherwise, a node died without a stop, and no
    other node has started since then. A stop counts only after the time that a restart takes. The
    same is true for each absence after the start of all nodes.
    """
    states = [(node, state_of(node, now=now, timeout=limits.node_timeout)) for node in nodes]
    restarting_since = now - RESTART_TIMEOUTS * limits.node_timeout
    if all(node.started_at > restarting_since for node, state in states if state in ALIVE):
        return None
    states = [(node, state) for node, state in states if node.kind == kind]
    # Others may be cut off.
    if len(states) >= MAX_NODES:
        return None
    alive = sum(state in ALIVE for _, state in states)
    restarting = sum(
        node.stopped_at is not None and node.stopped_at > restarting_since for node, _ in states
    )
    died = _unreplaced(states)
    expected = limits.expected.get(kind)
    number = len(died) if expected is None else expected - alive - restarting
    if number <= 0:
        return None
    return MissingNodes(
        kind=kind, alive=alive, number=number, expected=expected, died=died[:number]
    )


def _unreplaced(states: Sequence[tuple[Node, NodeState]]) -> Sequence[Node]:
    """Return the nodes that died, the last first, without those that a later start replaced."""
    died = [node for node, state in states if state is NodeState.GONE]
    starts = sorted(node.started_at for node, state in states if state is not NodeState.GONE)
    left = []
    for node in sorted(died, key=lambda node: node.seen_at, reverse=True):
        if starts and starts[-1] > node.seen_at:
            starts.pop()
        else:
            left.append(node)
    return left


def clock_differs(node: Node) -> bool:
    """Return whether the clock of the node's host differs much from the database's clock."""
    return abs(node.clock_offset or 0) > MAX_CLOCK_OFFSET.total_seconds()


def clock_warning(nodes: Sequence[Node], *, now: datetime, limits: Limits) -> Problem | None:
    """Return the warning about living nodes whose clock differs from the database's clock."""
    differing = [
        f"{node.name} ({node.clock_offset:+.1f} s)"
        for node in nodes
        if clock_differs(node) and state_of(node, now=now, timeout=limits.node_timeout) in ALIVE
    ]
    if not differing:
        return None
    more = f" and {len(differing) - MAX_NAMED} more" if len(differing) > MAX_NAMED else ""
    return Problem(
        "clocks_differ",
        f"clocks differ from the clock of the database: {', '.join(differing[:MAX_NAMED])}{more}",
        "synchronise the clocks of these hosts: Celery's expiry of messages and logs use them",
    )


def evaluate(report: HealthReport) -> Evaluation:
    """Return the problems and warnings in ``report``."""
    problems = [*_service_problems(report)]
    warnings: list[Problem] = []
    if report.tables is not None and report.now is not None and report.limits is not None:
        checks = _TableChecks(report.tables, report.now, report.limits, report.notifier)
        problems += checks.problems()
        warnings += checks.warnings()
        warnings += _config_warnings(report.tables, application=report.application)
        problems += unserved_problems(report.coverage, urgent=True)
        warnings += unserved_problems(report.coverage, urgent=False)
        warnings += stopped_warnings(report.tables, now=report.now)
    if report.database is not None and report.database.loses_commits:
        warnings.append(_commits_asynchronous())
    return Evaluation(problems, warnings)


def _commits_asynchronous() -> Problem:
    return Problem(
        "commits_asynchronous",
        "synchronous_commit is off: after a crash of the database, a run that was executed can"
        " start a second time",
        "run ALTER ROLE ... SET synchronous_commit = 'on' for the role of dynbeat_database_url",
    )


def _service_problems(report: HealthReport) -> Iterator[Problem]:
    if report.misconfigured is not None:
        yield Problem("configuration", report.misconfigured, "correct the Celery configuration")
    database, broker = report.database, report.broker
    if database is not None and database.error is not None:
        text = f"the database cannot be used: {database.error}"
        hint = "check its server, dynbeat_database_url, and the account's rights on the tables"
        yield Problem("database_unreachable", text, hint)
    if database is not None and database.schema_error is not None:
        hint = "run `celery -A your_app dynbeat schema upgrade`"
        text, is_elsewhere, fix = database.schema_error.partition(f": {SET_SCHEMA}")
        if is_elsewhere:
            hint = f"{SET_SCHEMA}{fix}"
        yield Problem("schema_outdated", text.partition(": run `")[0], hint)
    if broker is not None and broker.error is not None:
        text = f"the broker is unreachable: {broker.error}"
        yield Problem("broker_unreachable", text, "check its server, broker_url and the account")


class _TableChecks:
    """The checks of what the tables contain at ``now``."""

    def __init__(self, tables: Tables, now: datetime, limits: Limits, notifier: str | None) -> None:
        self._tables, self._now, self._limits, self._notifier = tables, now, limits, notifier
        self._beats = self._states(NodeKind.BEAT)
        self._workers = self._states(NodeKind.WORKER)

    def _states(self, kind: NodeKind) -> list[tuple[Node, NodeState]]:
        nodes = [node for node in self._tables.nodes if node.kind == kind]
        timeout = self._limits.node_timeout
        return [(node, state_of(node, now=self._now, timeout=timeout)) for node in nodes]

    def problems(self) -> Iterator[Problem]:
        if not any(state is NodeState.WORKING for _, state in self._beats):
            yield self._no_beat()
        yield from self._outages()
        yield from self._late()
        if self._worker_is_missing() and self._runs_wait():
            yield self._no_worker()

    def warnings(self) -> Iterator[Problem]:
        if any(state is NodeState.WORKING for _, state in self._beats):
            yield from map(_beat_failing, self._without_progress())
        yield from map(_notifier_fallback, self._on_fallback())
        yield from self._different_entries()
        yield from self._failing_work()
        yield from self._node_warnings()
        if not self._a_worker_lives() and not (self._worker_is_missing() and self._runs_wait()):
            yield self._no_worker()
        if self._tables.quarantined.count:
            text = f"quarantined schedules: {self._tables.quarantined}"
            hint = "correct each with update(), which ends its quarantine, or delete it"
            yield Problem("schedules_quarantined", text, hint)
        if self._tables.unsupported_trigger:
            text = "schedules wait: this version does not support their kind of trigger"
            hint = "upgrade all beats, or give the schedules another trigger"
            yield Problem("unsupported_triggers", text, hint)

    def _node_warnings(self) -> Iterator[Problem]:
        nodes, now, limits = self._tables.nodes, self._now, self._limits
        found = [missing_nodes(nodes, kind, now=now, limits=limits) for kind in NodeKind]
        # If there is no beat, there is another problem.
        yield from (each.problem for each in found if each is not None and each.alive)
        clocks = clock_warning(nodes, now=now, limits=limits)
        if clocks is not None:
            yield clocks

    def _outages(self) -> Iterator[Problem]:
        for each in self._reported():
            if each.kind not in _WARNINGS:
                yield _publishing_fails(each)

    def _failing_work(self) -> Iterator[Problem]:
        """Yield the warnings about duties and rows. The runs of other schedules are sent."""
        for each in self._reported():
            if each.kind in _WARNINGS:
                code, hint = _WARNINGS[each.kind]
                text = f"{each.kind} {each.name!r} fails since {each.since}: {each.error}"
                yield Problem(code, text, hint)

    def _reported(self) -> Sequence[outages.ReportedOutage]:
        """Return each reported outage once, even if several beats report it."""
        reports = [
            outages.parse_report(node.outages) for node, state in self._beats if state in ALIVE
        ]
        reported = {(each.kind, each.name): each for report in reports for each in report}
        return list(reported.values())[: outages.MAX_REPORTED]

    def _without_progress(self) -> list[Node]:
        return [node for node, state in self._beats if state is NodeState.NO_PROGRESS]

    def _on_fallback(self) -> list[Node]:
        """Return the working beats that use a notifier other than the configured one."""
        working = [node for node, state in self._beats if state is NodeState.WORKING]
        return [node for node in working if node.notifier not in {None, self._notifier}]

    def _different_entries(self) -> Iterator[Problem]:
        """Yield a warning if living beats have different entries of ``beat_schedule``."""
        seen = {
            node.name: (node.entries_seen_at, node.entries_digest)
            for node, state in self._beats
            if state in ALIVE and node.entries_seen_at is not None
        }
        newest = max(seen.values(), default=(self._now, None))[1]
        older = sorted(name for name, (_, digest) in seen.items() if digest != newest)
        if older:
            text = (
                f"{counted(len(older), 'beat')} with older entries of beat_schedule:"
                f" {', '.join(older[:MAX_NAMED])}; only the newest entries run"
            )
            hint = "end these beats, or restart them with the newer release"
            yield Problem("entries_differ", text, hint)

    def _no_beat(self) -> Problem:
        for node, state in self._beats:
            if state in ALIVE:
                return _beat_failing(node)
        hint = "start one: `celery -A your_app beat`; the log of the last beat shows why it ended"
        return Problem("no_beat", "no beat is alive: no schedule runs", hint)

    def _late(self) -> Iterator[Problem]:
        lag = _age(self._tables.oldest_due_at, self._now)
        if lag > self._limits.lag:
            text = (
                f"due schedules: {self._tables.due}; the oldest is {_format_seconds(lag)} late"
                f" (limit {_format_seconds(self._limits.lag)})"
            )
            hint = "read beat's log; if the beats work but are too slow, start another beat"
            yield Problem("schedules_late", text, hint)
        overdue = _age(self._tables.overdue_since, self._now)
        if overdue > self._limits.overdue:
            text = (
                f"overdue runs: {self._tables.overdue}; the oldest has been overdue for "
                f"{_format_seconds(overdue)} (limit {_format_seconds(self._limits.overdue)})"
            )
            yield Problem("runs_overdue", text, "read beat's log: no beat resends these runs")

    def _a_worker_lives(self) -> bool:
        return any(state in ALIVE for _, state in self._workers)

    def _worker_is_missing(self) -> bool:
        """Return whether no worker was alive for the time that a restart takes."""
        ends = [node.stopped_at or node.seen_at for node, _ in self._workers]
        absent = not ends or self._now - max(ends) > self._limits.lag
        return absent and not self._a_worker_lives()

    def _runs_wait(self) -> bool:
        return self._tables.runs[Status.SENT].count > 0

    def _no_worker(self) -> Problem:
        waiting = f"; waiting runs: {self._tables.runs[Status.SENT]}" if self._runs_wait() else ""
        hint = (
            "start one with the same application: `celery -A your_app worker`;"
            " workers without Dynbeat(app) do not count"
        )
        return Problem("no_worker", f"no worker is alive{waiting}", hint)


def _config_warnings(tables: Tables, *, application: str | None) -> Iterator[Problem]:
    """Yield the warnings about beat_schedule, the application and the tz database."""
    if tables.refused.count:
        text = f"invalid entries of beat_schedule: {tables.refused}; their schedules are paused"
        hint = "correct the entries and restart beat; its log shows the reasons (config_refused)"
        yield Problem("entries_refused", text, hint)
    if None not in {application, tables.application} and application != tables.application:
        text = (
            f"the tables belong to application {tables.application!r}, but this is {application!r}"
        )
        hint = (
            f"give {application!r} its own database or schema, or set dynbeat_application ="
            f" {tables.application!r}: a beat of {application!r} refuses to start"
        )
        yield Problem("application_differs", text, hint)
    release = tz_release()
    if None not in {release, tables.tz_release} and release != tables.tz_release:
        text = (
            f"the schedules were planned with release {tables.tz_release} of the tz database, and"
            f" this process has {release}"
        )
        hint = "when all processes have the new release, run `dynbeat replan`"
        yield Problem("tz_release_differs", text, hint)


def _beat_failing(node: Node) -> Problem:
    text = f"beat {node.name} is alive but makes no progress"
    return Problem(
        "beat_failing",
        text if node.error is None else f"{text}: {node.error}",
        "fix the cause that the error and its log show; if they show none, restart the beat",
    )


def _notifier_fallback(node: Node) -> Problem:
    return Problem(
        "notifier_fallback",
        f"beat {node.name} receives no notification from PostgreSQL; it uses {node.notifier}",
        "LISTEN does not work through a pooler in transaction mode: set dynbeat_notifier to"
        " 'broker', or give beat a URL of the server itself",
    )


def _publishing_fails(reported: outages.ReportedOutage) -> Problem:
    text = (
        f"runs of {reported.kind} {reported.name!r} are waiting: publishing has failed since"
        f" {reported.since}: {reported.error}"
    )
    then = "beat then sends the runs"
    if reported.kind == outages.Kind.TASK:
        hint = (
            "correct task_routes, the receivers of before_task_publish, the task's own apply_async"
            " or the schedule's options"
        )
        return Problem("publish_failed", text, f"{hint}; {then}")
    hints = (hint for code, hint in _AMQP_HINTS.items() if f"({code})" in reported.error)
    hint = next(hints, "fix the cause that the error names")
    return Problem("queue_refused", text, f"{hint}; {then}")


#: By kind: the code and the hint.
_WARNINGS: Mapping[str, tuple[str, str]] = {
    outages.Kind.DUTY: (
        "duty_failing",
        (
            "correct what the error names: a right of the account, a trigger or a foreign key of"
            " another table; beat tries the duty again, and logs the traceback at DEBUG"
        ),
    ),
    outages.Kind.ROW: (
        "row_left_out",
        (
            "the database refuses a change of this row (a trigger, a constraint, a policy), or its"
            " time zone needs a newer tz database; beat leaves the row out and tries it again"
        ),
    ),
}
#: By AMQP reply code. The driver writes the code into its error.
_AMQP_HINTS = {
    403: "give the broker account its rights (rabbitmqctl set_permissions)",
    404: "declare the exchange or queue, or start the node that hosts it",
    406: "make task_queues match the queue on the broker: type, durability, arguments",
}


def _age(instant: datetime | None, now: datetime) -> timedelta:
    return timedelta(0) if instant is None else now - instant


def _format_seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():.1f} s"
