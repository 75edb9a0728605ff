"""``dynbeat status``: the health of the installation, its alerts, and what becomes due."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import zip_longest
from typing import Any

import click

from celery_dynbeat.alerts.digest import Digest
from celery_dynbeat.alerts.sending import TIMEOUT, deliver
from celery_dynbeat.cli.base.cells import Column, owner_column, time_column
from celery_dynbeat.cli.base.invocation import Invocation, all_of, command
from celery_dynbeat.cli.base.parameters import (
    FloatRange,
    option,
    time_option,
)
from celery_dynbeat.common.text import described_owner, format_duration
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.db.schema import head
from celery_dynbeat.health.checks import DatabaseStatus, Evaluation, HealthReport, evaluate
from celery_dynbeat.health.nodes import SeenNode
from celery_dynbeat.health.probes import collect_health
from celery_dynbeat.store.health import Tables

INDENT = 12
#: Queues and tasks in the JSON output.
MAX_UNSERVED = 20
_ALERTS = (
    Column("id", width=3),
    owner_column(),
    Column("schedule", width=16),
    Column("kind", width=11),
    time_column("opened_at"),
    Column("cause", width=40),
    Column("next_step", optional=True),
    Column("run_id", width=36, optional=True),
    time_column("recovered_at", optional=True),
    time_column("reported_at", optional=True),
)
_FORECAST = (time_column("start_at"), Column("queue", width=16), Column("runs"))
#: The span of a forecast without --until.
_SPANS = {"minute": timedelta(hours=1), "hour": timedelta(days=1)}


@command(
    "status",
    option(
        "--max-lag",
        type=FloatRange(0, 86_400 * 365, min_open=True),
        metavar="SECONDS",
        help="How late a schedule may be. Default: 2 x dynbeat_poll_interval +"
        " dynbeat_dispatch_timeout.",
    ),
    option(
        "--alerts",
        type=click.Choice(["open", "all", "test"]),
        help="Instead, list the open alerts, or all, or send a test message to each URL of"
        " dynbeat_alert_urls.",
    ),
    option(
        "--forecast",
        type=click.Choice([*_SPANS]),
        help="Instead, forecast the runs of each minute or hour.",
    ),
    time_option(
        "--until",
        help="The end of the forecast, such as 6h (from now). Default: an hour from now, or a day"
        " for hours.",
    ),
    option("--queue", metavar="QUEUE", help="Forecast only the runs of this queue."),
    option(
        "--owner",
        default=None,
        metavar="OWNER",
        help="Only alerts or runs of OWNER. Default: all owners.",
    ),
)
def status(
    cli: Invocation,
    *,
    max_lag: float | None,
    alerts: str | None,
    forecast: str | None,
    until: datetime | None,
    queue: str | None,
) -> None:
    """Show the health of the installation. The exit status is 1 if it is unhealthy.

    The command writes nothing and creates no tables. It ends within about ten seconds, even if a
    server does not respond.

    --alerts lists the alerts, oldest first. Each schedule has at most one alert of each kind.
    Because the URLs of dynbeat_alert_urls contain passwords, a refused test message prints only
    the position of its URL. The columns are id, owner, schedule, kind, opened_at, cause, next_step,
    run_id, recovered_at, reported_at. --json prints an object on each line.

    --forecast prints how many runs become due in each queue, including recurring runs. The columns
    are start_at, queue, runs. A note says if there can be more. --json prints one object.

    For example:
        status
        status --json --max-lag 300
        status --alerts open --owner user:42
        status --alerts test
        status --forecast hour --until 6h

    Exit status: 0: healthy. 1: unhealthy, or a URL refused the test message. 2: the command line is
    invalid.
    """
    _check_options(cli, forecast, until=until, queue=queue, alerts=alerts, health=max_lag)
    if alerts == "test":
        _send_test(cli)
    elif alerts is not None:
        _show_alerts(cli, only_open=alerts == "open")
    elif forecast is not None:
        _show_forecast(cli, per=forecast, until=until, queue=queue)
    else:
        _show_health(cli, max_lag)


def _check_options(
    cli: Invocation, forecast: str | None, *, alerts: str | None, health: object, **given: object
) -> None:
    """Raise UsageError unless the options belong together."""
    if [forecast is not None, alerts is not None, bool(health)].count(True) > 1:
        raise click.UsageError("--alerts and --forecast take no option of the health")
    if forecast is None and any(value is not None for value in given.values()):
        raise click.UsageError("--until and --queue need --forecast")
    if cli.owner is not None and forecast is None and alerts not in {"open", "all"}:
        raise click.UsageError("--owner needs --alerts open, --alerts all or --forecast")


def _show_alerts(cli: Invocation, *, only_open: bool) -> None:
    found = [*all_of(partial(cli.calls.alerts, only_open=only_open))]
    cli.show(_ALERTS, found, hidden=("recovered_at",) if only_open else ())
    if not found and not cli.dynbeat.context.settings.alerts_enabled:
        cli.note("alerts are off: set dynbeat_alert_urls")


def _send_test(cli: Invocation) -> None:
    settings = cli.dynbeat.context.settings
    urls = settings.alert_urls
    if not urls:
        cli.refuse("dynbeat_alert_urls has no URL")
    prefix = f"[{settings.application}] " if settings.application else ""
    message = Digest(
        title=f"{prefix}test alert",
        body="A test message of `dynbeat status --alerts test`. No schedule has failed.",
        type="info",
        fields={"application": settings.application, "total": 0, "alerts": []},
    )
    errors = [deliver(url, message, TIMEOUT) for url in urls]
    refused = [f"URL {number}: {error}" for number, error in enumerate(errors, start=1) if error]
    if refused:
        cli.refuse(f"{len(refused)} of {len(urls)} URLs refused: {'; '.join(refused)}")
    accepted = f"{len(urls)} of {len(urls)} URLs accepted the message"
    cli.done(accepted, {"ok": True, "accepted": len(urls)})


def _show_forecast(cli: Invocation, *, per: str, until: datetime | None, queue: str | None) -> None:
    end = until or cli.now + _SPANS[per]
    found = cli.calls.forecast(until=end, per=per, queue=queue)
    if cli.as_json:
        cli.line(json.dumps(found.to_dict()))
        return
    cli.show(_FORECAST, found.rows)
    if found.is_at_least:
        cli.note("at least: there are more schedules than are counted")


def _show_health(cli: Invocation, max_lag: float | None) -> None:
    limit = None if max_lag is None else timedelta(seconds=max_lag)
    report = collect_health(cli.context.obj.app, max_lag=limit)
    evaluation = evaluate(report)
    if cli.as_json:
        cli.line(json.dumps(as_dict(report, evaluation)))
    else:
        for line in _lines(report, evaluation):
            cli.line(line)
    cli.context.exit(0 if evaluation.healthy else 1)


def as_dict(report: HealthReport, evaluation: Evaluation) -> dict[str, Any]:
    """Return the output of ``--json``. docs/how-to/health.md describes each key."""
    database, broker, tables = report.database, report.broker, report.tables
    shown: dict[str, Any] = _plain(
        {
            "healthy": evaluation.healthy,
            "degraded": evaluation.degraded,
            "problems": evaluation.problems,
            "warnings": evaluation.warnings,
            "checked_at": report.now,
            "max_lag": report.limits and report.limits.lag,
            "database": database and _database(database),
            "broker": broker and {**asdict(broker), "reachable": broker.error is None},
            "notifier": report.notifier,
            "application": {"name": report.application, "recorded": tables and tables.application},
            "beats": [*map(_node, report.nodes(NodeKind.BEAT))],
            "workers": [*map(_node, report.nodes(NodeKind.WORKER))],
            "schedules": tables and _schedules(report, tables),
            "holds": tables and {"count": tables.holds, "first": tables.holds_first},
            "unserved": {
                "queues": report.coverage.queues and report.coverage.queues[:MAX_UNSERVED],
                "tasks": report.coverage.tasks and report.coverage.tasks[:MAX_UNSERVED],
            },
            "runs": tables
            and {"overdue": tables.overdue, "overdue_since": tables.overdue_since, **tables.runs},
        }
    )
    return shown


def _plain(value: Any) -> Any:
    """Return a part of the report as JSON: an instant as text, a duration as seconds."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return round(value.total_seconds(), 3)
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [*map(_plain, value)] if isinstance(value, (list, tuple)) else value


