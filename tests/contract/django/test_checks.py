"""``manage.py check`` and ``migrate`` report settings with which there are no schedules."""

import json
import os
import subprocess
import sys

import pytest

PROJECT = """
import json, os, sys
from functools import partial
from celery import Celery
from django.core import checks
from django.core.checks import run_checks
from celery_dynbeat import Dynbeat
from celery_dynbeat.django import current_session
from tests.support.django_project import configure

app = Celery("project", broker="memory://")
app.conf.dynbeat_database_url = sys.argv[1]
app.conf.dynbeat_create_tables = False if "no rights" in sys.argv else None
schedulers = {"theirs": "django", "unset": "celery.beat:PersistentScheduler"}
schedulers |= {each: each for each in sys.argv if "dynbeat" in each and "sql" not in each}
named = [each for name, each in schedulers.items() if name in sys.argv]
app.conf.beat_scheduler = named[0] if named else "other:Scheduler"
joins = {"join": current_session, "other": partial(current_session, using="other")}
joined = [function for name, function in joins.items() if name in sys.argv]
dynbeat = Dynbeat(app, current_session=joined[0] if joined else None)

class Router:
    def db_for_read(self, model, **hints):
        return "other" if model._meta.app_label == "dynbeat" else None

more = [each for each in sys.argv if each in {"django_celery_beat", "shop"}]
configure(
    f"sqlite:///{os.environ['FOLDER']}/project.sqlite3",
    use_tz=True,
    INSTALLED_APPS=["celery_dynbeat" if "short" in sys.argv else "celery_dynbeat.django", *more],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    DATABASE_ROUTERS=[Router()] if "router" in sys.argv else [],
    TENANT_APPS=["celery_dynbeat.django"] if "tenants" in sys.argv else [],
)
if "tables" in sys.argv:
    from django.core.management import execute_from_command_line
    execute_from_command_line(["manage.py", "migrate", "--verbosity", "0"])
databases = ["default"] if {"tables", "no tables"} & {*sys.argv} else None
if "django_celery_beat" in sys.argv and "other" not in sys.argv:
    # Its admin does it.
    from django_celery_beat.utils import is_database_scheduler
    assert not is_database_scheduler(app.conf.beat_scheduler)
found = [each for each in run_checks(databases=databases) if each.id.startswith("dynbeat.")]
if "hints" in sys.argv:
    found = [checks.Warning(each.hint) for each in found]
json.dump([each.msg if each.obj is None else str(each.obj) for each in found], sys.stdout)
"""


MODELS = """
from django.db import models
from celery_dynbeat.django.models import Schedule

class Report(models.Model):
    owner = models.CharField(max_length=255)
    key = models.ForeignKey("dynbeat.Schedule", models.CASCADE)
    one = models.OneToOneField("dynbeat.Run", models.CASCADE)
    many = models.ManyToManyField(Schedule, related_name="+")
    free = models.ForeignKey(Schedule, models.DO_NOTHING, db_constraint=False, related_name="+")

class Child(Schedule):
    pass

class Proxy(Schedule):
    class Meta:
        proxy = True
"""


def errors_with(url, *arguments, folder=None):
    # Models of django-celery-beat emit deprecation warnings.
    command = [sys.executable, "-W", "ignore", "-c", PROJECT, url, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(folder or ""), "FOLDER": str(folder or "")}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


UNKNOWN_ALIAS = (
    "django://reports: DATABASES has no alias 'reports'; write django://default or django://other,"
    " or add the alias"
)
NO_URL = (
    "dynbeat_database_url is not a URL that SQLAlchemy understands (ArgumentError): write it like"
    " postgresql+psycopg://user@host/database, or django://default in Django"
)


@pytest.mark.parametrize(
    ("url", "errors"),
    [
        ("django://reports", [UNKNOWN_ALIAS]),
        ("django:default", [NO_URL]),
        (
            "django://other",
            ["the schedules are in 'other', and the admin reads them from 'default'"],
        ),
    ],
)
def test_a_database_that_cannot_be_found_is_an_error(url, errors):
    assert errors_with(url, "other") == errors


@pytest.mark.parametrize(("url", "count"), [("django://default", 1), ("sqlite:///other.db", 0)])
def test_calls_that_do_not_join_transactions_of_their_database_are_a_warning(url, count):
    warnings = errors_with(url)

    assert [each[:40] for each in warnings] == ["calls of dynbeat do not join transaction"] * count


def test_a_constraint_on_a_table_of_dynbeat_is_an_error_of_its_field(tmp_path):
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "models.py").write_text(MODELS)

    errors = errors_with("sqlite:///other.db", "shop", folder=tmp_path)

    fields = ["Child.schedule_ptr", "Report.key", "Report.many", "Report.one"]
    assert sorted(errors) == [f"shop.{each}" for each in fields]


@pytest.mark.parametrize(
    ("scheduler", "count"),
    [
        ("dynbeat", 1),
        ("celery_dynbeat:DatabaseScheduler", 1),
        ("celery_dynbeat.beat.scheduler.DatabaseScheduler", 1),
        ("other", 0),
    ],
)
def test_django_celery_beat_without_effect_is_a_warning(scheduler, count):
    """Its admin imports the name of the scheduler, which the project does here."""
    warnings = errors_with("sqlite:///other.db", "django_celery_beat", scheduler)

    assert [each[:31] for each in warnings] == ["django_celery_beat is installed"] * count


@pytest.mark.parametrize(
    ("arguments", "begin"),
    [
        (["django://default", "other"], "current_session joins transactions of 'other'"),
        (["django://other", "join"], "current_session joins transactions of 'default'"),
        (["django://other", "other"], "the schedules are in 'other', and the admin reads"),
        (["django://other", "other", "router"], None),
        (["django://default", "join", "unset"], "beat_scheduler is not set"),
        (["django://default", "join", "theirs"], "beat_scheduler = 'django'"),
        (["sqlite:///dynbeat.sqlite3"], "dynbeat_database_url is not set"),
        (["django://default", "join", "tenants"], "the app of dynbeat is in TENANT_APPS"),
        # By the name of the package, it is the same app.
        (["django://reports", "short"], "django://reports: DATABASES has no alias"),
    ],
)
def test_each_setting_that_leaves_schedules_without_effect_is_reported(arguments, begin):
    reported = errors_with(*arguments)

    assert [each[: len(begin or "")] for each in reported][-1:] == ([begin] if begin else [])


def test_tables_that_are_missing_are_a_warning_of_a_check_of_the_database(tmp_path):
    missing = errors_with("django://default", "join", "no tables", folder=tmp_path)
    (text,) = missing
    assert "has no tables" in text

    assert errors_with("django://default", "join", "tables", folder=tmp_path) == []


def test_the_hint_for_missing_tables_names_what_creates_them(tmp_path):
    project = ("django://default", "join", "no tables", "hints")

    assert errors_with(*project, folder=tmp_path) == [
        "`manage.py migrate` creates and upgrades them"
    ]
    # There, the command in the text of the warning creates them.
    assert errors_with(*project, "no rights", folder=tmp_path) == [None]
