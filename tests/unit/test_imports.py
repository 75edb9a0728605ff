"""Which modules a process imports: they determine its memory and its start-up time.

Only extras, the code of subcommands, and what a setting turns on are imported where they are used.
"""

import subprocess
import sys

import pytest

import celery_dynbeat
from celery_dynbeat import api as client
from celery_dynbeat import triggers


@pytest.mark.parametrize("package", [celery_dynbeat, client, triggers])
def test_every_public_name_can_be_imported(package):
    assert all(getattr(package, name) for name in package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        _ = package.missing
    assert set(package.__all__) <= set(dir(package))


def test_the_command_line_of_celery_imports_no_database():
    command = [sys.executable, "-c", "import celery_dynbeat.cli, sys; print(*sys.modules)"]
    modules = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()

    assert "celery_dynbeat.cli" in modules
    assert "sqlalchemy" not in modules


def test_the_help_of_the_commands_imports_neither_rich_nor_the_code_of_commands(tmp_path):
    (tmp_path / "proj.py").write_text(PROJECT)
    code = (
        "import sys; import proj; from celery_dynbeat.cli import dynbeat; import click;"
        " context = click.Context(dynbeat);"
        " [dynbeat.get_command(context, name) for name in dynbeat.list_commands(context)];"
        " print(*sys.modules)"
    )
    command = [sys.executable, "-c", code]
    process = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    modules = process.stdout.split()

    assert "celery_dynbeat.cli.maintenance" in modules
    assert not {"rich", "alembic", "celery_dynbeat.beat.pruning"} & set(modules)


PROJECT = """
from celery import Celery
from celery_dynbeat import Dynbeat
app = Celery("proj", broker="memory://")
dynbeat = Dynbeat(app)
"""


OFF = """
import sys, threading
from celery import Celery
from celery.apps.worker import Worker
from celery_dynbeat import Dynbeat
from celery_dynbeat.beat.scheduler import DatabaseScheduler

app = Celery(broker="memory://", set_as_current=False)
app.conf.update(dynbeat_database_url="sqlite://")
Dynbeat(app)
beat = DatabaseScheduler(app, lazy=True)
beat.max_interval = 0.01
beat.tick()
Worker(app=app, pool_cls="solo")
print("prometheus_client" in sys.modules)
assert "celery_dynbeat.api.forecast" not in sys.modules
print(any("serve_forever" in each.name for each in threading.enumerate()))
from celery_dynbeat.telemetry import events
from celery_dynbeat.telemetry import has_listeners
print(has_listeners(events.NotificationReceived))
beat.close()
"""


def test_without_the_setting_metrics_cost_no_import_thread_or_receiver():
    command = [sys.executable, "-c", OFF]
    process = subprocess.run(command, check=True, capture_output=True, text=True)

    assert process.stdout.split() == ["False"] * 3


#: Packages of extras, of the command line and of migrations. Not dateutil, django, greenlet and
#: yaml: Celery, kombu and SQLAlchemy import those wherever they are installed.
RARE = {
    *("aiosqlite", "alembic", "apprise", "ephem", "flower", "mako", "opentelemetry"),
    *("prometheus_client", "rich", "sentry_sdk"),
}
#: Own modules that a process imports only with a setting, or for what it does now and then.
RARE_IN_BEAT = (
    *("celery_dynbeat.cli.", "celery_dynbeat.metrics"),
    "celery_dynbeat.db.django_databases",
)
RARE_IN_WORKER = (
    *("celery_dynbeat.beat", "celery_dynbeat.cli.", "celery_dynbeat.metrics"),
    *("celery_dynbeat.db.django_databases", "celery_dynbeat.worker.ping"),
)

APPLICATION = """
import sys
from celery import Celery
app = Celery("proj", broker="memory://", set_as_current=False)
app.conf.update(dynbeat_database_url={url!r}, result_expires=None, **{settings!r})
from celery_dynbeat import Dynbeat
dynbeat = Dynbeat(app)
"""
CREATE = """
from celery_dynbeat import Every
dynbeat.schedules.for_owner("").create("poll", task="poll", trigger=Every(1))
"""
TICK = """
import time
from sqlalchemy import text
from celery_dynbeat.beat.scheduler import DatabaseScheduler

def sent():
    query = text("SELECT count(*) FROM dynbeat_run WHERE status = 'sent'")
    return dynbeat.context.database.read(lambda session: session.scalar(query))

beat = DatabaseScheduler(app, lazy=True)
beat.max_interval = 0.01
before, deadline = sent(), time.monotonic() + 20
while sent() == before and time.monotonic() < deadline:
    beat.tick()
assert sent() > before
print(*sys.modules)
beat.close()
"""
START_WORKER = """
worker = app.WorkController(pool="solo")
worker.dynbeat.start(worker)
print(*sys.modules)
worker.dynbeat._on_worker_shutdown(worker)
"""


@pytest.fixture(scope="module")
def process_modules(tmp_path_factory):
    """Return a function that runs code after ``Dynbeat(app)``, and returns the printed modules.

    The database has its tables, and one schedule that is due every second.
    """
    url = f"sqlite:///{tmp_path_factory.mktemp('imports')}/dynbeat.db"

    def run(code, **settings):
        command = [sys.executable, "-c", APPLICATION.format(url=url, settings=settings) + code]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return set(output.split())

    run(CREATE)
    return run


def own(modules):
    return {each for each in modules if each.partition(".")[0] == "celery_dynbeat"}


def rare(modules):
    return {each.partition(".")[0] for each in modules} & RARE


def test_the_first_call_imports_only_the_dialect_and_the_driver(process_modules):
    calls = CREATE.replace("create(", "upsert(") + 'dynbeat.schedules.list(owner_prefix="user:")'
    added = process_modules(f"before = set(sys.modules){calls}\nprint(*set(sys.modules) - before)")

    assert not rare(added)
    assert own(added) <= {"celery_dynbeat.db.dialects.sqlite"}
    assert "celery_dynbeat.api.owner" not in added


def test_a_beat_that_sends_runs_imports_no_rare_modules(process_modules):
    modules = process_modules(TICK)

    assert "celery_dynbeat.triggers.every" in modules
    assert not rare(modules)
    assert not {each for each in own(modules) if each.startswith(RARE_IN_BEAT)}


def test_a_worker_imports_few_modules(process_modules):
    modules = process_modules(START_WORKER)

    assert "celery_dynbeat.worker.task_guard" in modules
    assert not rare(modules)
    assert not {each for each in own(modules) if each.startswith(RARE_IN_WORKER)}
