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

from celery_dynbeat import AsyncDynbeat, ConfigurationError, Dynbeat, Every
from celery_dynbeat.django import current_session
from celery_dynbeat.testing import ManualBeat, delete_rows
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


def asynchronous() -> AsyncDynbeat:
    """Return the AsyncDynbeat of another application with the same database."""
    app = Celery("asynchronous", broker="memory://", set_as_current=False)
    app.conf.dynbeat_database_url = "django://default"
    return AsyncDynbeat(app)


async def names_of_async() -> list[str]:
    """Return the names of all schedules by AsyncDynbeat."""
    return [each.name for each in await asynchronous().schedules.list()]


async def error_of_async() -> str:
    """Return the error of a call of AsyncDynbeat, "" if it succeeded."""
    mine = asynchronous().schedules.for_owner("user:2")
    try:
        await mine.create("asynchronous", task="t", trigger=Every(60))
    except Exception as error:  # noqa: BLE001 - of Django, too
        return str(error)
    return ""


def errors_in_tests(dynbeat: Dynbeat, runner: Any) -> dict[str, str]:
    """Return the errors of calls that would not be in the transaction of their test."""
    from django.db import transaction
    from django.test import SimpleTestCase, TestCase, TransactionTestCase

    found: dict[str, str] = {}

    class Tests(TestCase):
        def test_runner(self) -> None:
            found["asyncio.run"] = asyncio.run(error_of_async())

        async def test_asynchronous(self) -> None:
            found["asynchronous test"] = await error_of_async()

        def test_beat(self) -> None:
            create(dynbeat, "inside")
            try:
                ManualBeat(dynbeat, any_database=True).tick()
            except ConfigurationError as error:
                found["ManualBeat"] = str(error)

    class Simple(SimpleTestCase):
        def test(self) -> None:
            found["unmarked asyncio.run"] = asyncio.run(error_of_async())
            try:
                create(dynbeat, "simple")
            except Exception as error:  # noqa: BLE001 - of Django
                found["unmarked"] = str(error)

        async def test_asynchronous(self) -> None:
            found["unmarked asynchronous test"] = await error_of_async()

    class Committing(TransactionTestCase):
        def test(self) -> None:
            with transaction.atomic():
                create(dynbeat, "committed")
            ManualBeat(dynbeat, any_database=True).tick()
            found["committed"] = ", ".join(names(dynbeat))
            delete_rows(dynbeat)

    for case in (Tests, Simple, Committing):
        tests = runner.test_loader.loadTestsFromTestCase(case)
        result = runner.run_suite(tests)
        assert result.wasSuccessful(), result.errors
    return found


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
    found["errors"] = errors_in_tests(dynbeat, runner)
    found["leaked"] = names(dynbeat)
    create(dynbeat, "outside")
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
    app.conf.update(
        beat_scheduler="dynbeat",
        dynbeat_database_url="django://default",
        dynbeat_notifier="polling",
    )
    dynbeat = Dynbeat(app, current_session=current_session)
    installed = ["django.contrib.contenttypes", "django.contrib.auth", "celery_dynbeat.django"]
    configure(sys.argv[1], use_tz=True, INSTALLED_APPS=installed, SECRET_KEY="of a test")
    printed = [StringIO(), StringIO()]
    for output in printed:
        call_command("migrate", stdout=output)
    found: dict[str, Any] = {
        "migrate": ["Applying dynbeat.0001" in each.getvalue() for each in printed]
    }
    found["checked"] = checked()
    create(dynbeat, "real")
    within_tests(dynbeat, found)
    found["real"] = names(dynbeat)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
