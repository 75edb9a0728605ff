"""``dynbeat status``: the health of the installation."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.parameter_types import Number
from celery_dynbeat.common.text import counted, described_owner, format_duration

if TYPE_CHECKING:
    from celery_dynbeat.db.models import Node
    from celery_dynbeat.health.evaluation import DatabaseStatus, Evaluation, HealthReport
    from celery_dynbeat.health.problem import Problem
    from celery_dynbeat.store.health import Tables
    from celery_dynbeat.store.sizes import TableSize

INDENT = 12
#: Queues and tasks in the JSON output.
MAX_UNSERVED = 20
#: Old rows are counted up to this number.
_COUNTED = 10_000


@command(
    "status",
    examples=("status", "status --json --max-lag 300", "status --sizes"),
    exit_statuses="0: healthy. 1: unhealthy. 2: the command line is invalid.",
)
@click.option(
    "--max-lag",
    type=Number(least=0, most=86_400 * 365, whole=False, above=True),
    metavar="SECONDS",
    help="How late a schedule may be. Default: 2 x dynbeat_poll_interval +"
    " dynbeat_dispatch_timeout.",
)
@click.option("--sizes", is_flag=True, help="Also show the rows and the bytes of each table.")
def status(invocation: Invocation, *, max_lag: float | None, sizes: bool) -> None:
    """Show the health of the installation. The exit status is 1 if it is unhealthy.

    The command writes nothing and creates no tables. It ends within about ten seconds, even if a
    server does not respond.

    With --sizes, it also shows how large the tables are, and how many of their rows are older than
    the retention. A server knows the number of rows only approximately.
    """
    # Late imports, here and below: `status --help` opens no database.
    from celery_dynbeat.health.evaluation import evaluate  # noqa: PLC0415
    from celery_dynbeat.health.probes import collect_health  # noqa: PLC0415

    limit = None if max_lag is None else timedelta(seconds=max_lag)
    report = collect_health(invocation.context.obj.app, max_lag=limit)
    evaluation = evaluate(report)
    tables = _sizes(invocation) if sizes and report.tables is not None else None
    if invocation.output.as_json:
        shown = as_dict(report, evaluation)
        shown |= {} if tables is None else {"sizes": [_size(each) for each in tables]}
        invocation.output.line(json.dumps(shown))
    else:
        for line in _lines(report, evaluation):
            invocation.output.line(line)
        for number, each in enumerate(tables or ()):
            invocation.output.line(_line("" if number else "sizes", *_size_cells(each)))
    invocation.context.exit(0 if evaluation.healthy else 1)


def _sizes(invocation: Invocation) -> Sequence["TableSize"]:
    from celery_dynbeat.store import sizes  # noqa: PLC0415

    context = invocation.dynbeat.context
    read = partial(
        sizes.read,
        now=context.clock.now(),
        history=context.settings.history_retention,
        audit=context.settings.audit_retention,
    )
    return context.database.read_in_transaction(read)


def _size(size: "TableSize") -> dict[str, Any]:
    return {**asdict(size), "retention": _in_units(size.retention, timedelta(seconds=1))}


def _size_cells(size: "TableSize") -> Iterator[str]:
    about = "" if size.exact else "about "
    yield f"{size.name:<28}"
    yield "rows not known" if size.rows is None else f"{about}{counted(size.rows, 'row')}"
    yield "size not known" if size.bytes is None else f"{size.bytes / 2**20:,.1f} MiB"
    if size.retention is not None and size.old_rows is not None:
        more = "+" if size.old_rows > _COUNTED else ""
        days = size.retention / timedelta(days=1)
        yield f"{min(size.old_rows, _COUNTED):,}{more} older than {days:g} days"


def as_dict(report: "HealthReport", evaluation: "Evaluation") -> dict[str, Any]:
    """Return the output of ``--json``. docs/how-to/health.md describes each key."""
    from celery_dynbeat.db.models import NodeKind  # noqa: PLC0415

    database, broker, tables = report.database, report.broker, report.tables
    return {
        "healthy": evaluation.healthy,
        "degraded": evaluation.degraded,
        "problems": [asdict(problem) for problem in evaluation.problems],
        "warnings": [asdict(warning) for warning in evaluation.warnings],
        "checked_at": _iso(report.now),
        "max_lag": None if report.limits is None else report.limits.lag.total_seconds(),
        "database": None if database is None else _database(database),
        "broker": broker and {**asdict(broker), "reachable": broker.error is None},
        "notifier": report.notifier,
        "application": {
            "name": report.application,
            "recorded": tables and tables.application,
        },
        "beats": [_node(report, node) for node in _nodes(tables, NodeKind.BEAT)],
        "workers": [_node(report, node) for node in _nodes(tables, NodeKind.WORKER)],
        "schedules": tables and _schedules(report, tables),
        "holds": tables and _holds(tables),
        "unserved": {"queues": _unserved(report, "queues"), "tasks": _unserved(report, "tasks")},
        "runs": tables and _runs(tables),
    }


def _database(database: "DatabaseStatus") -> dict[str, Any]:
    from celery_dynbeat.db.schema import head  # noqa: PLC0415

    return {
        "url": database.url,
        "reachable": database.error is None,
        "error": database.error,
        "round_trip_ms": _in_units(database.round_trip, timedelta(milliseconds=1)),
        "clock_offset_seconds": _in_units(database.clock_offset, timedelta(seconds=1)),
        "schema_ok": database.revision is not None,
        "revision": database.revision,
        "needed_revision": head(),
    }


def _node(report: "HealthReport", node: "Node") -> dict[str, Any]:
    from celery_dynbeat.broker import outages  # noqa: PLC0415

    return {
        "name": node.name,
        "pid": node.pid,
        "state": _state(report, node),
        "started_at": _iso(node.started_at),
        "seen_at": _iso(node.seen_at),
        "progressed_at": _iso(node.progressed_at),
        "stopped_at": _iso(node.stopped_at),
        "error": node.error,
        "notifier": node.notifier,
        "clock_offset_seconds": node.clock_offset,
        "outages": [each._asdict() for each in outages.parse_report(node.outages)],
    }


def _schedules(report: "HealthReport", tables: "Tables") -> dict[str, Any]:
    return {
        "due": asdict(tables.due),
        "oldest_due_at": _iso(tables.oldest_due_at),
        "lag_seconds": _in_units(_ago(report, tables.oldest_due_at), timedelta(seconds=1)),
        "quarantined": asdict(tables.quarantined),
        "quarantined_first": [
            {"owner": owner, "name": name, "error": error}
            for owner, name, error in tables.quarantined_first
        ],
        "unsupported_trigger": [
            {"owner": owner, "name": name, "trigger_kind": kind}
            for owner, name, kind in tables.unsupported_trigger
        ],
        "refused": asdict(tables.refused),
        "refused_first": [
            {"name": name, "reason": reason} for name, reason in tables.refused_first
        ],
        "lost_first": [{**each._asdict(), "at": _iso(each.at)} for each in tables.lost_first],
        "failing": asdict(tables.failing),
        "failing_first": [
            {**each._asdict(), "since": _iso(each.since)} for each in tables.failing_first
        ],
    }


def _holds(tables: "Tables") -> dict[str, Any]:
    return {
        "count": asdict(tables.holds),
        "first": [
            {**hold._asdict(), "since": _iso(hold.since), "until": _iso(hold.until)}
            for hold in tables.holds_first
        ],
    }


def _unserved(report: "HealthReport", kind: str) -> list[dict[str, Any]] | None:
    unserved = getattr(report.coverage, kind)
    return None if unserved is None else [asdict(each) for each in unserved[:MAX_UNSERVED]]


def _runs(tables: "Tables") -> dict[str, Any]:
    return {
        "overdue": asdict(tables.overdue),
        "overdue_since": _iso(tables.overdue_since),
        **{state: asdict(count) for state, count in tables.runs.items()},
    }


def _lines(report: "HealthReport", evaluation: "Evaluation") -> Iterator[str]:
    yield "DEGRADED" if evaluation.degraded else "healthy" if evaluation.healthy else "UNHEALTHY"
    for title, problems in (("problem", evaluation.problems), ("warning", evaluation.warnings)):
        for problem in problems:
            yield from _problem_lines(title, problem)
    if report.database is not None:
        yield _line("database", *_database_cells(report.database))
    if report.broker is not None:
        yield _line(
            "broker", report.broker.url, "unreachable" if report.broker.error else "reachable"
        )
    yield _line("notifier", report.notifier or "?")
    if report.tables is not None:
        yield from _table_lines(report, report.tables)


def _problem_lines(title: str, problem: "Problem") -> Iterator[str]:
    yield _line(title, problem.text)
    yield _line("", f"hint: {problem.hint}")


def _database_cells(database: "DatabaseStatus") -> Iterator[str]:
    yield database.url
    if database.error is not None:
        yield "not usable"
    if database.round_trip is not None:
        yield f"answers in {database.round_trip / timedelta(milliseconds=1):.1f} ms"
    if database.revision is not None:
        yield f"schema {database.revision}"
    if database.clock_offset is not None:
        yield f"this clock {database.clock_offset.total_seconds():+.3f} s"


def _table_lines(report: "HealthReport", tables: "Tables") -> Iterator[str]:
    from celery_dynbeat.db.models import NodeKind  # noqa: PLC0415

    yield _line("application", tables.application or "none recorded")
    for kind in NodeKind:
        yield from _aligned(kind, [_node_cells(report, node) for node in _nodes(tables, kind)])
    lag = _ago(report, tables.oldest_due_at)
    since = _ago(report, tables.overdue_since)
    yield _line(
        "schedules",
        f"due {tables.due}" + (f" (the oldest {_format_duration(lag)} late)" if lag else ""),
        f"quarantined {tables.quarantined}",
        f"unsupported trigger {len(tables.unsupported_trigger)}",
        *([f"entries refused {tables.refused}"] if tables.refused.count else []),
        *([f"failing {tables.failing}"] if tables.failing.count else []),
    )
    for name, reason in tables.refused_first:
        yield _line("", f"beat_schedule[{name!r}]: {reason.partition(chr(10))[0]}")
    for owner, name, reason in (*tables.quarantined_first, *tables.unsupported_trigger):
        yield _line("", f"{owner}/{name}: {reason.partition(chr(10))[0]}")
    yield from _failing_lines(report, tables)
    yield from _hold_lines(tables)
    yield _line(
        "runs",
        *(f"{state} {count}" for state, count in tables.runs.items()),
        f"overdue {tables.overdue}" + (f" (since {_format_duration(since)})" if since else ""),
    )


def _failing_lines(report: "HealthReport", tables: "Tables") -> Iterator[str]:
    for each in tables.failing_first:
        error = (each.error or "no error recorded").partition("\n")[0]
        since = _format_duration(_ago(report, each.since))
        yield _line("", f"{each.owner}/{each.name}: failing for {since}: {error}")


def _hold_lines(tables: "Tables") -> Iterator[str]:
    if tables.holds.count:
        yield _line("holds", f"{tables.holds} in force")
    for hold in tables.holds_first:
        whose = "everything" if hold.owner is None else described_owner(hold.owner)
        until = f"until {_iso(hold.until)}" if hold.until else "until it is released"
        by = f" by {hold.actor}" if hold.actor else ""
        yield _line(
            "",
            f"{whose}: since {_iso(hold.since)}{by}, {until}: {hold.reason.partition(chr(10))[0]}",
        )


def _node_cells(report: "HealthReport", node: "Node") -> list[str]:
    from celery_dynbeat.health.evaluation import clock_differs  # noqa: PLC0415

    cells = [
        node.name,
        _state(report, node).replace("_", " "),
        f"pid {node.pid}",
        f"started {_format_duration(_ago(report, node.started_at))} ago",
        f"seen {_format_duration(_ago(report, node.seen_at))} ago",
        f"progressed {_format_duration(_ago(report, node.progressed_at))} ago"
        if node.progressed_at
        else "never progressed",
    ]
    if clock_differs(node):
        cells.append(f"clock {node.clock_offset:+.1f} s")
    return [*cells, node.error.partition("\n")[0]] if node.error else cells


def _aligned(title: str, rows: list[list[str]]) -> Iterator[str]:
    if not rows:
        yield _line(title, "none")
    widths = [
        max(len(row[column]) for row in rows if column < len(row)) for column in _columns(rows)
    ]
    for row in rows:
        yield _line(title, *(cell.ljust(width) for cell, width in zip(row, widths, strict=False)))


def _columns(rows: Iterable[list[str]]) -> range:
    return range(max((len(row) for row in rows), default=0))


def _line(title: str, *cells: str) -> str:
    return f"  {title:<{INDENT}}{'  '.join(cells)}".rstrip()


def _nodes(tables: "Tables | None", kind: str) -> list["Node"]:
    return [] if tables is None else [node for node in tables.nodes if node.kind == kind]


def _state(report: "HealthReport", node: "Node") -> str:
    from celery_dynbeat.health.evaluation import state_of  # noqa: PLC0415

    assert report.now is not None  # noqa: S101 - tables and nodes are read at this instant
    assert report.limits is not None  # noqa: S101
    return state_of(node, now=report.now, timeout=report.limits.node_timeout)


def _ago(report: "HealthReport", instant: datetime | None) -> timedelta | None:
    return None if instant is None or report.now is None else report.now - instant


def _in_units(duration: timedelta | None, unit: timedelta) -> float | None:
    return None if duration is None else round(duration / unit, 3)


def _iso(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat()


def _format_duration(duration: timedelta | None) -> str:
    """Return the duration in whole seconds or a larger unit."""
    seconds = 0.0 if duration is None else max(0.0, duration.total_seconds())
    rounded = timedelta(seconds=round(seconds))
    return format_duration(rounded) if rounded else "0 s"
