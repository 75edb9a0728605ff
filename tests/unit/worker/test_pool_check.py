"""Which runs of a node count as dead, and for how long they are only suspects."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from celery_dynbeat.worker.pool_check import BackendResults, PoolState, Suspects, pool_state
from tests.support.applications import application
from tests.support.waiting import wait_until

GRACE = 120.0
RUN = "01a1fd55-7a80-7da9-ade5-7b449e290722"


class Row(NamedTuple):
    id: str
    attempt: int
    worker_pid: int


ROW = Row(RUN, 1, 7)


@pytest.fixture
def check():
    """Return a function that makes a check at an instant and returns the dead runs."""
    suspects = Suspects(timedelta(seconds=GRACE))

    def check(at, *, rows=(ROW,), requests=(), pids=(), executed=(), is_handled=False):
        pool = PoolState(requests, pids, executed)
        return suspects.update(rows, pool, is_handled=lambda _: is_handled, at=at)

    return check


def test_a_run_without_request_and_process_is_dead_at_the_second_check(check):
    assert check(0) == []
    assert check(20) == [RUN]


def test_a_run_with_a_request_and_a_process_is_executed(check):
    assert [check(at, requests=[RUN], pids=[7]) for at in (0, 20, 1_000)] == [[], [], []]


def test_a_run_in_the_slot_of_a_living_process_is_executed_without_a_request(check):
    executed = {(7, RUN)}
    assert [check(at, pids=[7], executed=executed) for at in (0, 20, 1_000)] == [[], [], []]


def test_the_slot_of_a_dead_process_does_not_count(check):
    assert check(0, pids=[8], executed={(7, RUN)}) == []
    assert check(20, pids=[8], executed={(7, RUN)}) == [RUN]


@pytest.mark.parametrize("given", [{"requests": [RUN]}, {"pids": [7]}])
def test_a_run_with_only_a_request_or_a_process_is_dead_after_the_grace_time(check, given):
    assert check(0, **given) == []
    assert check(GRACE - 1, **given) == []
    assert check(GRACE, **given) == [RUN]


def test_a_run_in_the_main_process_is_dead_when_neither_thread_nor_request_has_it(check):
    assert check(0, pids=None, is_handled=True) == []
    assert check(20, pids=None) == []
    assert check(40, pids=None) == [RUN]


def test_a_run_whose_outcome_the_main_process_buffers_is_not_dead(check):
    assert [check(at, is_handled=True) for at in (0, 20, 1_000)] == [[], [], []]


def test_another_attempt_is_another_suspect(check):
    check(0)

    assert check(20, rows=[ROW._replace(attempt=2)]) == []


def test_a_suspect_that_was_executed_in_between_starts_as_a_new_suspect(check):
    check(0)
    check(20, requests=[RUN], pids=[7])

    assert check(40) == []


def pids_of(process):
    return list(pool_state(SimpleNamespace(info={"processes": [process.pid]})).pids)


def test_a_process_that_exited_is_not_in_the_pool_and_is_not_reaped():
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

        assert pids_of(process) == []
        assert process.wait() == 3
        assert pids_of(process) == []


def test_a_living_process_is_in_the_pool():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert pids_of(process) == [process.pid]


def test_a_process_that_has_not_started_is_not_in_the_pool():
    assert pool_state(SimpleNamespace(info={"processes": [None]})).pids == []


@pytest.mark.parametrize("info", [{"threads": 4}, {"processes": [os.getpid()]}])
def test_pools_of_threads_and_solo_have_no_processes(info):
    assert pool_state(SimpleNamespace(info=info)).pids is None


def test_the_state_of_a_pool_that_stops_is_unknown():
    assert pool_state(SimpleNamespace()) is None


@pytest.fixture
def results(tmp_path, sqlite_url):
    with application(sqlite_url) as dynbeat:
        app = dynbeat.context.app
        app.conf.result_backend = f"file://{tmp_path}"
        yield BackendResults(app)


def test_a_stored_success_is_found(results):
    results._app.backend.store_result(RUN, "done", "SUCCESS")

    results.fetch([RUN], timeout=10)

    assert results.succeeded(RUN) is True
    results.retain([])
    assert results.succeeded(RUN) is None


@pytest.mark.parametrize("state", ["RETRY", "STARTED", None])
def test_any_other_state_is_no_success(results, state):
    if state is not None:
        results._app.backend.store_result(RUN, None, state)

    results.fetch([RUN], timeout=10)

    assert results.succeeded(RUN) is False


def test_an_application_without_a_result_backend_has_no_success(sqlite_url):
    with application(sqlite_url) as dynbeat:
        results = BackendResults(dynbeat.context.app)
        results.fetch([RUN], timeout=10)

        assert results.succeeded(RUN) is False


def test_a_backend_that_hangs_delays_only_its_own_results(results):
    backend = results._app.backend
    fifo = Path(backend._filename(backend.get_key_for_task(RUN)).decode())
    os.mkfifo(fifo)

    results.fetch([RUN], timeout=0.05)

    assert results.succeeded(RUN) is None
    with fifo.open("w"):
        pass
    wait_until(lambda: results.succeeded(RUN) is not None, within=10)
