"""A Django project that uses the API inside ``transaction.atomic()``, in a separate process.

    python -m tests.support.django_project URL USE_TZ

Writes what it saw as JSON. A URL of MySQL or MariaDB names the driver that Django uses.
"""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import contextmanager, suppress
from typing import Any

from celery import Celery
from django.conf import settings
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError

from celery_dynbeat import ConfigurationError, Dynbeat, DynbeatError, Every

#: Django's own behaviour that a borrowed connection must not change.
PROBES = {
    "sqlite": ("SELECT 'ab' REGEXP 'b', NULL REGEXP 'b'", [1, None]),
    "postgresql": ("SELECT CAST('{\"a\": 1}' AS jsonb), 1", ['{"a": 1}', 1]),
    "mysql": ("SELECT CAST('1:02:03' AS TIME) = '1:02:03', 1", [1, 1]),
}
#: What makes the database refuse the last statement of create().
REFUSALS = {
    "sqlite": (
        (
            "CREATE TRIGGER refuse BEFORE INSERT ON dynbeat_change WHEN NEW.name LIKE 'refused%'"
            " BEGIN SELECT RAISE(ABORT, 'no'); END"
        ),
    ),
    "postgresql": (
        (
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'no'; END $$"
        ),
        (
            "CREATE TRIGGER refuse BEFORE INSERT ON dynbeat_change FOR EACH ROW"
            " WHEN (NEW.name LIKE 'refused%') EXECUTE FUNCTION refuse()"
        ),
    ),
    "mysql": (
        (
            "CREATE TRIGGER refuse BEFORE INSERT ON dynbeat_change FOR EACH ROW BEGIN"
            " IF NEW.name LIKE 'refused%' THEN SIGNAL SQLSTATE '45000'; END IF; END"
        ),
    ),
}


