"""Calls with ``session()`` commit and roll back with Django's ``transaction.atomic()``."""

import pytest
from sqlalchemy import make_url

from celery_dynbeat import ConfigurationError
from celery_dynbeat.django.urls import url_of
from tests.support.django_project import PROBES, seen_by_project

pytestmark = pytest.mark.empty_database


@pytest.fixture(
    params=[("sqlite", True), ("postgresql", True), ("postgresql", False)],
    ids=["sqlite", "postgresql", "postgresql-without-use-tz"],
    scope="module",
)
def backend(request):
    return request.param


@pytest.fixture
def seen(request, backend):
    name, use_tz = backend
    return name, seen_by_project(request.getfixturevalue(f"{name}_url"), use_tz=use_tz)


def test_a_schedule_commits_and_rolls_back_with_the_rows_of_the_project(seen):
    name, found = seen

    assert found["names"] == [["kept", "outer"]] * 2
    assert found["description"] == "new"
    # Beat is notified after each of the three commits, and never of what was rolled back.
    assert found["during"] == 0
    assert found["notifications"] == [True] * 3
    assert found["read"] == [[{"a": 1}], ["x"], True]
    assert found["is_aware"]
    assert found["outside"].startswith("session() joins a transaction: call it inside")
    assert found["probe"] == PROBES[name][1]


@pytest.mark.parametrize(
    ("database", "url"),
    [
        (
            {"ENGINE": "django.db.backends.sqlite3", "NAME": "/srv/db.sqlite3"},
            "sqlite:////srv/db.sqlite3",
        ),
        (
            {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": "app",
                "USER": "u",
                "PASSWORD": "p@/:w",
                "HOST": "db",
                "PORT": "5433",
                "OPTIONS": {"sslmode": "require", "pool": True},
            },
            "postgresql+psycopg://u:p%40%2F%3Aw@db:5433/app?sslmode=require",
        ),
        (
            {"ENGINE": "django.db.backends.mysql", "NAME": "app", "USER": "u"},
            "mysql+pymysql://u@/app",
        ),
    ],
    ids=["sqlite", "postgresql", "mysql"],
)
def test_the_url_is_that_of_the_database(database, url):
    made = url_of(database)

    assert made == make_url(url)
    assert made.render_as_string(hide_password=False) == url


def test_an_engine_that_is_not_supported_is_named():
    with pytest.raises(ConfigurationError, match=r"ENGINE 'django\.db\.backends\.oracle' is not"):
        url_of({"ENGINE": "django.db.backends.oracle"})
