"""The checks of a health report: the code and the level of each, its text and its hint. PURE.

A problem makes the installation unhealthy. With the level DEGRADED, schedules run, but a part of
the installation does not work. docs/how-to/health.md describes each code.
"""

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum, auto
from functools import cached_property, partial
from typing import NamedTuple, TypeAlias

from celery_dynbeat.broker.outages import MAX_REPORTED, Kind, ReportedOutage
from celery_dynbeat.common.alert_kinds import AlertKind
from celery_dynbeat.common.settings import tz_release
from celery_dynbeat.common.states import Status
from celery_dynbeat.common.text import counted, described_owner, format_duration
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.db.schema import SET_SCHEMA
from celery_dynbeat.health.coverage import Coverage, shown
from celery_dynbeat.health.nodes import (
    Limits,
    NodeState,
    SeenNode,
    missing_nodes,
    of_kind,
    seen,
)
from celery_dynbeat.store.health import MAX_NAMED, LostRun, Tables
from celery_dynbeat.store.places import PlaceHolder


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

    def nodes(self, kind: NodeKind) -> Sequence[SeenNode]:
        """Return the nodes of a kind; none if the tables could not be read."""
        if self.tables is None or self.now is None or self.limits is None:
            return []
        nodes = seen(self.tables.nodes, now=self.now, timeout=self.limits.node_timeout)
        return of_kind(nodes, kind)


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem or warning, with a stable ``code``, a description, and a hint about the fix."""

    code: str
    text: str
    hint: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The problems and warnings.

    ``degraded`` means that there is no problem, but a part of the installation does not work.
    """

    problems: Sequence[Problem]
    warnings: Sequence[Problem]
    degraded: bool

    @property
    def healthy(self) -> bool:
        """Whether there is no problem. Warnings do not count."""
        return not self.problems


class _Level(StrEnum):
    PROBLEM = auto()
    DEGRADED = auto()
    WARNING = auto()


#: The texts of a check. A text can have another hint than the check.
_Findings: TypeAlias = Iterator[str | tuple[str, str]]
_Find: TypeAlias = "Callable[[_TablesRead], _Findings]"


class _Check(NamedTuple):
    code: str
    level: _Level
    hint: str
    find: _Find

    def problems(self, read: "_TablesRead") -> Iterator[Problem]:
        for each in self.find(read):
            text, hint = (each, self.hint) if isinstance(each, str) else each
            yield Problem(self.code, text, hint)


#: In the order in which their findings are shown.
_CHECKS: list[_Check] = []


def _check(
    code: str, level: _Level = _Level.WARNING, *, hint: str = ""
) -> Callable[[_Find], _Find]:
    """Declare a check of what was read from the tables."""

    def declare(find: _Find) -> _Find:
        _CHECKS.append(_Check(code, level, hint, find))
        return find

    return declare


@dataclass(frozen=True)
class _TablesRead:
    """What the checks of the tables need, with the states of the nodes."""

    report: HealthReport
    tables: Tables
    now: datetime
    limits: Limits

    @cached_property
    def beats(self) -> Sequence[SeenNode]:
        return self.report.nodes(NodeKind.BEAT)

    @cached_property
    def workers(self) -> Sequence[SeenNode]:
        return self.report.nodes(NodeKind.WORKER)

    @property
    def is_any_beat_working(self) -> bool:
        return any(beat.works for beat in self.beats)

    @property
    def do_runs_miss_workers(self) -> bool:
        """Whether runs wait, and no worker was alive for the time that a restart takes."""
        ends = [worker.last_seen_at for worker in self.workers]
        is_absent = not ends or self.now - max(ends) > self.limits.lag
        is_any_alive = any(worker.is_alive for worker in self.workers)
        return is_absent and not is_any_alive and self.tables.runs[Status.SENT].count > 0

    def outages(self, *kinds: Kind) -> Iterator[ReportedOutage]:
        """Yield each reported outage of the kinds once, even if several beats report it."""
        found = (each for beat in self.beats if beat.is_alive for each in beat.outages)
        reported = list({(each.kind, each.name): each for each in found}.values())
        return (each for each in reported[:MAX_REPORTED] if each.kind in kinds)


def evaluate(report: HealthReport) -> Evaluation:
    """Return the problems and warnings in ``report``."""
    problems, warnings = [*_service_problems(report)], list[Problem]()
    is_part_failing = False
    if report.tables is not None and report.now is not None and report.limits is not None:
        read = _TablesRead(report, report.tables, report.now, report.limits)
        for check in _CHECKS:
            found = [*check.problems(read)]
            (problems if check.level is _Level.PROBLEM else warnings).extend(found)
            is_part_failing |= bool(found) and check.level is _Level.DEGRADED
    return Evaluation(problems, warnings, degraded=is_part_failing and not problems)


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


