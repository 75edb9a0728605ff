"""Looks at an installation, for its health: the database, the broker, the tables. Writes nothing.

Each look has a thread and a time limit of its own. Servers that hang answer no query, obey no
timeout that was set for others, and must not hold up who asks whether they are well.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Generic, TypeVar

from celery import Celery
from kombu import Connection
from kombu.exceptions import KombuError
from sqlalchemy import literal, select
from sqlalchemy.exc import SQLAlchemyError

from celery_dynbeat.client import Context, dynbeat_of
from celery_dynbeat.common.errors import DynbeatError, SchemaError
from celery_dynbeat.db import schema
from celery_dynbeat.db.engine import Database
from celery_dynbeat.monitoring.health import (
    SHOWN_FOR,
    BrokerStatus,
    DatabaseStatus,
    HealthReport,
    Limits,
)
from celery_dynbeat.store import health as tables

T = TypeVar("T")

DATABASE_TIMEOUT = 8.0
BROKER_TIMEOUT = 5.0
#: Their words may be shown. A URL that cannot be understood is quoted by others, password and all.
_SPEAKING = (DynbeatError, SQLAlchemyError, KombuError, OSError)


def collect_health(app: Celery, *, max_lag: timedelta | None = None) -> HealthReport:
    """Return what is report of the installation of ``app``, within about ten seconds.

    Raises nothing: what cannot be reached is report to be away.
    """
    broker = _Look(lambda: _broker(app))
    try:
        context = dynbeat_of(app).context
        limits = Limits.of(context.settings, max_lag=max_lag)
        shown_url = context.database.shown_url
        notifier = _notifier(context)
    except DynbeatError as error:
        return HealthReport(misconfigured=str(error), broker=_broker_found(app, broker))
    database = _Look(lambda: _database(context, limits))
    report = database.result(
        DATABASE_TIMEOUT,
        lambda error: HealthReport(database=DatabaseStatus(url=shown_url, error=error)),
    )
    return replace(
        report,
        application=context.settings.application,
        broker=_broker_found(app, broker),
        notifier=notifier,
        limits=limits,
    )


class _Look(Generic[T]):
    """A piece of work that was begun in a thread; who ends does not wait for it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._begun = time.monotonic()
        self._results: list[T] = []
        self._error: str | None = None
        self._thread = threading.Thread(target=self._run, name="dynbeat-probe", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        # Whatever a driver raises is the finding.
        except Exception as error:  # noqa: BLE001
            self._error = _error_text(error)

    def result(self, within: float, otherwise: Callable[[str], T]) -> T:
        """Return the result, else ``otherwise(error)``; ``within`` seconds of the beginning."""
        self._thread.join(max(0.0, within - (time.monotonic() - self._begun)))
        if self._results:
            return self._results[0]
        return otherwise(self._error or f"TimeoutError: no answer within {within:g} s")


def _error_text(error: Exception) -> str:
    # SQLAlchemy wraps the driver's words into its own.
    cause = getattr(error, "orig", None) or error
    name = type(cause).__name__
    text = str(cause).partition("\n")[0] if isinstance(error, _SPEAKING) else ""
    return f"{name}: {text[: tables.MAX_TEXT]}" if text else name


def _database(context: Context, limits: Limits) -> HealthReport:
    database = _reached(context.database)
    report = HealthReport(database=database)
    try:
        revision = schema.check(context.database)
        encoding = _encoding(context.database)
    except SchemaError as error:
        return replace(report, database=replace(database, behind=str(error)))
    now = context.clock.now()
    nodes_since = now - max(SHOWN_FOR, limits.node_timeout)
    return replace(
        report,
        now=now,
        database=replace(database, revision=revision, encoding=encoding),
        tables=context.database.read_in_transaction(
            lambda session: tables.read(session, now=now, nodes_since=nodes_since)
        ),
    )


def _encoding(database: Database) -> str | None:
    with database.engine.connect() as connection:
        return database.capabilities.limited_encoding(connection)


def _reached(database: Database) -> DatabaseStatus:
    embedded = database.capabilities.embedded
    file = database.engine.url.database or ":memory:"
    # To connect would make it.
    if embedded and not file.startswith((":memory:", "file:")) and not Path(file).exists():
        raise FileNotFoundError(file)
    with database.engine.connect() as connection:
        before, began = datetime.now(UTC), time.monotonic()
        if embedded:
            connection.execute(select(literal(1)))
            instant = None
        else:
            instant = database.capabilities.read_clock(connection)
        took = timedelta(seconds=time.monotonic() - began)
    # The reading was taken somewhere within the round trip: assume the middle.
    offset = None if instant is None else before + took / 2 - instant
    return DatabaseStatus(url=database.shown_url, round_trip=took, clock_offset=offset)


def _broker(app: Celery) -> BrokerStatus:
    connection: Connection = app.connection_for_write()
    try:
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=BROKER_TIMEOUT)
        return BrokerStatus(url=_shown(connection))
    finally:
        connection.release()


def _broker_found(app: Celery, broker: "_Look[BrokerStatus]") -> BrokerStatus:
    def away(error: str) -> BrokerStatus:
        url = _Look(lambda: _shown(app.connection_for_write())).result(1.0, lambda _: "?")
        return BrokerStatus(url=url, error=error)

    return broker.result(BROKER_TIMEOUT, away)


def _shown(connection: Connection) -> str:
    # What follows the "?" may hold a password too, or a key.
    return str(connection.as_uri()).partition("?")[0]


def _notifier(context: Context) -> str | None:
    """Return the way that was chosen, None when the broker's URL cannot even be understood."""
    try:
        notifier = context.notifier
    except DynbeatError:
        raise
    # Each transport has its own; the look at the broker tells of it.
    except Exception:  # noqa: BLE001
        return None
    # Each way has a module of its own, called as the setting calls it.
    return type(notifier).__module__.rpartition(".")[2]