def _database(database: DatabaseStatus) -> dict[str, Any]:
    round_trip = database.round_trip
    return {
        "url": database.url,
        "reachable": database.error is None,
        "error": database.error,
        "round_trip_ms": round_trip and round(round_trip / timedelta(milliseconds=1), 3),
        "clock_offset_seconds": database.clock_offset,
        "schema_ok": database.revision is not None,
        "revision": database.revision,
        "needed_revision": head(),
    }


def _node(seen: SeenNode) -> dict[str, Any]:
    columns = ("started_at", "seen_at", "progressed_at", "stopped_at", "error", "notifier")
    return {
        "name": seen.row.name,
        "pid": seen.row.pid,
        "state": seen.state,
        **{name: getattr(seen.row, name) for name in columns},
        "clock_offset_seconds": seen.row.clock_offset,
        "outages": seen.outages,
    }


def _schedules(report: HealthReport, tables: Tables) -> dict[str, Any]:
    def objects(rows: Iterable[Sequence[str]], *keys: str) -> list[dict[str, str]]:
        return [dict(zip(keys, row, strict=True)) for row in rows]

    return {
        "due": tables.due,
        "oldest_due_at": tables.oldest_due_at,
        "lag_seconds": _ago(report, tables.oldest_due_at),
        "quarantined": tables.quarantined,
        "quarantined_first": objects(tables.quarantined_first, "owner", "name", "error"),
        "unsupported_trigger": objects(tables.unsupported_trigger, "owner", "name", "trigger_kind"),
        "refused": tables.refused,
        "refused_first": objects(tables.refused_first, "name", "reason"),
        "lost_first": tables.lost_first,
        "failing": tables.failing,
        "failing_first": tables.failing_first,
    }


