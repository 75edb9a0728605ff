"""The notifiers that wake beat after a change, and their selection."""

from typing import Any

from celery import Celery

from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.db.engine import Database
from celery_dynbeat.notify.base import Listener, Notifier, Transport
from celery_dynbeat.notify.polling import PollingNotifier


def choose(name: str, *, app: Celery, database: Database) -> Notifier:
    """Return the notifier for ``name``: "auto", "postgresql", "broker" or "polling".

    ``auto`` selects LISTEN/NOTIFY on PostgreSQL, else the broker's fanout exchange, else polling.
    Applications and beats call the same function, so they select the same notifier. Raises
    ConfigurationError when the notifier is not available.
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
