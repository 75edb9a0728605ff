"""The notifiers that wake beat after a change, and their selection."""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Protocol

from celery import Celery
from sqlalchemy.orm import Session

from celery_dynbeat.common.clock import BackOff
from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.db.engine import Database


class Transport(StrEnum):
    """The ways in which a beat receives notifications."""

    POSTGRESQL = "postgresql"
    BROKER = "broker"
    POLLING = "polling"


class Listener(Protocol):
    """The receiver in beat. Calls ``wake`` from its own thread after each committed change."""

    @property
    def transport(self) -> Transport:
        """The transport that this beat uses now."""

    def start(self) -> None:
        """Start to listen. The listener logs an error, reconnects and never raises."""

    def stop(self) -> None:
        """Stop listening within a few seconds. May be called twice."""


def reconnect_back_off(*, first: float = 1.0) -> BackOff:
    """Return the delays between the attempts of one listener to connect, in seconds."""
    return BackOff(first=first, maximum=30.0, jitter=0.25)


class Notifier(Protocol):
    """The sender of change notifications."""

    @property
    def transport(self) -> Transport:
        """The transport that was configured. A listener may use another notifier."""

    def notify(self, session: Session) -> None:
        """Wake the beats when the transaction of ``session`` commits. A rollback sends nothing."""

    def listener(self, wake: Callable[[], None]) -> Listener:
        """Return the receiver for beat."""


class NullListener:
    """A listener that receives nothing."""

    transport = Transport.POLLING

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""


class PollingNotifier:
    """Sends no notifications."""

    transport = Transport.POLLING

    def notify(self, session: Session) -> None:
        """Do nothing."""
        del session

    def listener(self, wake: Callable[[], None]) -> NullListener:
        """Return a listener that never wakes."""
        del wake
        return NullListener()


def choose(name: str, *, app: Celery, database: Database) -> Notifier:
    """Return the notifier for ``name``: "auto", "postgresql", "broker" or "polling".

    ``auto`` selects LISTEN/NOTIFY on PostgreSQL, otherwise the broker's fanout exchange if there is
    one, and otherwise polling. Applications and beats call the same function, so they select the
    same notifier. Raises ConfigurationError when the notifier is not available.
    """
    notifies = database.capabilities.notifies
    if name == "postgresql" and not notifies:
        msg = (
            "dynbeat_notifier = 'postgresql' needs a PostgreSQL database, and"
            f" dynbeat_database_url is {database.shown_url}; choose 'auto' or 'broker'"
        )
        raise ConfigurationError(msg)
    if name == "postgresql" or (name == "auto" and notifies):
        return _postgresql(app, database)
    if name == "broker" or (name == "auto" and _has_fanout(app)):
        return _broker(app)
    return PollingNotifier()


def _postgresql(app: Celery, database: Database) -> Notifier:
    try:
        from celery_dynbeat.notify.postgresql import PostgresNotifier  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        msg = (
            "LISTEN and NOTIFY need psycopg 3: install celery-dynbeat[postgres], or set"
            " dynbeat_notifier to 'broker' or 'polling'"
        )
        raise ConfigurationError(msg) from error

    def make_fallback() -> Notifier:
        return _broker(app) if _has_fanout(app) else PollingNotifier()

    return PostgresNotifier(database, make_fallback)


def _broker(app: Celery) -> Notifier:
    from celery_dynbeat.notify.broker import BrokerNotifier  # noqa: PLC0415 - only when chosen

    return BrokerNotifier(app)


def _has_fanout(app: Celery) -> bool:
    # The transport declares its exchange types. This opens no connection.
    connection: Any = app.connection_for_read()
    try:
        return bool(connection.supports_exchange_type("fanout"))
    finally:
        connection.release()


__all__ = ["Listener", "Notifier", "Transport", "choose"]
