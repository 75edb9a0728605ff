"""``manage.py check`` and ``migrate`` report settings with which there are no schedules."""

import json
import subprocess
import sys

import pytest

PROJECT = """
import json, sys
from celery import Celery
from django.core.checks import run_checks
from celery_dynbeat import Dynbeat
from celery_dynbeat.django import current_session
from tests.support.django_project import configure

app = Celery("project", broker="memory://")
app.conf.dynbeat_database_url = sys.argv[1]
dynbeat = Dynbeat(app, current_session=current_session if "join" in sys.argv else None)
configure("sqlite:///never-created.sqlite3", use_tz=True, INSTALLED_APPS=["celery_dynbeat.django"])
json.dump([each.msg for each in run_checks()], sys.stdout)
"""


def errors_with(url, *arguments):
    command = [sys.executable, "-c", PROJECT, url, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
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
        ("django://other", []),
    ],
)
def test_a_database_that_cannot_be_found_is_an_error(url, errors):
    assert errors_with(url, "join") == errors


@pytest.mark.parametrize(("url", "count"), [("django://default", 1), ("sqlite:///other.db", 0)])
def test_calls_that_do_not_join_transactions_of_their_database_are_a_warning(url, count):
    warnings = errors_with(url)

    assert [each[:40] for each in warnings] == ["calls of dynbeat do not join transaction"] * count
