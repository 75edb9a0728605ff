"""Make statements that wait for a lock fail, or wait until one does."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, event, text
from sqlalchemy.exc import IntegrityError

from tests.support.waiting import wait_until

#: A statement that waits fails after this time.
SHORT_WAIT = {
    "postgresql": "SET lock_timeout = '100ms'",
    "mysql": "SET innodb_lock_wait_timeout = 1",
}
#: The sessions of this database that wait for a lock of another session.
WAITING = {
    "postgresql": (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    ),
    "mysql": (
        "SELECT count(*) FROM information_schema.innodb_trx t"
        " JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id"
        " WHERE p.db = database() AND t.trx_state = 'LOCK WAIT'"
    ),
}
#: Seconds between two reads. MariaDB repeats an answer until 0.1 s pass without a read.
POLL_SECONDS = 0.15


def wait_for_lock_wait(engine: Engine, *, sessions: int = 1, within: float = 10) -> None:
    """Wait until this number of sessions of the database wait for a lock."""
    query = text(WAITING[engine.dialect.name])

    def is_waiting() -> bool:
        with engine.connect() as connection:
            return int(connection.scalar(query) or 0) >= sessions

    wait_until(is_waiting, within=within, every=POLL_SECONDS)


@contextmanager
def failing_waits(engine: Engine) -> Iterator[list[str | None]]:
    """Make each statement on new connections fail that waits for a lock; yield such statements."""
    waits: list[str | None] = []

    def connected(connection: Any, _record: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(SHORT_WAIT[engine.dialect.name])
        connection.commit()

    def failed(context: Any) -> None:
        # On MySQL, the INSERT of runs of which one exists fails before it is repeated.
        if not isinstance(context.sqlalchemy_exception, IntegrityError):
            waits.append(context.statement)

    engine.dispose()
    event.listen(engine, "connect", connected)
    event.listen(engine, "handle_error", failed)
    yield waits
    event.remove(engine, "connect", connected)
    event.remove(engine, "handle_error", failed)
    engine.dispose()