@_check(
    "no_beat",
    _Level.PROBLEM,
    hint="start one: `celery -A your_app beat`; the log of the last beat shows why it ended",
)
def _no_beat(read: _TablesRead) -> _Findings:
    if not any(beat.is_alive for beat in read.beats):
        yield "no beat is alive: no schedule runs"


_BEAT_HINT = "fix the cause that the error and its log show; if they show none, restart the beat"


@_check("beat_failing", _Level.PROBLEM, hint=_BEAT_HINT)
def _no_beat_works(read: _TablesRead) -> _Findings:
    first = next((beat for beat in read.beats if beat.is_alive), None)
    if first is not None and not read.is_any_beat_working:
        yield _makes_no_progress(first)


@_check("queue_refused", _Level.PROBLEM)
def _queue_refused(read: _TablesRead) -> _Findings:
    for each in read.outages(Kind.QUEUE, Kind.EXCHANGE):
        hints = (hint for code, hint in _AMQP_HINTS.items() if f"({code})" in each.error)
        hint = next(hints, "fix the cause that the error names")
        yield _publishing_fails(each), f"{hint}; beat then sends the runs"


@_check(
    "publish_failed",
    _Level.PROBLEM,
    hint="correct task_routes, the receivers of before_task_publish, the task's own apply_async or"
    " the schedule's options; beat then sends the runs",
)
def _publish_failed(read: _TablesRead) -> _Findings:
    yield from map(_publishing_fails, read.outages(Kind.TASK))


@_check(
    "schedules_late",
    _Level.PROBLEM,
    hint="read beat's log; if the beats work but are too slow, start another beat",
)
def _schedules_late(read: _TablesRead) -> _Findings:
    lag = _age(read.tables.oldest_due_at, read.now)
    if lag > read.limits.lag:
        yield (
            f"due schedules: {read.tables.due}; the oldest is {_format_seconds(lag)} late"
            f" (limit {_format_seconds(read.limits.lag)})"
        )


@_check("runs_overdue", _Level.PROBLEM, hint="read beat's log: no beat resends these runs")
def _runs_overdue(read: _TablesRead) -> _Findings:
    overdue = _age(read.tables.overdue_since, read.now)
    if overdue > read.limits.overdue:
        yield (
            f"overdue runs: {read.tables.overdue}; the oldest has been overdue for "
            f"{_format_seconds(overdue)} (limit {_format_seconds(read.limits.overdue)})"
        )


_WORKER_HINT = (
    "start one with the same application: `celery -A your_app worker`; workers without"
    " Dynbeat(app) do not count"
)


def _no_worker(read: _TablesRead, *, urgent: bool) -> _Findings:
    is_any_alive = any(worker.is_alive for worker in read.workers)
    if not is_any_alive and read.do_runs_miss_workers == urgent:
        sent = read.tables.runs[Status.SENT]
        yield f"no worker is alive{f'; waiting runs: {sent}' if sent.count else ''}"


def _unconsumed(read: _TablesRead, *, urgent: bool) -> _Findings:
    queues = [each for each in read.report.coverage.queues or () if each.urgent == urgent]
    if queues:
        hint = (
            f"start a worker that consumes them: `celery -A your_app worker -Q {queues[0].name}`;"
            " or correct the queue in task_routes, in the task or in the options of the schedules"
        )
        yield f"no living worker consumes these queues: {shown(queues, limit=MAX_NAMED)}", hint


def _unregistered(read: _TablesRead, *, urgent: bool) -> _Findings:
    tasks = [each for each in read.report.coverage.tasks or () if each.urgent == urgent]
    if tasks:
        yield f"no living worker of their queue has these tasks: {shown(tasks, limit=MAX_NAMED)}"


_check("no_worker", _Level.PROBLEM, hint=_WORKER_HINT)(partial(_no_worker, urgent=True))
_check("queue_not_consumed", _Level.PROBLEM)(partial(_unconsumed, urgent=True))
_check(
    "task_not_registered",
    _Level.PROBLEM,
    hint="restart the workers with the code of the tasks, and import its modules there (include,"
    " imports or autodiscover_tasks)",
)(partial(_unregistered, urgent=True))


