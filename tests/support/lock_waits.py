"""Make statements that wait for a lock fail."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, event

#: A statement that waits fails after this time.
SHORT_WAIT = {
    "postgresql": "SET lock_timeout = '100ms'",
    "mysql": "SET innodb_lock_wait_timeout = 1",
}


@contextmanager
def failing_waits(engine: Engine) -> Iterator[list[str | None]]:
    """Make each statement on new connections fail that waits for a lock; yield such statements."""
    waits: list[str | None] = []

    def connected(connection: Any, _record: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(SHORT_WAIT[engine.dialect.name])
        connection.commit()

    def failed(context: Any) -> None:
        waits.append(context.statement)

    engine.dispose()
    event.listen(engine, "connect", connected)
    event.listen(engine, "handle_error", failed)
    yield waits
    event.remove(engine, "connect", connected)
    event.remove(engine, "handle_error", failed)
    engine.dispose()
