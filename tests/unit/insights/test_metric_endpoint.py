"""The endpoint, its switch, and the temporary folder of a worker."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection, RemoteDisconnected
from urllib.request import urlopen

import pytest

from celery_dynbeat import ConfigurationError
from celery_dynbeat.common.clock import DatabaseClock
from celery_dynbeat.common.settings import MetricsPorts, ports_in_force
from celery_dynbeat.metrics import definitions as metrics
from celery_dynbeat.metrics import shared_folder, switch
from celery_dynbeat.metrics.counts import ProcessCounts
from celery_dynbeat.metrics.endpoint import MAX_CONNECTIONS, open_endpoint
from celery_dynbeat.metrics.process_gauges import ClockGauge
from celery_dynbeat.metrics.shared_folder import SharedFolder
from tests.support.waiting import wait_until

PORTS = MetricsPorts(beat=(1,))


@pytest.fixture
def counts():
    made = ProcessCounts()
    made.add(metrics.RESENT, 3)
    return made


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost"])
def test_the_endpoint_answers_on_its_address(counts, address):
    endpoint = open_endpoint([counts], address=address, ports=[0])
    host = f"[{endpoint.address}]" if ":" in endpoint.address else endpoint.address
    try:
        with urlopen(f"http://{host}:{endpoint.port}/metrics", timeout=5) as answer:
            assert b"dynbeat_runs_resent_total 3.0" in answer.read()
    finally:
        endpoint.close()


@pytest.fixture
def endpoint(counts):
    made = open_endpoint([counts], address="127.0.0.1", ports=[0])
    yield made
    made.close()


def answer_of(endpoint, method, path):
    connection = HTTPConnection("127.0.0.1", endpoint.port, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/metrics", 200),
        ("GET", "/", 404),
        ("GET", "/metrics/x", 404),
        ("GET", "/favicon.ico", 404),
        ("POST", "/metrics", 405),
        ("DELETE", "/metrics", 405),
    ],
)
def test_only_a_get_of_the_metrics_is_answered(endpoint, method, path, status):
    answered, body = answer_of(endpoint, method, path)

    assert answered == status
    assert (b"dynbeat_" in body) == (status == 200)


def test_a_query_does_not_hide_series(endpoint):
    _, body = answer_of(endpoint, "GET", "/metrics?name[]=dynbeat_runs_resent_total")

    assert b"dynbeat_runs_resent_total 3.0" in body


def is_answered(endpoint):
    # While the threads of the ended connections close them, a new one is refused.
    with suppress(RemoteDisconnected, ConnectionResetError):
        return answer_of(endpoint, "GET", "/metrics")[0] == 200
    return False


def test_slow_clients_occupy_a_bounded_number_of_threads(endpoint, caplog, capfd):
    before = threading.active_count()
    with ExitStack() as stack:
        for _ in range(4 * MAX_CONNECTIONS):
            address = ("127.0.0.1", endpoint.port)
            client = stack.enter_context(socket.create_connection(address, timeout=10))
            client.send(b"GET /metrics HTTP/1.1\r\n")
            assert threading.active_count() - before <= 2 * MAX_CONNECTIONS

        wait_until(lambda: is_answered(endpoint), within=10)
    wait_until(lambda: threading.active_count() == before, within=10)
    assert not caplog.records
    assert capfd.readouterr().err == ""


def test_a_child_process_does_not_keep_the_port(counts):
    endpoint = open_endpoint([counts], address="127.0.0.1", ports=[0])
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        endpoint.close_inherited()
        os.write(writer, b"x")
        signal.pause()
    try:
        os.read(reader, 1)
        endpoint.close()
        with socket.create_server(("127.0.0.1", endpoint.port), reuse_port=False):
            pass
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize(
    ("value", "beat", "worker"),
    [(None, (1,), ()), ("9000-9001", (9000, 9001), (9000, 9001)), ("", (), ())],
)
def test_the_environment_overrides_the_setting(monkeypatch, value, beat, worker):
    if value is not None:
        monkeypatch.setenv("DYNBEAT_METRICS_PORT", value)

    assert ports_in_force(PORTS) == MetricsPorts(beat=beat, worker=worker)


def test_an_invalid_environment_variable_is_named(monkeypatch):
    monkeypatch.setenv("DYNBEAT_METRICS_PORT", "http")

    with pytest.raises(ConfigurationError, match="DYNBEAT_METRICS_PORT = 'http': must be a port"):
        ports_in_force(PORTS)


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    with pytest.raises(ConfigurationError, match=r"celery-dynbeat\[metrics\]"):
        switch.start_beat(None, ports=[0])


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_folder_of_a_killed_worker_is_removed_by_the_next_one(temporary):
    code = (
        "import os, signal, tempfile, sys; tempfile.tempdir = sys.argv[1];"
        "from celery_dynbeat.metrics.shared_folder import SharedFolder;"
        "folder = SharedFolder(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(temporary)], check=False)
    assert len(list(temporary.iterdir())) == 1

    folder = SharedFolder()

    assert list(temporary.iterdir()) == [folder.path]
    folder.remove()
    assert not list(temporary.iterdir())


def test_the_folders_of_living_workers_and_of_others_stay(temporary):
    living = SharedFolder()
    foreign = temporary / f"{shared_folder.PREFIX}foreign"
    foreign.mkdir()
    target = temporary / "target"
    target.mkdir()
    (target / "owner.lock").touch()
    (temporary / f"{shared_folder.PREFIX}link").symlink_to(target)

    shared_folder.remove_abandoned()

    assert living.path.exists()
    assert foreign.exists()
    assert (target / "owner.lock").exists()
    living.remove()


def test_the_offset_of_the_clock_needs_no_reading():
    readings = iter([datetime.now(UTC) - timedelta(seconds=90)])
    clock = DatabaseClock(lambda: next(readings))
    assert list(ClockGauge(clock).collect()) == []
    clock.now()

    ((sample,),) = (family.samples for family in ClockGauge(clock).collect())

    assert sample.value == pytest.approx(90, abs=1)


@pytest.mark.usefixtures("temporary")
def test_a_cleaner_of_temporary_files_finds_the_folder_locked():
    folder = SharedFolder()
    descriptor = os.open(folder.path, os.O_RDONLY)

    with pytest.raises(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    folder.remove()
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)