def _lines(report: HealthReport, evaluation: Evaluation) -> Iterator[str]:
    yield "DEGRADED" if evaluation.degraded else "healthy" if evaluation.healthy else "UNHEALTHY"
    for title, problems in (("problem", evaluation.problems), ("warning", evaluation.warnings)):
        for problem in problems:
            yield _line(title, problem.text)
            yield _line("", f"hint: {problem.hint}")
    if report.database is not None:
        yield _line("database", *_database_cells(report.database))
    if report.broker is not None:
        yield _line(
            "broker", report.broker.url, "unreachable" if report.broker.error else "reachable"
        )
    yield _line("notifier", report.notifier or "?")
    if report.tables is not None:
        yield from _table_lines(report, report.tables)


def _database_cells(database: DatabaseStatus) -> Iterator[str]:
    yield database.url
    if database.error is not None:
        yield "not usable"
    if database.round_trip is not None:
        yield f"answers in {database.round_trip / timedelta(milliseconds=1):.1f} ms"
    if database.revision is not None:
        yield f"schema {database.revision}"
    if database.clock_offset is not None:
        yield f"this clock {database.clock_offset.total_seconds():+.3f} s"


def _table_lines(report: HealthReport, tables: Tables) -> Iterator[str]:
    yield _line("application", tables.application or "none recorded")
    for kind in NodeKind:
        yield from _aligned(kind, [_node_cells(report, node) for node in report.nodes(kind)])
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
    for each in tables.failing_first:
        error = (each.error or "no error recorded").partition("\n")[0]
        failing = _format_duration(_ago(report, each.since))
        yield _line("", f"{each.owner}/{each.name}: failing for {failing}: {error}")
    yield from _hold_lines(tables)
    yield _line(
        "runs",
        *(f"{state} {count}" for state, count in tables.runs.items()),
        f"overdue {tables.overdue}" + (f" (since {_format_duration(since)})" if since else ""),
    )


def _hold_lines(tables: Tables) -> Iterator[str]:
    if tables.holds.count:
        yield _line("holds", f"{tables.holds} in force")
    for hold in tables.holds_first:
        whose = "everything" if hold.owner is None else described_owner(hold.owner)
        until = f"until {hold.until.isoformat()}" if hold.until else "until it is released"
        by = f" by {hold.actor}" if hold.actor else ""
        reason = hold.reason.partition("\n")[0]
        yield _line("", f"{whose}: since {hold.since.isoformat()}{by}, {until}: {reason}")
    if tables.holds.count > len(tables.holds_first):
        yield _line("", "`dynbeat owner --held` lists all of them")


def _node_cells(report: HealthReport, seen: SeenNode) -> list[str]:
    node = seen.row
    cells = [
        node.name,
        seen.state.replace("_", " "),
        f"pid {node.pid}",
        f"started {_format_duration(_ago(report, node.started_at))} ago",
        f"seen {_format_duration(_ago(report, node.seen_at))} ago",
        f"progressed {_format_duration(_ago(report, node.progressed_at))} ago"
        if node.progressed_at
        else "never progressed",
    ]
    if seen.clock_differs:
        cells.append(f"clock {node.clock_offset:+.1f} s")
    return [*cells, node.error.partition("\n")[0]] if node.error else cells


def _aligned(title: str, rows: list[list[str]]) -> Iterator[str]:
    if not rows:
        yield _line(title, "none")
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    for row in rows:
        yield _line(title, *(cell.ljust(width) for cell, width in zip(row, widths, strict=False)))


def _line(title: str, *cells: str) -> str:
    return f"  {title:<{INDENT}}{'  '.join(cells)}".rstrip()


def _ago(report: HealthReport, instant: datetime | None) -> timedelta | None:
    return None if instant is None or report.now is None else report.now - instant


def _format_duration(duration: timedelta | None) -> str:
    """Return the duration in whole seconds or a larger unit."""
    seconds = 0.0 if duration is None else max(0.0, duration.total_seconds())
    rounded = timedelta(seconds=round(seconds))
    return format_duration(rounded) if rounded else "0 s"
