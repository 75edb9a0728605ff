"""The ways in which beat hears of a change, and the choice between them."""

from typing import Any

from celery import Celery

from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.db.engine import Database
from celery_dynbeat.notify.base import Listener, Notifier, Transport
from celery_dynbeat.notify.polling import PollingNotifier


def choose(wanted: str, *, app: Celery, database: Database) -> Notifier:
    """Return the notifier called ``wanted``: auto, postgresql, broker or polling.

    ``auto`` takes the database's own notices where it has them, else the broker's fanout, else
    polling. Applications and beats choose alike, so they meet. Raises ConfigurationError when what
    was asked for is not to be had.
    """
    notifies = database.capabilities.notifies
    if wanted == "postgresql" and not notifies:
        msg = (
            "dynbeat_notifier = 'postgresql' needs a PostgreSQL database, and"
            f" dynbeat_database_url is {database.shown_url}; choose 'auto' or 'broker'"
        )
        raise ConfigurationError(msg)
    if wanted == "postgresql" or (wanted == "auto" and notifies):
        return _postgresql(app, database)
    if wanted == "broker" or (wanted == "auto" and _has_fanout(app)):
        return _broker(app)
    return PollingNotifier()


def _postgresql(app: Celery, database: Database) -> Notifier:
    try:
        from celery_dynbeat.notify.postgresql import PostgresNotifier  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        msg = (
            "notices of PostgreSQL need psycopg 3: install celery-dynbeat[postgres], or set"
            " dynbeat_notifier to 'broker' or 'polling'"
        )
        raise ConfigurationError(msg) from error

    def instead() -> Notifier:
        return _broker(app) if _has_fanout(app) else PollingNotifier()

    return PostgresNotifier(database, instead)


def _broker(app: Celery) -> Notifier:
    from celery_dynbeat.notify.broker import BrokerNotifier  # noqa: PLC0415 - only when chosen

    return BrokerNotifier(app)


def _has_fanout(app: Celery) -> bool:
    # Read from what the transport declares: nothing connects here.
    connection: Any = app.connection_for_read()
    try:
        return bool(connection.supports_exchange_type("fanout"))
    finally:
        connection.release()


__all__ = ["Listener", "Notifier", "Transport", "choose"]
