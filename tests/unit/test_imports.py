"""Which modules a process imports: they determine its memory and its start-up time."""

import subprocess
import sys

import pytest

import celery_dynbeat
from celery_dynbeat import api as client
from celery_dynbeat import triggers

LOAD = """
import sys
import celery_dynbeat.beat.scheduler, celery_dynbeat.worker.bootsteps
from celery_dynbeat.db.engine import Database
Database({url!r}).capabilities
print("\\n".join(sys.modules))
"""


def imported(url):
    """Return the modules of a beat or worker process that uses the database at ``url``."""
    command = [sys.executable, "-c", LOAD.format(url=url)]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize(
    ("url", "own", "others"),
    [
        ("postgresql+psycopg://host/name", "postgresql", ("mysql", "sqlite")),
        ("sqlite:///file", "sqlite", ("mysql",)),
    ],
)
def test_the_dialects_of_other_databases_are_not_imported(url, own, others):
    modules = imported(url)

    assert f"sqlalchemy.dialects.{own}" in modules
    assert not {f"sqlalchemy.dialects.{other}" for other in others} & modules


def test_beat_and_worker_do_not_import_alembic():
    assert "alembic" not in imported("postgresql+psycopg://host/name")


WORKER = """
import sys
from celery import Celery
from celery_dynbeat import Dynbeat
app = Celery("proj", broker="memory://")
app.conf.update(dynbeat_database_url="sqlite://", **{settings!r})
Dynbeat(app)
app.WorkController(pool="solo")
print("\\n".join(sys.modules))
"""


@pytest.mark.parametrize(
    ("settings", "is_on"), [({}, False), ({"dynbeat_ping_hosts": ["a"]}, True)]
)
def test_a_worker_imports_the_code_of_pings_only_with_its_setting(settings, is_on):
    command = [sys.executable, "-c", WORKER.format(settings=settings)]
    modules = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()

    assert ("celery_dynbeat.worker.pings" in modules) is is_on
    assert ("celery_dynbeat.worker.ping_client" in modules) is is_on


@pytest.mark.parametrize("package", [celery_dynbeat, client, triggers])
def test_every_public_name_can_be_imported(package):
    assert all(getattr(package, name) for name in package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        _ = package.missing
    assert set(package.__all__) <= set(dir(package))


def test_the_modules_of_a_package_are_attributes():
    code = "import celery_dynbeat as d; print(d.triggers.RRule, d.api.owner, d.beat.scheduler)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_command_line_of_celery_imports_no_database():
    command = [sys.executable, "-c", "import celery_dynbeat.cli, sys; print(*sys.modules)"]
    modules = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()

    assert "celery_dynbeat.cli" in modules
    assert "sqlalchemy" not in modules


@pytest.mark.parametrize(
    "spec", ["rrule.trigger", "solar", "composite.any_of", "composite.excluding"]
)
def test_beat_does_not_import_triggers_that_no_schedule_uses(spec):
    assert f"celery_dynbeat.triggers.{spec}" not in imported("postgresql+psycopg://host/name")


def test_the_help_of_the_commands_imports_neither_rich_nor_sqlalchemy(tmp_path):
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

    assert "celery_dynbeat.cli.prune" in modules
    assert not {"rich", "sqlalchemy", "celery_dynbeat.process.context"} & set(modules)


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
app.conf.update(dynbeat_database_url="sqlite://", **{settings!r})
Dynbeat(app)
beat = DatabaseScheduler(app, lazy=True)
beat.max_interval = 0.01
beat.tick()
Worker(app=app, pool_cls="solo")
print("prometheus_client" in sys.modules)
print(any(each.name.startswith("dynbeat-metrics") for each in threading.enumerate()))
from celery_dynbeat.telemetry import events
from celery_dynbeat.telemetry.emitting import has_listeners
print(has_listeners(events.RunStarted))
beat.close()
"""


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, ["False"] * 3), ({"dynbeat_metrics_port": 0}, ["True"] * 3)],
)
def test_without_the_setting_metrics_cost_no_import_thread_or_receiver(settings, expected):
    command = [sys.executable, "-c", OFF.format(settings=settings)]
    process = subprocess.run(command, check=True, capture_output=True, text=True)

    assert process.stdout.split() == expected
