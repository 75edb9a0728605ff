"""A Django project that uses the API inside ``transaction.atomic()``, in a process of its own.

    python -m tests.support.django_project URL USE_TZ

Writes what it saw as JSON.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import django
from celery import Celery
from django.conf import settings
from django.db import connection, models, transaction
from sqlalchemy import make_url

from celery_dynbeat import ConfigurationError, Dynbeat, Every
from celery_dynbeat.django import database_url, session

#: Django's own behaviour that a borrowed connection must not change.
PROBES = {
    "sqlite": ("SELECT 'ab' REGEXP 'b', NULL REGEXP 'b'", [1, None]),
    "postgresql": ("SELECT CAST('{\"a\": 1}' AS jsonb), 1", ['{"a": 1}', 1]),
}


def seen_by_project(url: str, *, use_tz: bool = True) -> dict[str, Any]:
    """Return what the project saw with its tables at ``url``."""
    command = [sys.executable, "-m", "tests.support.django_project", url, json.dumps(use_tz)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def configure(url: str, *, use_tz: bool, **more: Any) -> str:
    """Configure Django with the database at ``url``, and return the probe of its behaviour."""
    at = make_url(url)
    backend = at.get_backend_name()
    database: dict[str, Any] = {
        "ENGINE": f"django.db.backends.{backend.replace('sqlite', 'sqlite3')}"
    }
    where = {"NAME": at.database, "USER": at.username, "HOST": at.host, "PORT": at.port}
    database |= {key: value for key, value in where.items() if value}
    settings.configure(
        DATABASES={"default": database}, USE_TZ=use_tz, TIME_ZONE="Asia/Seoul", **more
    )
    django.setup()
    return backend


class Project:
    """The application with one model of its own."""

    def __init__(self) -> None:
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
            dynbeat_database_url=database_url(),
            dynbeat_create_tables=True,
            dynbeat_notifier="broker",
        )
        dynbeat = Dynbeat(app)
        dynbeat.context.prepare()
        self.mine = dynbeat.schedules.for_owner("user:1")
        self.notifications: list[bool] = []
        # Whether Django's transaction has ended when beat is notified.
        notifier: Any = dynbeat.context.notifier
        notifier._publish = lambda: self.notifications.append(not connection.in_atomic_block)

    def create(self, name: str) -> Any:
        """Create a report and its schedule in the present transaction."""
        self.reports.create(name=name)
        with session() as joined:
            return self.mine.create(
                name, task="t", trigger=Every(1), args=[{"a": 1}], tags=["x"], session=joined
            )

    def names(self) -> Any:
        """Return the names of the schedules and of the reports."""
        reports = self.reports.order_by("name").values_list("name", flat=True)
        return [each.name for each in self.mine.list()], list(reports)


def rolled_back(work: Callable[[], object]) -> None:
    """Do ``work`` in a transaction, or in a savepoint, that fails at its end."""
    with suppress(LookupError), transaction.atomic():
        work()
        raise LookupError


def seen(probe: str) -> dict[str, Any]:
    """Use the project, and return what it saw."""
    project = Project()
    found: dict[str, Any] = {}
    with transaction.atomic():
        made = project.create("kept")
        found["during"] = len(project.notifications)
    with transaction.atomic(), session() as joined:
        read = project.mine.update("kept", description="new", session=joined)
        found["read"] = [read.args, read.tags, read.next_run_at == made.next_run_at]
        found["is_aware"] = read.next_run_at is not None and read.next_run_at.tzinfo is not None
    found["description"] = project.mine.get("kept").description
    rolled_back(lambda: project.create("lost"))
    with transaction.atomic():
        project.create("outer")
        rolled_back(lambda: project.create("inner"))
    found["names"] = project.names()
    found["notifications"] = project.notifications
    try:
        with session():
            pass
    except ConfigurationError as error:
        found["outside"] = str(error)
    with connection.cursor() as cursor:
        cursor.execute(PROBES[probe][0])
        found["probe"] = list(cursor.fetchone())
    return found


if __name__ == "__main__":
    backend = configure(sys.argv[1], use_tz=json.loads(sys.argv[2]))
    json.dump(seen(backend), sys.stdout)
