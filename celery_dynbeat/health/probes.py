"""Probes of the database, the broker and the tables. They only read.

Each probe runs in its own daemon thread with a time limit. A server that hangs may ignore the
driver's timeouts, and it must not delay the health check or the exit of the process.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from celery import Celery
from kombu import Connection
from kombu.exceptions import KombuError
from sqlalchemy import literal, select
from sqlalchemy.exc import SQLAlchemyError

from celery_dynbeat.api import dynbeat_of
from celery_dynbeat.common.errors import DynbeatError, SchemaError
from celery_dynbeat.db import schema
from celery_dynbeat.db.engine import Database, embedded_file
from celery_dynbeat.health import coverage
from celery_dynbeat.health.checks import BrokerStatus, DatabaseStatus, HealthReport
from celery_dynbeat.health.coverage import Coverage
from celery_dynbeat.health.nodes import Limits
from celery_dynbeat.process.context import Context
from celery_dynbeat.process.daemon_call import call_in_thread
from celery_dynbeat.store import health as tables

T = TypeVar("T")

#: Seconds.
DATABASE_TIMEOUT = 8.0
BROKER_TIMEOUT = 5.0
URL_TIMEOUT = 1.0
#: Errors whose message is shown. Another error may quote an invalid URL with its password.
_SAFE_ERRORS = (DynbeatError, SQLAlchemyError, KombuError, OSError)


def collect_health(app: Celery, *, max_lag: timedelta | None = None) -> HealthReport:
    """Return the report on the installation of ``app``, within about ten seconds.

    This raises no error. A service that cannot be reached has an error in the report.
    """
    started = time.monotonic()
    broker = _start(lambda: _probe_broker(app))
    try:
        context = dynbeat_of(app).context
        limits = Limits.of(context.settings, max_lag=max_lag)
        shown_url = context.database.shown_url
        notifier = _notifier_name(context)
    except DynbeatError as error:
        status = _broker_status(app, broker, started=started)
        return HealthReport(misconfigured=str(error), broker=status)
    database = _start(lambda: _probe_database(context, limits))
    served = _start(lambda: _probe_coverage(context, limits))
    within = {"started": time.monotonic(), "timeout": DATABASE_TIMEOUT}

    def unreachable(error: str) -> HealthReport:
        return HealthReport(database=DatabaseStatus(url=shown_url, error=error))

    report = _result(database, unreachable, **within)
    return replace(
        report,
        application=context.settings.application,
        broker=_broker_status(app, broker, started=started),
        notifier=notifier,
        limits=limits,
        # The database probe reports the error that prevents this probe.
        coverage=_result(served, lambda _: Coverage(), **within),
    )


def _start(probe: Callable[[], T]) -> Future[T]:
    return call_in_thread(probe, name="dynbeat-probe")


def _result(probe: Future[T], fallback: Callable[[str], T], *, started: float, timeout: float) -> T:
    """Return the result of a probe, or ``fallback(error)`` for an error.

    It is also an error if there is no result ``timeout`` seconds after ``started``.
    """
    try:
        error = probe.exception(max(0.0, timeout - (time.monotonic() - started)))
    except FutureTimeoutError:
        return fallback(f"TimeoutError: no answer within {timeout:g} s")
    return probe.result() if error is None else fallback(_error_text(error))


def _error_text(error: BaseException) -> str:
    # SQLAlchemy wraps the driver's error.
    cause = getattr(error, "orig", None) or error
    name = type(cause).__name__
    text = str(cause).partition("\n")[0] if isinstance(error, _SAFE_ERRORS) else ""
    return f"{name}: {text[: tables.MAX_TEXT]}" if text else name


def _probe_database(context: Context, limits: Limits) -> HealthReport:
    context.database.check_folder()
    file = embedded_file(context.database.engine.url)
    # A connection would create the file.
    if file is not None and not file.exists():
        missing = f"the file {str(file)!r} does not exist"
        url = context.database.shown_url
        return HealthReport(database=DatabaseStatus(url=url, schema_error=missing))
    database = _probe_connection(context.database)
    report = HealthReport(database=database)
    try:
        revision = schema.check(context.database)
        loses_commits = _loses_commits(context.database)
    except SchemaError as error:
        return replace(report, database=replace(database, schema_error=str(error)))
    now = context.clock.now()
    return replace(
        report,
        now=now,
        database=replace(database, revision=revision, loses_commits=loses_commits),
        tables=context.database.read_in_transaction(
            lambda session: tables.read(session, now=now, nodes_since=limits.nodes_since(now))
        ),
    )


def _probe_coverage(context: Context, limits: Limits) -> Coverage:
    file = embedded_file(context.database.engine.url)
    if file is not None and not file.exists():
        return Coverage()
    schema.check(context.database)
    now = context.clock.now()
    return context.database.read_in_transaction(
        lambda session: coverage.read(
            session, context.app, now=now, node_timeout=limits.node_timeout, lag=limits.lag
        )
    )


def _loses_commits(database: Database) -> bool:
    with database.engine.connect() as connection:
        return database.capabilities.loses_commits(connection)


def _probe_connection(database: Database) -> DatabaseStatus:
    embedded = database.capabilities.embedded
    with database.engine.connect() as connection:
        host_time, started = datetime.now(UTC), time.monotonic()
        if embedded:
            connection.execute(select(literal(1)))
            database_time = None
        else:
            database_time = database.capabilities.read_clock(connection)
        round_trip = timedelta(seconds=time.monotonic() - started)
    # The database reads its clock within the round trip: assume the middle.
    offset = None if database_time is None else host_time + round_trip / 2 - database_time
    return DatabaseStatus(url=database.shown_url, round_trip=round_trip, clock_offset=offset)


def _probe_broker(app: Celery) -> BrokerStatus:
    connection: Connection = app.connection_for_write()
    try:
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=BROKER_TIMEOUT)
        return BrokerStatus(url=_shown_url(connection))
    finally:
        connection.release()


def _broker_status(app: Celery, probe: Future[BrokerStatus], *, started: float) -> BrokerStatus:
    def unreachable(error: str) -> BrokerStatus:
        asked_at = time.monotonic()
        url = _start(lambda: _shown_url(app.connection_for_write()))
        shown = _result(url, lambda _: "?", started=asked_at, timeout=URL_TIMEOUT)
        return BrokerStatus(url=shown, error=error)

    return _result(probe, unreachable, started=started, timeout=BROKER_TIMEOUT)


def _shown_url(connection: Connection) -> str:
    # The query of the URL may contain a password or a key.
    return str(connection.as_uri()).partition("?")[0]


def _notifier_name(context: Context) -> str | None:
    """Return the name of the notifier, or None if the broker's URL is invalid."""
    try:
        return context.notifier.transport
    except DynbeatError:
        raise
    # Each transport raises its own error. The probe of the broker reports it.
    except Exception:  # noqa: BLE001
        return None