def run_project(module: str, *arguments: str) -> dict[str, Any]:
    """Return the JSON that the program ``module`` writes: a process has one Django project."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def seen_by_project(url: str, *, use_tz: bool = True) -> dict[str, Any]:
    """Return what the project saw with its tables at ``url``."""
    return run_project("tests.support.django_project", url, json.dumps(use_tz))


def use_pymysql() -> None:
    """Let Django use PyMySQL in place of mysqlclient, as PyMySQL documents it."""
    import pymysql

    # The version of mysqlclient that Django requires.
    setattr(pymysql, "version_info", (2, 2, 7, "final", 0))  # noqa: B010
    pymysql.install_as_MySQLdb()


def entry_of(url: str) -> dict[str, Any]:
    """Return the entry of DATABASES for ``url``."""
    at = make_url(url)
    backend = at.get_backend_name().replace("mariadb", "mysql")
    if at.get_driver_name() == "pymysql":
        use_pymysql()
    where = {
        "NAME": at.database,
        "USER": at.username,
        "PASSWORD": at.password,
        "HOST": at.host,
        "PORT": at.port,
    }
    entry: dict[str, Any] = {key: value for key, value in where.items() if value}
    entry["ENGINE"] = f"django.db.backends.{backend.replace('sqlite', 'sqlite3')}"
    if "unix_socket" in at.query:
        entry["HOST"] = at.query["unix_socket"]
    return entry


def configure(url: str, *, use_tz: bool, **more: Any) -> str:
    """Configure Django with the database at ``url``, and return the name of its backend."""
    import django

    entry = entry_of(url)
    # Not UTC: the tables must not follow it.
    databases = {"default": entry, "other": {**entry, "NAME": f"{entry['NAME']}_other"}}
    settings.configure(DATABASES=databases, USE_TZ=use_tz, TIME_ZONE="Asia/Seoul", **more)
    django.setup()
    return str(entry["ENGINE"]).rpartition(".")[2].replace("sqlite3", "sqlite")


class Project:
    """The application with one model of its own."""

    def __init__(self) -> None:
        from django.db import connection, models

        from celery_dynbeat.django import current_session

        class Report(models.Model):
            name = models.CharField(max_length=20)

            class Meta:
                app_label = "project"

            def __str__(self) -> str:
                return str(self.name)

        self.reports = Report.objects
        with connection.schema_editor() as editor:
            editor.create_model(Report)
        app = Celery("project", broker="memory://", set_as_current=False)
        app.conf.update(
            dynbeat_database_url="django://default",
            dynbeat_create_tables=True,
            dynbeat_notifier="broker",
        )
        self.dynbeat = Dynbeat(app, current_session=current_session)
        self.dynbeat.context.prepare()
        self.mine = self.dynbeat.schedules.for_owner("user:1")
        self.notifications: list[bool] = []
        # Whether Django's transaction has ended when beat is notified.
        notifier: Any = self.dynbeat.context.notifier
        notifier._publish = lambda: self.notifications.append(not connection.in_atomic_block)

    def create(self, name: str, **given: Any) -> Any:
        """Create a report and its schedule in the present transaction."""
        self.reports.create(name=name)
        fields: dict[str, Any] = {"task": "t", "trigger": Every(1), "args": [{"a": 1}]}
        return self.mine.create(name, **fields, tags=["x"], **given)

    def names(self) -> Any:
        """Return the names of the schedules and of the reports."""
        reports = self.reports.order_by("name").values_list("name", flat=True)
        return [each.name for each in self.mine.list()], list(reports)

    def clear(self) -> None:
        """Delete all rows, and forget what was seen."""
        for each in self.mine.list():
            self.mine.delete(each.name)
        self.reports.all().delete()
        self.notifications.clear()


def rolled_back(work: Callable[[], object]) -> None:
    """Do ``work`` in a transaction, or in a savepoint, that fails at its end."""
    from django.db import transaction

    with suppress(LookupError), transaction.atomic():
        work()
        raise LookupError


def joined(project: Project, probe: str) -> dict[str, Any]:
    """Return what commits and rolls back together."""
    from django.db import connection, transaction

    from celery_dynbeat.django import current_session

    found: dict[str, Any] = {}
    with transaction.atomic():
        made = project.create("kept")
        found["during"] = len(project.notifications)
    with transaction.atomic():
        explicit = project.mine.bound(session=current_session())
        read = explicit.update("kept", description="new")
        found["read"] = [read.args, read.tags, read.next_run_at == made.next_run_at]
        found["is_aware"] = read.next_run_at is not None and read.next_run_at.tzinfo is not None
    found["description"] = project.mine.get("kept").description
    rolled_back(lambda: project.create("lost"))
    with transaction.atomic():
        project.create("outer")
        project.create("outer2")
        rolled_back(lambda: project.create("inner"))
        project.create("outer3")
    found["names"] = project.names()
    found["notifications"] = project.notifications.copy()
    with connection.cursor() as cursor:
        cursor.execute(PROBES[probe][0])
        found["probe"] = list(cursor.fetchone())
    return found


def refused(project: Project, probe: str) -> dict[str, Any]:
    """Return what is left of a call that the database refuses in the middle."""
    from django.db import connection, transaction

    with connection.cursor() as cursor:
        for statement in REFUSALS[probe]:
            cursor.execute(statement)
    found: dict[str, Any] = {}
    with transaction.atomic():
        project.create("before")
        try:
            project.create("refused")
        except DBAPIError as error:
            found["error"] = type(error).__name__
        project.create("after")
    found["names"] = project.names()
    return found


def deadlocked(project: Project) -> dict[str, Any]:
    """Return what is left of a transaction that a deadlock ended, and whose error was caught."""
    from django.db import connection, connections, transaction

    for name in ("a", "b"):
        project.create(name)
    project.dynbeat.schedules.create_many(
        {"owner": "user:2", "name": f"n{n}", "task": "t", "trigger": Every(60)} for n in range(300)
    )
    other = connections.create_connection("default")
    other.inc_thread_sharing()
    with other.cursor() as cursor:
        cursor.execute("BEGIN")
        # The transaction with fewer changes is the victim.
        cursor.execute("UPDATE dynbeat_schedule SET description = 'x' WHERE owner = 'user:2'")
        cursor.execute("UPDATE dynbeat_schedule SET description = 'x' WHERE name = 'b'")

        def lock_other() -> None:
            cursor.execute("UPDATE dynbeat_schedule SET description = 'x' WHERE name = 'a'")
            cursor.execute("ROLLBACK")

        found: dict[str, Any] = {}
        thread = threading.Thread(target=lock_other)
        with transaction.atomic():
            project.create("lost")
            project.mine.update("a", description="y")
            thread.start()
            try:
                project.mine.update("b", description="y")
            except DynbeatError as error:
                found["error"] = type(error).__name__
            found["needs rollback"] = connection.needs_rollback
            try:
                project.reports.create(name="half")
            except transaction.TransactionManagementError as error:
                found["next"] = type(error).__name__
        thread.join(20)
    other.close()
    found["names"] = project.names()
    return found


def registered(project: Project) -> dict[str, Any]:
    """Return how many callbacks Django has after the calls of transactions."""
    from django.db import connection, transaction

    def callbacks() -> int:
        return len(connection.run_on_commit)

    found: dict[str, Any] = {}
    with transaction.atomic(durable=True):
        project.mine.list()
        found["reads"] = callbacks()
        for n in range(5):
            project.create(f"n{n}")
            project.mine.list()
        transaction.on_commit(lambda: None, robust=True)
        project.create("n5")
        # And that of the project.
        found["changes"] = callbacks() - 1
        with transaction.atomic():
            project.create("inner0")
            project.create("inner1")
        rolled_back(lambda: project.create("lost"))
        project.create("n6")
        found["savepoint"] = callbacks() - 1
    found["notifications"] = len(project.notifications)
    with transaction.atomic():
        # Django drops the callback of the savepoint, and its session.
        rolled_back(lambda: project.create("lost"))
        found["rolled back"] = callbacks()
        project.create("n7")
    found["later notifications"] = len(project.notifications) - found["notifications"]
    rolled_back(lambda: project.create("lost"))
    with transaction.atomic():
        project.create("n8")
    found["names"] = project.names()[0]
    return found


def mismatched(project: Project) -> dict[str, Any]:
    """Return the errors of calls that do not join the transaction of Django."""
    from functools import partial

    from django.db import transaction

    from celery_dynbeat.django import current_session

    @contextmanager
    def joining(alias: str) -> Any:
        context, before = project.dynbeat.context, project.dynbeat.context.current_session
        context.current_session = partial(current_session, alias)
        yield
        context.current_session = before

    def refused() -> str:
        try:
            project.create("elsewhere")
        except ConfigurationError as error:
            return str(error)
        return ""

    found: dict[str, Any] = {}
    with joining("other"), transaction.atomic(using="other"):
        found["error"] = refused()
    with joining("other"), transaction.atomic():
        found["alias"] = refused()
    with transaction.atomic(using="other"):
        found["other"] = refused()
        with transaction.atomic():
            found["both"] = refused()
            transaction.set_rollback(True)
    transaction.set_autocommit(False)
    found["autocommit"] = refused()
    transaction.rollback()
    transaction.set_autocommit(True)
    found["async"] = asyncio.run(in_event_loop(project.mine.list))
    found["names"] = project.names()[0]
    return found


async def in_event_loop(call: Callable[[], object]) -> str:
    """Return the error of Django that a call raises in an event loop."""
    from django.core.exceptions import SynchronousOnlyOperation

    try:
        call()
    except SynchronousOnlyOperation as error:
        return str(error)
    return ""


def main() -> None:
    """Use the project, and write what it saw."""
    backend = configure(sys.argv[1], use_tz=json.loads(sys.argv[2]))
    project = Project()
    found: dict[str, Any] = {"joined": joined(project, backend)}
    project.clear()
    found["refused"] = refused(project, backend)
    project.clear()
    found["registered"] = registered(project)
    project.clear()
    if backend == "mysql":
        found["deadlocked"] = deadlocked(project)
    if backend == "sqlite":
        found["mismatched"] = mismatched(project)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