@_check("beat_failing", _Level.DEGRADED, hint=_BEAT_HINT)
def _beat_without_progress(read: _TablesRead) -> _Findings:
    if read.is_any_beat_working:
        failing = (beat for beat in read.beats if beat.state is NodeState.NO_PROGRESS)
        yield from map(_makes_no_progress, failing)


@_check(
    "notifier_fallback",
    hint="LISTEN does not work through a pooler in transaction mode: set dynbeat_notifier to"
    " 'broker', or give beat a URL of the server itself",
)
def _notifier_fallback(read: _TablesRead) -> _Findings:
    for beat in read.beats:
        name, notifier = beat.row.name, beat.row.notifier
        if beat.works and notifier not in {None, read.report.notifier}:
            yield f"beat {name} receives no notification from PostgreSQL; it uses {notifier}"


@_check("entries_differ", hint="end these beats, or restart them with the newer release")
def _entries_differ(read: _TablesRead) -> _Findings:
    rows = (beat.row for beat in read.beats if beat.is_alive)
    known = {
        row.name: (row.entries_seen_at, row.entries_digest)
        for row in rows
        if row.entries_seen_at is not None
    }
    newest = max(known.values(), default=(read.now, None))[1]
    older = sorted(name for name, (_, digest) in known.items() if digest != newest)
    if older:
        named = ", ".join(older[:MAX_NAMED])
        beats = f"{counted(len(older), 'beat')} with older entries of beat_schedule: {named}"
        yield f"{beats}; only the newest entries run"


@_check(
    "duty_failing",
    _Level.DEGRADED,
    hint="correct what the error names: a right of the account, a trigger or a foreign key of"
    " another table; beat tries the duty again, and logs the traceback at DEBUG",
)
def _duty_failing(read: _TablesRead) -> _Findings:
    yield from map(_fails, read.outages(Kind.DUTY))


@_check(
    "row_left_out",
    _Level.DEGRADED,
    hint="the database refuses a change of this row (a trigger, a constraint, a policy), or its"
    " time zone needs a newer tz database; beat leaves the row out and tries it again",
)
def _row_left_out(read: _TablesRead) -> _Findings:
    yield from map(_fails, read.outages(Kind.ROW))


def _missing(read: _TablesRead, *, kind: NodeKind) -> _Findings:
    nodes = (*read.beats, *read.workers)
    found = missing_nodes(nodes, kind, now=read.now, limits=read.limits)
    # If there is no node of the kind, there is another problem.
    if found is not None and found.alive:
        yield found.text, found.hint


_check(AlertKind.BEATS_MISSING.value, _Level.DEGRADED)(partial(_missing, kind=NodeKind.BEAT))
_check(AlertKind.WORKERS_MISSING.value, _Level.DEGRADED)(partial(_missing, kind=NodeKind.WORKER))


@_check(
    "clocks_differ",
    hint="synchronise the clocks of these hosts: Celery's expiry of messages and logs use them",
)
def _clocks_differ(read: _TablesRead) -> _Findings:
    differing = [
        f"{node.row.name} ({node.row.clock_offset:+.1f} s)"
        for node in (*read.beats, *read.workers)
        if node.clock_differs
    ]
    if differing:
        more = f" and {len(differing) - MAX_NAMED} more" if len(differing) > MAX_NAMED else ""
        named = ", ".join(differing[:MAX_NAMED])
        yield f"clocks differ from the clock of the database: {named}{more}"


_check("no_worker", hint=_WORKER_HINT)(partial(_no_worker, urgent=False))


@_check(
    "schedules_quarantined",
    hint="correct each with update(), which ends its quarantine, or delete it",
)
def _schedules_quarantined(read: _TablesRead) -> _Findings:
    if read.tables.quarantined.count:
        yield f"quarantined schedules: {read.tables.quarantined}"


@_check("unsupported_triggers", hint="upgrade all beats, or give the schedules another trigger")
def _unsupported_triggers(read: _TablesRead) -> _Findings:
    if read.tables.unsupported_trigger:
        yield "schedules wait: this version does not support their kind of trigger"


@_check(
    "entries_refused",
    hint="correct the entries and restart beat; its log shows the reasons (config_refused)",
)
def _entries_refused(read: _TablesRead) -> _Findings:
    refused = read.tables.refused
    if refused.count:
        yield f"invalid entries of beat_schedule: {refused}; their schedules are paused"


