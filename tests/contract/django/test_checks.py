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
from tests.support.django_project import configure

app = Celery("project", broker="memory://")
app.conf.dynbeat_database_url = sys.argv[1]
dynbeat = Dynbeat(app)
configure("sqlite:///never-created.sqlite3", use_tz=True, INSTALLED_APPS=["celery_dynbeat.django"])
json.dump([each.msg for each in run_checks()], sys.stdout)
"""


def errors_with(url):
    command = [sys.executable, "-c", PROJECT, url]
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
    assert errors_with(url) == errors
