"""A Django project whose calls are interrupted inside ``atomic()``, in a separate process.

    python -m tests.support.django_interrupts URL

Writes what is left of the transactions, as JSON.
"""

import contextlib
import json
import signal
import sys
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded
from django.db import OperationalError

from tests.support.django_project import Project, configure, run_project
from tests.support.waiting import wait_until

#: What interrupts the last statement of create().
INTERRUPTIONS = {
    "sqlite": (
        (
            "CREATE TRIGGER interrupt BEFORE INSERT ON dynbeat_change"
            " WHEN NEW.name LIKE 'interrupted%' BEGIN"
            " SELECT start_timer(); SELECT length(hex(randomblob(50000000))); END"
        ),
    ),
    "postgresql": (
        (
            "CREATE FUNCTION interrupt() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_sleep(5); RETURN NEW; END $$"
        ),
        (
            "CREATE TRIGGER interrupt BEFORE INSERT ON dynbeat_change FOR EACH ROW"
            " WHEN (NEW.name LIKE 'interrupted%') EXECUTE FUNCTION interrupt()"
        ),
    ),
    "mysql": (
        (
            "CREATE TRIGGER interrupt BEFORE INSERT ON dynbeat_change FOR EACH ROW BEGIN"
            " IF NEW.name LIKE 'interrupted%' THEN DO SLEEP(5); END IF; END"
        ),
    ),
}

#: The query for the other sessions that execute a statement, and the statement that ends one.
STILL_EXECUTING = {
    "postgresql": (
        (
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND state = 'active' AND pid <> pg_backend_pid()"
        ),
        "SELECT pg_terminate_backend({})",
    ),
    "mysql": (
        (
            "SELECT id FROM information_schema.processlist"
            " WHERE db = DATABASE() AND command <> 'Sleep' AND id <> CONNECTION_ID()"
        ),
        "KILL {}",
    ),
}


class Timeout(BaseException):
    """As those of gevent, it is no Exception."""


def seen_after_interrupts(url: str) -> dict[str, Any]:
    """Return what is left of interrupted transactions of a project with its tables at ``url``."""
    return run_project("tests.support.django_interrupts", url)


def start_timer(seconds: float = 0.05) -> None:
    """Send SIGALRM after ``seconds``."""
    signal.setitimer(signal.ITIMER_REAL, seconds)


def error_of(work: Any) -> str | None:
    """Return the name of the error that ``work`` raises."""
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - also Timeout
        return type(error).__name__
    return None


def interrupted(project: Project, backend: str, error: BaseException) -> dict[str, Any]:
    """Return what a transaction sees that goes on after an interrupted call."""
    from django.db import connection, transaction

    def interrupt(*_: Any) -> None:
        raise error

    signal.signal(signal.SIGALRM, interrupt)
    name = f"interrupted {type(error).__name__}"
    found: dict[str, Any] = {}
    connection.close()
    with transaction.atomic():
        project.reports.create(name="half")
        if backend == "sqlite":
            # The handler runs after the statement: SQLite cannot be interrupted in between.
            connection.connection.create_function("start_timer", 0, start_timer)
        else:
            start_timer(0.5)
        found["call"] = error_of(lambda: project.mine.create(name, task="t", trigger="* * * * *"))
        found["next call"] = error_of(lambda: project.create("next"))
        found["next query"] = error_of(lambda: project.reports.create(name="next"))
    connection.close()
    if backend in STILL_EXECUTING:
        end_interrupted_sessions(backend)
    found["names"] = project.names()
    return found


def end_interrupted_sessions(backend: str) -> None:
    """End the statements of closed connections, which a server executes to their end.

    The sleep of one session would block the next transaction, and be open when the test ends.
    """
    from django.db import connection

    sessions, end = STILL_EXECUTING[backend]

    def still_executing() -> list[int]:
        cursor.execute(sessions)
        return [int(session) for (session,) in cursor.fetchall()]

    with connection.cursor() as cursor:
        for session in still_executing():
            # The session may have ended: MariaDB then raises "Unknown thread id".
            with contextlib.suppress(OperationalError):
                cursor.execute(end.format(session))
        wait_until(lambda: not still_executing(), within=20)


def main() -> None:
    """Interrupt calls, and write what is left."""
    backend = configure(sys.argv[1], use_tz=True)
    project = Project()
    from django.db import connection

    with connection.cursor() as cursor:
        for statement in INTERRUPTIONS[backend]:
            cursor.execute(statement)
    errors = (Timeout(), KeyboardInterrupt(), SoftTimeLimitExceeded())
    json.dump([interrupted(project, backend, error) for error in errors], sys.stdout)


if __name__ == "__main__":
    main()