@_check("application_differs")
def _application_differs(read: _TablesRead) -> _Findings:
    here, recorded = read.report.application, read.tables.application
    if None not in {here, recorded} and here != recorded:
        hint = (
            f"give {here!r} its own database or schema, or set dynbeat_application ="
            f" {recorded!r}: a beat of {here!r} refuses to start"
        )
        yield f"the tables belong to application {recorded!r}, but this is {here!r}", hint


@_check("tz_release_differs", hint="when all processes have the new release, run `dynbeat replan`")
def _tz_release_differs(read: _TablesRead) -> _Findings:
    here, planned = tz_release(), read.tables.tz_release
    if None not in {here, planned} and here != planned:
        yield (
            f"the schedules were planned with release {planned} of the tz database, and this"
            f" process has {here}"
        )


_check("queue_not_consumed")(partial(_unconsumed, urgent=False))
_check(
    "task_not_registered",
    hint="correct the task of the schedules, or import its module where workers start",
)(partial(_unregistered, urgent=False))


@_check(
    "schedules_failing",
    hint="`celery -A your_app dynbeat list --all-owners --state failing` lists them with their"
    " errors; correct the task or its arguments, or pause the schedule",
)
def _schedules_failing(read: _TablesRead) -> _Findings:
    if read.tables.failing.count:
        yield f"schedules whose last runs all failed: {read.tables.failing}"


@_check(
    "runs_lost",
    hint="the worker died or does not know these runs; run a lost run again with"
    " `celery -A your_app dynbeat rerun`, or set on_lost='rerun' for idempotent tasks",
)
def _runs_lost(read: _TablesRead) -> _Findings:
    if read.tables.lost_first:
        yield f"runs lost within the last hour, the newest: {_named(read.tables.lost_first)}"


@_check("schedules_held")
def _schedules_held(read: _TablesRead) -> _Findings:
    if read.tables.holds.count:
        # The hold of everything comes first.
        owner = read.tables.holds_first[0].owner
        whose = "everything" if owner is None else described_owner(owner)
        more = "; no schedule runs" if owner is None else ""
        hint = f"`{release_command(owner)}` ends the hold of {whose}"
        yield f"holds in force: {read.tables.holds}{more}", hint


@_check(
    "runs_wait_for_place",
    hint="runs that end free their places: search for the cause if one hangs, set max_run_time for"
    " its schedule, or raise max_running",
)
def _runs_wait_for_place(read: _TablesRead) -> _Findings:
    texts = []
    for each in read.tables.long_waits:
        holders = _named(each.holders)
        having = f"these runs have its places: {holders}" if holders else "no run has a place"
        waited = format_duration(read.now - each.since)
        texts.append(f"{each.waiting} of {each.running_key!r} for up to {waited}, {having}")
    if texts:
        yield f"runs wait for a place: {'; '.join(texts)}"


@_check(
    "commits_asynchronous",
    hint="run ALTER ROLE ... SET synchronous_commit = 'on' for the role of dynbeat_database_url",
)
def _commits_asynchronous(read: _TablesRead) -> _Findings:
    if read.report.database is not None and read.report.database.loses_commits:
        yield (
            "synchronous_commit is off: after a crash of the database, a run that was executed can"
            " start a second time"
        )


def _makes_no_progress(beat: SeenNode) -> str:
    error = "" if beat.row.error is None else f": {beat.row.error}"
    return f"beat {beat.row.name} is alive but makes no progress{error}"


#: By AMQP reply code. The driver writes the code into its error.
_AMQP_HINTS = {
    403: "give the broker account its rights (rabbitmqctl set_permissions)",
    404: "declare the exchange or queue, or start the node that hosts it",
    406: "make task_queues match the queue on the broker: type, durability, arguments",
}


def _publishing_fails(outage: ReportedOutage) -> str:
    return (
        f"runs of {outage.kind} {outage.name!r} are waiting: publishing has failed since"
        f" {outage.since}: {outage.error}"
    )


def _fails(outage: ReportedOutage) -> str:
    return f"{outage.kind} {outage.name!r} fails since {outage.since}: {outage.error}"


def _named(runs: Sequence[LostRun | PlaceHolder]) -> str:
    return ", ".join(f"{run.id} of {run.name!r} of {described_owner(run.owner)}" for run in runs)


def _age(instant: datetime | None, now: datetime) -> timedelta:
    return timedelta(0) if instant is None else now - instant


def _format_seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():.1f} s"


def release_command(owner: str | None) -> str:
    """Return the command that ends the hold of an owner; None means the hold of everything."""
    scope = "--all-owners" if owner is None else f"--owner {shlex.quote(owner)}"
    return f"celery -A your_app dynbeat hold --release {scope}"
