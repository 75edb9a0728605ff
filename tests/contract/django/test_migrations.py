"""``migrate --check`` and ``showmigrations`` know the tables of the package."""

import json
import os
import subprocess
import sys
from importlib import resources

import pytest
from sqlalchemy import make_url

pytestmark = pytest.mark.empty_database

PROJECT = """
import json, sys
from pathlib import Path
from io import StringIO
from celery import Celery
from django.core.management import call_command
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from sqlalchemy import inspect
from celery_dynbeat import Dynbeat
from celery_dynbeat.db import schema
from celery_dynbeat.django import current_session
from tests.support.django_project import configure

app = Celery("project", broker="memory://")
app.conf.dynbeat_database_url = sys.argv[2]
if "prefix" in sys.argv:
    app.conf.dynbeat_table_prefix = "billing_"
dynbeat = Dynbeat(app, current_session=current_session)
shops = ["shop"] if "prefix" in sys.argv else []
configure(sys.argv[1], use_tz=True, INSTALLED_APPS=["celery_dynbeat.django", *shops])

def is_migrated(alias="default"):
    # The exit status of `manage.py migrate --check`.
    try:
        call_command("migrate", check=True, database=alias, verbosity=0)
    except SystemExit:
        return False
    return True

def shown():
    output = StringIO()
    call_command("showmigrations", stdout=output, no_color=True)
    return output.getvalue().split("\\n")[1:-1]

def has_tables(database):
    return inspect(database.engine).has_table("dynbeat_schedule")

def migrated(alias="default"):
    output = StringIO()
    call_command("migrate", database=alias, stdout=output, no_color=True)
    return "Applying dynbeat" in output.getvalue()

if shops:
    call_command("makemigrations", *shops, verbosity=0)
database = dynbeat.context.database
seen = {"before": [is_migrated(), *shown()]}
if "upgraded" in sys.argv:
    schema.upgrade(database)
if "broken" in sys.argv:
    database.check_folder = lambda: 1 / 0
    try:
        migrated()
    except ZeroDivisionError:
        seen["broken"] = [is_migrated(), has_tables(database)]
    del database.check_folder
if "other" in sys.argv:
    seen["other"] = [migrated("other"), is_migrated("other"), has_tables(database), is_migrated()]
seen["applied"] = [migrated(), has_tables(database)]
seen["after"] = [is_migrated(), *shown(), migrated()]
call_command("makemigrations", "dynbeat", check=True, verbosity=0)
historical = MigrationLoader(connection).project_state().apps.get_model("dynbeat", "Schedule")
if "prefix" in sys.argv:
    from shop import models
    both = (historical, models.Proxy)
    seen["placed"] = [[each._meta.db_table, each.objects.count()] for each in both]
    (file,) = Path(models.__file__).parent.glob("migrations/0001*.py")
    seen["migration"] = file.read_text()
if "zero" in sys.argv:
    call_command("migrate", "dynbeat", "zero", verbosity=0)
    seen["zero"] = [is_migrated(), has_tables(database)]
json.dump(seen, sys.stdout)
"""


def seen_by_project(url, *arguments, folder=None):
    command = [sys.executable, "-c", PROJECT, url, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(folder or "")}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("upgraded", [(), ("upgraded",)], ids=["migrate", "schema-upgrade"])
@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "mariadb"])
def test_the_commands_of_django_know_whether_the_tables_are_missing(request, backend, upgraded):
    url = make_url(request.getfixturevalue(f"{backend}_url"))
    url = url.set(drivername="mysql+pymysql") if backend == "mariadb" else url
    text = url.render_as_string(hide_password=False)

    seen = seen_by_project(text, "django://default", "zero", *upgraded)

    assert seen["before"] == [False, " [ ] 0001_first_schema"]
    assert seen["applied"] == [True, True]
    assert seen["after"] == [True, " [X] 0001_first_schema", False]
    # It keeps the tables with their schedules.
    assert seen["zero"] == [False, True]


def test_a_migration_that_fails_stays_unapplied(sqlite_url):
    assert seen_by_project(sqlite_url, "django://default", "broken")["broken"] == [False, False]


def test_the_tables_are_created_in_the_database_of_the_schedules_only(sqlite_url):
    seen = seen_by_project(sqlite_url, "django://default", "other")

    assert seen["other"] == [True, True, False, False]
    assert seen["applied"] == [True, True]


def test_tables_are_created_if_the_project_set_their_database_after_its_migrations(sqlite_url):
    before = seen_by_project(sqlite_url, f"{sqlite_url}_elsewhere")
    after = seen_by_project(sqlite_url, "django://default")

    assert before["applied"] == [True, False]
    assert after["applied"] == [False, True]


PROXY = """
from celery_dynbeat.django.models import Schedule

class Proxy(Schedule):
    class Meta:
        proxy = True
"""


def test_proxies_and_the_models_of_other_migrations_read_the_tables_with_their_prefix(
    sqlite_url, tmp_path
):
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "__init__.py").touch()
    (shop / "models.py").write_text(PROXY)

    seen = seen_by_project(sqlite_url, "django://default", "prefix", folder=tmp_path)

    assert seen["placed"] == [["billing_schedule", 0], ["billing_schedule", 0]]
    # A migration of the project does not depend on the prefix.
    assert "billing" not in seen["migration"]


def test_each_revision_of_the_tables_has_a_migration_of_django():
    def names(package, *folder):
        files = resources.files(package).joinpath(*folder).iterdir()
        return {each.name for each in files if each.name[:1].isdigit()}

    migrations = names("celery_dynbeat.django", "migrations")
    assert migrations == names("celery_dynbeat.db", "migrations", "versions")
