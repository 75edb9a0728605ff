"""Tornado's loop serves all requests: it never waits for the database."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice

import pytest
from sqlalchemy import event

from celery_dynbeat.flower.base.database_calls import MAX_CALLS, MAX_PAGES
from tests.contract.flower.test_access import PAGES, path_of
from tests.support.applications import MINUTELY
from tests.support.editor_form import open_form, preview
from tests.support.waiting import wait_until

CALLS = "dynbeat-flower"


@pytest.fixture
def mine(dynbeat):
    mine = dynbeat.schedules.for_owner("user:1")
    mine.create("digest", task="t", trigger=MINUTELY)
    return mine


@pytest.fixture
def threads(dynbeat, monkeypatch):
    """Return the names of the threads that read the database or its clock."""
    names, now = set(), dynbeat.context.clock.now

    def noted():
        names.add(threading.current_thread().name)
        return now()

    # A DatabaseClock reads the database at its first use, and then once a minute.
    monkeypatch.setattr(dynbeat.context.clock, "now", noted)
    event.listen(
        dynbeat.context.database.engine,
        "before_cursor_execute",
        lambda *_: names.add(threading.current_thread().name),
    )
    return names


def other_threads(names):
    return {name for name in names if not name.startswith((CALLS, "dynbeat-probe"))}


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.usefixtures("mine")
def test_each_page_reads_the_database_in_other_threads(pages, threads, name):
    pages.get(f"{path_of(name)}?owner=user:1&name=digest")

    assert other_threads(threads) == set()


@pytest.mark.usefixtures("mine")
def test_the_form_reads_the_database_in_other_threads(pages, threads):
    form = open_form(pages, "digest", owner="user:1")
    threads.clear()

    preview(pages, form, rule="PT5M")

    assert threads
    assert other_threads(threads) == set()


@pytest.fixture
def hang(dynbeat):
    """Return a function that lets the statements of threads with a prefix wait for an event."""
    release, waiting = threading.Event(), []

    def hang(prefix):
        def wait(*_):
            if threading.current_thread().name.startswith(prefix):
                waiting.append(prefix)
                release.wait(30)

        event.listen(dynbeat.context.database.engine, "before_cursor_execute", wait)
        return release, waiting

    yield hang
    release.set()


def test_a_page_too_many_is_refused_at_once_and_a_change_is_not(serve, hang):
    client = serve(dynbeat_unauthenticated_writes=True)
    client.token()
    release, _ = hang(CALLS)

    with ThreadPoolExecutor(MAX_PAGES + 7) as threads:
        loading = [threads.submit(client.get, "/dynbeat/runs") for _ in range(MAX_PAGES + 6)]
        refused = [each.result() for each in islice(as_completed(loading), 6)]
        hold = threads.submit(client.post, "/dynbeat/hold", {"confirmed": "yes"})
        release.set()

        assert {(each.status, each.headers["Retry-After"]) for each in refused} == {(503, "2")}
        assert Counter(each.result().status for each in loading) == {200: MAX_PAGES, 503: 6}
        assert hold.result().status == 303
    assert client.get("/dynbeat/runs").status == 200


def test_probes_share_one_thread_and_delay_no_page(pages, hang):
    release, waiting = hang("dynbeat-probe")

    with ThreadPoolExecutor(MAX_CALLS + 1) as threads:
        probes = [threads.submit(pages.get, "/dynbeat/health") for _ in range(MAX_CALLS + 1)]
        assert wait_until(lambda: waiting, within=10)
        assert pages.get("/dynbeat/runs").status == 200
        assert not any(probe.done() for probe in probes)
        # One health check has two probes of the database.
        assert len(waiting) <= 2
        release.set()

        assert {probe.result().status for probe in probes} == {200}
