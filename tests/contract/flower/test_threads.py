"""Tornado's loop serves all requests: it never waits for the database."""

import threading

import pytest
from sqlalchemy import event

from tests.contract.flower.test_access import PAGES, path_of
from tests.support.applications import MINUTELY
from tests.support.editor_form import open_form, preview

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
