"""The endpoint, its switch, and the temporary folder of a worker."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from urllib.request import urlopen

import pytest

from celery_dynbeat import ConfigurationError
from celery_dynbeat.common.clock import DatabaseClock
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.monitoring.metrics import definitions as metrics
from celery_dynbeat.monitoring.metrics import shared_folder, switch
from celery_dynbeat.monitoring.metrics.counts import ProcessCounts
from celery_dynbeat.monitoring.metrics.definitions import Exporter
from celery_dynbeat.monitoring.metrics.endpoint import open_endpoint
from celery_dynbeat.monitoring.metrics.process_gauges import ClockGauge
from celery_dynbeat.monitoring.metrics.shared_folder import SharedFolder

PORTS = Settings.read({"dynbeat_metrics_port": {"beat": 1}}, timezone="UTC")


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

    assert switch.ports_of(PORTS, Exporter.BEAT) == beat
    assert switch.ports_of(PORTS, Exporter.WORKER) == worker


def test_an_invalid_environment_variable_is_named(monkeypatch):
    monkeypatch.setenv("DYNBEAT_METRICS_PORT", "http")

    with pytest.raises(ConfigurationError, match="DYNBEAT_METRICS_PORT = 'http': must be a port"):
        switch.ports_of(PORTS, Exporter.BEAT)


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
        "from celery_dynbeat.monitoring.metrics.shared_folder import SharedFolder;"
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
