"""A Django project whose tests run in Django's test databases, in a separate process.

    python -m tests.support.django_test_run URL

Writes what it saw as JSON.
"""

import asyncio
import json
import sys
from io import StringIO
from typing import Any

from celery import Celery, current_app
from django.core.management import call_command

from celery_dynbeat import AsyncDynbeat, Dynbeat, Every
from celery_dynbeat.django import current_session
from tests.support.django_project import configure, run_project


def seen_by_tests(url: str) -> dict[str, Any]:
    """Return what the tests of a project with the database ``url`` saw."""
    return run_project("tests.support.django_test_run", url)


def create(dynbeat: Dynbeat, name: str) -> None:
    """Create a schedule."""
    dynbeat.schedules.for_owner("user:1").create(name, task="t", trigger=Every(60))


def names(dynbeat: Dynbeat) -> list[str]:
    """Return the names of all schedules."""
    return [each.name for each in dynbeat.schedules.list()]


async def names_of_async() -> list[str]:
    """Return the names of all schedules by AsyncDynbeat."""
    app = Celery("asynchronous", broker="memory://", set_as_current=False)
    app.conf.dynbeat_database_url = "django://default"
    return [each.name for each in await AsyncDynbeat(app).schedules.list()]


def without_test_database(dynbeat: Dynbeat, runner: Any) -> list[str]:
    """Return the errors of a test that has no test database and creates a schedule."""
    from django.test import SimpleTestCase

    from celery_dynbeat.django.apps import check_application

    class Test(SimpleTestCase):
        def test(self) -> None:
            create(dynbeat, "simple")

    # The runner checks before the tests.
    assert check_application() == []
    result = runner.run_suite(runner.test_loader.loadTestsFromTestCase(Test))
    return [text for _, text in (*result.errors, *result.failures)]


def within_tests(dynbeat: Dynbeat, found: dict[str, Any]) -> None:
    """Use the API as tests do, in the test databases of two processes."""
    from django.db import connection
    from django.test import TestCase
    from django.test.runner import DiscoverRunner

    runner = DiscoverRunner(verbosity=0, interactive=False, parallel=2)
    runner.setup_test_environment()
    found["refused"] = without_test_database(dynbeat, runner)
    old = runner.setup_databases(aliases={"default"})
    found["tables"] = names(dynbeat)
    create(dynbeat, "outside")

    class Test(TestCase):
        def test(self) -> None:
            create(dynbeat, "earlier")
            with self.captureOnCommitCallbacks(execute=True) as callbacks:
                create(dynbeat, "inside")
            found["callbacks"] = len(callbacks)
            found["inside"] = names(dynbeat)

    found["failures"] = runner.run_suite(runner.test_loader.loadTestsFromTestCase(Test)).failures
    found["after"] = names(dynbeat)
    connection.close()
    found["async"] = asyncio.run(names_of_async())
    # A process of parallel tests uses a clone.
    settings = connection.settings_dict
    before = settings.copy()
    connection.close()
    settings.update(connection.creation.get_test_db_clone_settings("1"))
    found["clone"] = names(dynbeat)
    connection.close()
    settings.update(before)
    runner.teardown_databases(old)
    runner.teardown_test_environment()


def checked() -> list[str]:
    """Return the errors of ``manage.py check`` for an application with an unknown alias."""
    from celery_dynbeat.django.apps import check_application

    before: Celery = current_app._get_current_object()
    other = Celery("other", broker="memory://")
    other.conf.dynbeat_database_url = "django://typo"
    Dynbeat(other)
    found = [str(each.msg) for each in check_application()]
    before.set_current()
    return found


def main() -> None:
    """Use the project before, in and after its tests."""
    app = Celery("project", broker="memory://")
    app.conf.update(dynbeat_database_url="django://default", dynbeat_notifier="polling")
    dynbeat = Dynbeat(app, current_session=current_session)
    installed = ["django.contrib.contenttypes", "django.contrib.auth", "celery_dynbeat.django"]
    configure(sys.argv[1], use_tz=True, INSTALLED_APPS=installed, SECRET_KEY="of a test")
    printed = [StringIO(), StringIO()]
    for output in printed:
        call_command("migrate", stdout=output)
    found: dict[str, Any] = {
        "migrate": ["Upgraded the tables" in each.getvalue() for each in printed]
    }
    found["checked"] = checked()
    create(dynbeat, "real")
    within_tests(dynbeat, found)
    found["real"] = names(dynbeat)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
