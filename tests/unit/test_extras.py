"""A feature whose packages are not installed names the extra that it lacks.

One process hides the optional packages and tries each feature.
"""

import json
import subprocess
import sys

import pytest

HIDDEN = (
    *("MySQLdb", "aiomysql", "aiosqlite", "apprise", "django", "ephem", "flower", "greenlet"),
    *("opentelemetry", "prometheus_client", "psycopg", "psycopg2", "pymysql", "redis"),
    *("sentry_sdk", "tornado"),
)

TRY_ALL = """
import json
import sys
from importlib.abc import MetaPathFinder

class Hidden(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())

from celery import Celery
from celery_dynbeat import Dynbeat, Solar

def new(url="sqlite://", broker="memory://", **settings):
    app = Celery("proj", broker=broker, set_as_current=False)
    app.conf.update(dynbeat_database_url=url, result_expires=None, **settings)
    return Dynbeat(app)

def listed(url):
    new(url).schedules.list()

def beat(**settings):
    from celery_dynbeat.beat.scheduler import DatabaseScheduler
    scheduler = DatabaseScheduler(new(**settings).app, lazy=True)
    scheduler.max_interval = 0.01
    try:
        scheduler.tick()
    finally:
        scheduler.close()

def worker(**settings):
    new(**settings).app.WorkController(pool="solo")

def all_names():
    exec("from celery_dynbeat import *", {{}})

def django():
    import celery_dynbeat.django

def flower():
    from celery_dynbeat.cli import dynbeat
    dynbeat(["flower"], standalone_mode=False)

def error_of(feature):
    try:
        feature()
    except Exception as error:
        return f"{{type(error).__name__}}: {{error}}"

FEATURES = {{
    "postgresql": lambda: listed("postgresql://host/name"),
    "postgres": lambda: listed("postgres://host/name"),
    "postgresql+psycopg": lambda: listed("postgresql+psycopg://host/name"),
    "notifier": lambda: beat(dynbeat_notifier="postgresql"),
    "mysql": lambda: listed("mysql://host/name"),
    "mariadb": lambda: listed("mariadb+pymysql://host/name"),
    "django url": lambda: listed("django://default"),
    "django": django,
    "redis": lambda: beat(broker="redis://127.0.0.1:1/0"),
    "redis with a password": lambda: beat(broker="redis://:secret@127.0.0.1:1/0"),
    "beat metrics": lambda: beat(dynbeat_metrics=0),
    "solar": lambda: Solar("sunrise", latitude=37.5, longitude=127),
    "flower": flower,
    "all names": all_names,
    "nothing": lambda: (beat(), worker(), listed("sqlite://")),
}}
print(json.dumps({{name: error_of(feature) for name, feature in FEATURES.items()}}))
"""


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    """Return the error of each feature, None for a feature that works."""
    command = [sys.executable, "-c", TRY_ALL.format(hidden=set(HIDDEN))]
    process = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=tmp_path_factory.mktemp("extras")
    )
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("feature", "extra"),
    [
        *(("postgresql", "postgres"), ("postgres", "postgres"), ("postgresql+psycopg", "postgres")),
        *(("mysql", "mysql"), ("mariadb", "mysql")),
        *(("django url", "django"), ("django", "django")),
        *(("redis", "redis"), ("redis with a password", "redis")),
        ("beat metrics", "metrics"),
        *(("solar", "solar"), ("flower", "flower")),
    ],
)
def test_a_feature_names_the_extra_that_it_lacks(errors, feature, extra):
    assert f"celery-dynbeat[{extra}]" in (errors[feature] or "")


def test_the_error_of_a_broker_has_no_password(errors):
    assert "secret" not in errors["redis with a password"]


def test_all_names_can_be_imported_without_any_extra(errors):
    assert errors["all names"] is None


def test_beat_worker_and_api_work_without_any_extra(errors):
    assert errors["nothing"] is None
