"""Whether an installation is well, judged by what was report of it. Reads nothing itself.

database or broker away, tables behind      unhealthy
no beat makes progress                      unhealthy
a schedule is due and nobody takes it up    unhealthy, after max_lag
a run is overdue and nobody publishes it    unhealthy, after twice dynbeat_dispatch_timeout
a beat cannot publish to a queue            unhealthy, until it can
no worker lives                             unhealthy when runs wait for one, after max_lag
one beat of several makes no progress, no worker and nothing to do, quarantined schedules
or that only a newer version can plan, entries of beat_schedule that are refused, tables that
belong to another application, a database
whose encoding is not UTF-8                 a warning
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from celery_dynbeat.broker import outages
from celery_dynbeat.common.run_states import Status
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.models import Node, NodeKind
from celery_dynbeat.store.health import Tables

#: A node that fell silent or stopped is shown for so long.
SHOWN_FOR = timedelta(hours=1)


class NodeState(StrEnum):
    """What the row of a node says."""

    #: It has begun and not come to progress yet.
    STARTING = "starting"
    WORKING = "working"
    #: It gives signs of life, and none of progress.
    NO_PROGRESS = "no_progress"
    #: It fell silent without a word.
    GONE = "gone"
    STOPPED = "stopped"


_LIVING = (NodeState.STARTING, NodeState.WORKING, NodeState.NO_PROGRESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """For how long something may last before it is a problem."""

    node_timeout: timedelta
    lag: timedelta
    overdue: timedelta

    @classmethod
    def of(cls, settings: Settings, *, max_lag: timedelta | None = None) -> "Limits":
        """Return those of the settings.

        Without ``max_lag`` a schedule may be late by two looks of a beat that hears of no change,
        and by a run of another beat that has to be sent again.
        """
        default = 2 * settings.poll_interval + settings.dispatch_timeout
        return cls(
            node_timeout=settings.node_timeout,
            lag=default if max_lag is None else max_lag,
            overdue=2 * settings.dispatch_timeout,
        )


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, under a stable ``code``, and what to do about it."""

    code: str
    text: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseStatus:
    """The database; ``clock_offset`` is this host's clock less the database's.

    ``behind`` says what is wrong with the tables, None when nothing is; ``encoding`` is that of a
    database that cannot store every text.
    """

    url: str
    error: str | None = None
    round_trip: timedelta | None = None
    clock_offset: timedelta | None = None
    revision: str | None = None
    behind: str | None = None
    encoding: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatus:
    """The broker, and why it was not reached."""

    url: str
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReport:
    """What was report of an installation at the database's instant ``now``.

    ``tables`` is None where they could not be read, ``misconfigured`` what kept from looking.
    ``application`` is the name of the one that asks, None when it has none.
    """

    misconfigured: str | None = None
    application: str | None = None
    now: datetime | None = None
    database: DatabaseStatus | None = None
    broker: BrokerStatus | None = None
    notifier: str | None = None
    tables: Tables | None = None
    limits: Limits | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What is wrong, and what may become so."""

    problems: Sequence[Problem]
    warnings: Sequence[Problem]

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def state_of(node: Node, *, now: datetime, timeout: timedelta) -> NodeState:
    """Return what ``node`` is at ``now``."""
    if node.stopped_at is not None:
        return NodeState.STOPPED
    if now - node.seen_at > timeout:
        return NodeState.GONE
    if now - (node.progressed_at or node.started_at) > timeout:
        return NodeState.NO_PROGRESS
    return NodeState.STARTING if node.progressed_at is None else NodeState.WORKING


def evaluate(report: HealthReport) -> Evaluation:
    """Return the problems and warnings of an installation."""
    problems = [*_services(report)]
    warnings: list[Problem] = []
    if report.tables is not None and report.now is not None and report.limits is not None:
        look = _Look(report.tables, report.now, report.limits, report.notifier)
        problems += look.problems()
        warnings += look.warnings()
        warnings += _configured(report.tables, application=report.application)
    if report.database is not None and report.database.encoding is not None:
        warnings.append(_encoding_limited(report.database.encoding))
    return Evaluation(problems, warnings)


def _encoding_limited(encoding: str) -> Problem:
    text = f"the database's encoding is {encoding}: names beyond it are refused, errors escaped"
    return Problem("encoding_limited", text, "move to a database whose encoding is UTF8")


def _services(report: HealthReport) -> Iterator[Problem]:
    if report.misconfigured is not None:
        yield Problem("configuration", report.misconfigured, "mend the Celery configuration")
    database, broker = report.database, report.broker
    if database is not None and database.error is not None:
        hint = (
            "see that its server runs, that dynbeat_database_url is right, and that the account"
            " may use the tables"
        )
        yield Problem(
            "database_unreachable", f"the database does not serve us: {database.error}", hint
        )
    if database is not None and database.behind is not None:
        hint = "run `celery -A your_app dynbeat schema upgrade`"
        yield Problem("schema_outdated", database.behind.partition(": run `")[0], hint)
    if broker is not None and broker.error is not None:
        hint = "see that its server runs, and that broker_url and its account are right"
        yield Problem("broker_unreachable", f"the broker is away: {broker.error}", hint)


class _Look:
    """A look at the tables."""

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
            yield from map(_hindered, self._without_progress())
        yield from map(_deaf, self._on_fallback())
        if not self._a_worker_lives() and not (self._worker_is_missing() and self._runs_wait()):
            yield self._no_worker()
        if self._tables.quarantined.count:
            text = f"schedules are quarantined with an error: {self._tables.quarantined}"
            yield Problem(
                "schedules_quarantined", text, "mend or delete them; an edit plans them anew"
            )
        if self._tables.unsupported_trigger:
            text = "schedules wait: this version does not support their kind of trigger"
            yield Problem(
                "unsupported_triggers", text, "finish the upgrade of all beats, or mend the rows"
            )

    def _outages(self) -> Iterator[Problem]:
        """Yield one problem for each queue, exchange or task, whichever beats report it."""
        reports = [
            outages.parse_report(node.outages) for node, state in self._beats if state in _LIVING
        ]
        reported = {(each.kind, each.name): each for report in reports for each in report}
        for each in list(reported.values())[: outages.MAX_REPORTED]:
            yield _outage(each)

    def _without_progress(self) -> list[Node]:
        return [node for node, state in self._beats if state is NodeState.NO_PROGRESS]

    def _on_fallback(self) -> list[Node]:
        """Return the working beats that do not receive notifications as they are configured to."""
        working = [node for node, state in self._beats if state is NodeState.WORKING]
        return [node for node in working if node.notifier not in {None, self._notifier}]

    def _no_beat(self) -> Problem:
        for node, state in self._beats:
            if state in _LIVING:
                return _hindered(node)
        hint = "start one: `celery -A your_app beat`; its log says why it ended"
        return Problem("no_beat", "no beat is alive: nothing is sent", hint)

    def _late(self) -> Iterator[Problem]:
        lag = _since(self._tables.oldest_due_at, self._now)
        if lag > self._limits.lag:
            text = f"{self._tables.due} schedules are due, the oldest is {_seconds(lag)} late"
            hint = "look at beat's log; if beats only cannot keep up, start another"
            yield Problem("schedules_late", f"{text} (limit {_seconds(self._limits.lag)})", hint)
        overdue = _since(self._tables.overdue_since, self._now)
        if overdue > self._limits.overdue:
            limit = _seconds(self._limits.overdue)
            text = f"{self._tables.overdue} runs are overdue, one for {_seconds(overdue)}"
            hint = "look at beat's log: nobody publishes them again"
            yield Problem("runs_overdue", f"{text} (limit {limit})", hint)

    def _a_worker_lives(self) -> bool:
        return any(state in _LIVING for _, state in self._workers)

    def _worker_is_missing(self) -> bool:
        """Return whether none has lived for longer than it takes to start one again."""
        ends = [node.stopped_at or node.seen_at for node, _ in self._workers]
        left = not ends or self._now - max(ends) > self._limits.lag
        return left and not self._a_worker_lives()

    def _runs_wait(self) -> bool:
        return self._tables.runs[Status.SENT].count > 0

    def _no_worker(self) -> Problem:
        waiting = (
            f"; waiting for one: {self._tables.runs[Status.SENT]}" if self._runs_wait() else ""
        )
        text = f"no worker is alive{waiting}"
        hint = "start one with the same application: `celery -A your_app worker`"
        return Problem("no_worker", text, hint)


def _configured(tables: Tables, *, application: str | None) -> Iterator[Problem]:
    """Yield warnings about what beats take from the configuration of their application."""
    if tables.refused.count:
        text = f"entries of beat_schedule are refused, their schedules paused: {tables.refused}"
        hint = "correct them as their reasons say, then restart beat; see also config_refused"
        yield Problem("entries_refused", text, f"{hint} in its log")
    if None not in {application, tables.application} and application != tables.application:
        text = f"the tables belong to application {tables.application!r}, this is {application!r}"
        hint = (
            f"give {application!r} a database or a schema of its own, or set dynbeat_application ="
            f" {tables.application!r}: a beat of {application!r} refuses to start"
        )
        yield Problem("application_differs", text, hint)


def _hindered(node: Node) -> Problem:
    text = f"beat {node.name} is alive and makes no progress"
    return Problem(
        "beat_failing",
        text if node.error is None else f"{text}: {node.error}",
        "mend what the error and its log say; without either, restart it",
    )


def _deaf(node: Node) -> Problem:
    return Problem(
        "notifier_fallback",
        f"beat {node.name} receives no notification from PostgreSQL; it uses {node.notifier}",
        "a pooler in transaction mode passes no LISTEN: set dynbeat_notifier to 'broker', or give"
        " beat a URL of the server itself",
    )


def _outage(reported: outages.ReportedOutage) -> Problem:
    text = (
        f"runs wait: since {reported.since} publishing fails"
        f" for {reported.kind} {reported.name!r}: {reported.error}"
    )
    then = "the runs are sent by themselves then"
    if reported.kind == outages.Kind.TASK:
        hint = (
            "correct task_routes, the receivers of before_task_publish, the task's own apply_async"
            " or the schedule's options"
        )
        return Problem("publish_failed", text, f"{hint}; {then}")
    hints = (hint for code, hint in _HINTS.items() if f"({code})" in reported.error)
    hint = next(hints, "see in the text why it is refused, and correct that")
    return Problem("queue_refused", text, f"{hint}; {then}")


#: By AMQP's reply code, as the driver writes it.
_HINTS = {
    403: "give the broker account its rights (rabbitmqctl set_permissions)",
    404: "declare the exchange or queue, or start the node that holds it",
    406: "let task_queues and the queue of the broker agree in type, durability and arguments",
}


def _since(instant: datetime | None, now: datetime) -> timedelta:
    return timedelta(0) if instant is None else now - instant


def _seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():.1f} s"
