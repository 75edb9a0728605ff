"""With beat and a prefork worker as real processes, each run is one check-in."""

import json
from datetime import timedelta
from uuid import UUID

import pytest

from celery_dynbeat import Every
from tests.support.waiting import wait_until


@pytest.fixture
def monitored(file_site):
    """Return an installation whose processes report their runs to a file."""
    file_site.config |= {
        "dynbeat_node_timeout": 3,
        "imports": ["tests.support.sentry_processes"],
        "check_in_file": str(file_site.folder / "check-ins"),
    }
    return file_site


@pytest.fixture
def run_now(monitored):
    """Return a function that starts a run of a task, and returns its id."""
    application = monitored.dynbeat.schedules.for_owner("")

    def start(task, **kwargs):
        hourly = Every(timedelta(hours=1))
        application.upsert("nightly", task=task, kwargs=kwargs, trigger=hourly)
        return application.run_now("nightly").id

    return start


@pytest.fixture
def check_ins(monitored):
    """Return a function that returns the check-ins of a run."""
    file = monitored.folder / "check-ins"

    def of(run_id):
        lines = file.read_text().splitlines() if file.exists() else ()
        found = [json.loads(line) for line in lines]
        return [each for each in found if each["check_in_id"] == UUID(run_id).hex]

    return of


def statuses(found):
    return [each["status"] for each in found]


def test_a_pool_process_reports_the_start_and_the_end(monitored, run_now, check_ins):
    monitored.beat()
    # Each task ends its pool process: its check-ins must not get lost.
    worker = monitored.worker("--max-tasks-per-child", "1")
    run_id = run_now("probe.record")

    found = wait_until(lambda: len(check_ins(run_id)) == 2 and check_ins(run_id), within=30)

    assert statuses(found) == ["in_progress", "ok"]
    assert worker.pid not in {each["pid"] for each in found}


def test_beat_ends_the_check_in_of_a_lost_run(monitored, run_now, check_ins):
    beat = monitored.beat()
    worker = monitored.worker()
    run_id = run_now("probe.hold", gate=str(monitored.gate("hold")))
    wait_until(lambda: statuses(check_ins(run_id)) == ["in_progress"], within=30)
    worker.kill()

    found = wait_until(lambda: len(check_ins(run_id)) == 2 and check_ins(run_id), within=30)

    assert statuses(found) == ["in_progress", "error"]
    assert found[1]["pid"] == beat.pid
