"""Celery's own fixtures, the memory broker and manual passes, without a server."""

import logging
from datetime import timedelta

import pytest

from celery_dynbeat import Dynbeat, Once
from celery_dynbeat.beat.dispatcher import Dispatcher
from celery_dynbeat.broker.publisher import Publisher
from tests.support.waiting import wait_until

pytestmark = pytest.mark.empty_database


@pytest.fixture(scope="session")
def celery_config():
    return {"broker_url": "memory://"}


@pytest.fixture(scope="session")
def celery_worker_parameters():
    # The ping is a task, and its result needs a result backend.
    return {"perform_ping_check": False}


@pytest.fixture(autouse=True)
def log_level():
    """Restore the level of the root logger, which the worker in this process sets to ERROR."""
    level = logging.root.level
    yield
    logging.root.setLevel(level)


@pytest.fixture
def started():
    return []


@pytest.fixture
def dynbeat(celery_app, sqlite_url, started):
    celery_app.conf.dynbeat_database_url = sqlite_url
    made = Dynbeat(celery_app)

    @celery_app.task(bind=True, name="memory.record")
    def record(self):
        started.append(self.request.id)

    yield made
    made.context.database.dispose()


@pytest.fixture
def dispatcher(dynbeat, celery_app):
    context = dynbeat.context
    context.prepare()
    publisher = Publisher(celery_app)
    yield Dispatcher(
        database=context.database,
        publisher=publisher,
        clock=context.clock,
        settings=context.settings,
    )
    publisher.close()


@pytest.fixture
def worker(request, dynbeat):  # noqa: ARG001 - comes first
    # The worker has the tasks and the guard that the application had at its start.
    return request.getfixturevalue("in_process_worker")


@pytest.mark.usefixtures("worker")
def test_manual_passes_and_a_worker_in_this_process_run_a_schedule(dynbeat, dispatcher, started):
    mine = dynbeat.schedules.for_owner("user:1")
    mine.create("here", task="memory.record", trigger=Once.after(timedelta(seconds=0.5)))

    def succeeded():
        dispatcher.run_pass()
        return mine.runs("here", status="succeeded")

    (run,) = wait_until(succeeded, within=10)

    assert started == [run.id]
    assert (run.attempt, run.error) == (1, None)
