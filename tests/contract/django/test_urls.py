"""``django://ALIAS`` names a database of Django's settings."""

from importlib.util import find_spec

import pytest
from sqlalchemy import make_url

from celery_dynbeat import ConfigurationError
from celery_dynbeat.db import alias_of
from celery_dynbeat.db.django_databases import address_in

MYSQL = "mysql+pymysql" if find_spec("MySQLdb") is None else "mysql+mysqldb"


@pytest.mark.parametrize(
    ("database", "url", "arguments"),
    [
        (
            {"ENGINE": "django.db.backends.sqlite3", "NAME": "/srv/db.sqlite3"},
            "sqlite:////srv/db.sqlite3",
            {},
        ),
        (
            {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": "file:memorydb_default?mode=memory&cache=shared",
                "OPTIONS": {"timeout": 30, "transaction_mode": "IMMEDIATE"},
            },
            "sqlite:///file:memorydb_default?mode=memory&cache=shared&uri=true",
            {},
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
            {},
        ),
        (
            {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": "",
                "OPTIONS": {"service": "app", "passfile": ".pgpass", "isolation_level": 3},
            },
            "postgresql+psycopg://",
            {"service": "app", "passfile": ".pgpass"},
        ),
        (
            {
                "ENGINE": "django.db.backends.postgresql",
                "OPTIONS": {"assume_role": "my app", "options": "-c search_path=app"},
            },
            "postgresql+psycopg://?options=-c%20search_path%3Dapp%20-c%20role%3Dmy%5C%20app",
            {},
        ),
        ({"ENGINE": "tests.support.django_backend", "NAME": "db"}, "sqlite:///db", {}),
        (
            {
                "ENGINE": "django.db.backends.mysql",
                "NAME": "app",
                "USER": "u",
                "HOST": "/run/mysqld.sock",
                "OPTIONS": {"ssl": {"ca": "/ca.pem"}, "isolation_level": "serializable"},
            },
            f"{MYSQL}://u@/app",
            {"ssl": {"ca": "/ca.pem"}, "unix_socket": "/run/mysqld.sock"},
        ),
    ],
    ids=[
        "sqlite",
        "sqlite-in-memory",
        "postgresql",
        "postgresql-service",
        "postgresql-role",
        "extended",
        "mysql",
    ],
)
def test_the_place_is_that_of_the_database(database, url, arguments):
    place = address_in(database)

    assert place.url == make_url(url)
    assert place.connect_args == arguments


def test_an_engine_that_is_not_supported_is_named():
    with pytest.raises(ConfigurationError, match=r"the ENGINE 'django\.db\.backends\.oracle'"):
        address_in({"ENGINE": "django.db.backends.oracle"})


@pytest.mark.parametrize(
    ("url", "alias"),
    [
        ("django://default", "default"),
        ("django://", "default"),
        ("DJANGO://billing/", "billing"),
        ("sqlite:///django", None),
    ],
)
def test_a_url_names_an_alias(url, alias):
    assert alias_of(url) == alias
