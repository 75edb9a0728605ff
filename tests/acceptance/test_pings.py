"""A real worker pings the monitors of its schedules and never waits for one."""

import pytest

from tests.support.applications import execute
from tests.support.ping_sink import ping_sink
from tests.support.waiting import wait_until

SECRET = "d7b2-secret"


@pytest.fixture
def sink(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ping_sink() as made:
        yield made


@pytest.fixture
def pinging_site(redis_site, sink):
    """Return an installation with a worker whose pool processes end after each task."""
    redis_site.config["dynbeat_ping_hosts"] = [sink.url]
    # A test decides when a ping ends, not the time.
    redis_site.constants["celery_dynbeat.worker.pings.TIMEOUT"] = 60.0
    redis_site.beat().wait_for_log("beat started")
    return redis_site


def create(site, sink, name):
    site.create_once(name)
    execute(site.dynbeat, "UPDATE dynbeat_schedule SET ping_url = :url", url=f"{sink.url}/{SECRET}")


def test_a_task_ends_while_its_monitor_hangs(pinging_site, sink):
    sink.gate.clear()
    worker = pinging_site.worker("--max-tasks-per-child", "1")
    worker.wait_for_log("ready.")
    for name in ("record", "fail"):
        create(pinging_site, sink, name)

    first = pinging_site.wait_for_run("record", "succeeded")
    second = pinging_site.wait_for_run("fail", "failed")

    # No ping has got a reply, and only the first has been sent.
    assert not sink.gate.is_set()
    (start,) = sink.wait_for(1)
    assert start.path == f"/{SECRET}/start"
    sink.gate.set()
    wait_until(lambda: len(sink.paths(first.id)) == len(sink.paths(second.id)) == 2, within=20)

    sink.gate.clear()
    create(pinging_site, sink, "ignore")
    pinging_site.wait_for_run("ignore", "succeeded")
    sink.wait_for(5)
    worker.send_sigterm()
    # The worker ends although the monitor hangs.
    worker.terminate()
    assert "pings of runs dropped: the worker ended" in worker.text
