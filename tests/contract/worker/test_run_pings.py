"""The pings of a worker: of which runs, in which order, to which hosts."""

import logging
import os

import pytest

from celery_dynbeat import signals
from celery_dynbeat.common.ping_urls import allowed_origin
from celery_dynbeat.common.states import Status
from celery_dynbeat.telemetry import events, subscribe, unsubscribe
from celery_dynbeat.worker import PoolChannel
from celery_dynbeat.worker import pings as ping_module
from celery_dynbeat.worker.outcome_recorder import Recorder
from celery_dynbeat.worker.outcomes import Outcome
from celery_dynbeat.worker.pings import RunPings
from tests.support.applications import MINUTELY, START, execute
from tests.support.ping_sink import ping_sink
from tests.support.waiting import wait_until

SECRET = "d7b2-secret"


@pytest.fixture
def sink(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ping_sink() as made:
        yield made


@pytest.fixture
def dynbeat(limited, sink):
    return limited(ping_hosts=[sink.url, "http://127.0.0.1:9"])


@pytest.fixture
def run(mine, beat, sink, dynbeat):
    """Return a run whose schedule has a ping URL."""
    mine.create("n", task="t", trigger=MINUTELY)
    set_url(dynbeat, f"{sink.url}/{SECRET}")
    created = mine.run_now("n")
    beat.run_until_idle()
    return created


@pytest.fixture
def new_pings(dynbeat):
    """Return a function that makes the pings of a worker whose pool does not fork."""
    made = []

    def new(*allowed, channel=None):
        origins = allowed or dynbeat.context.settings.ping_hosts
        pings = RunPings(dynbeat.context, allowed=origins, channel=channel)
        made.append(pings)
        return pings

    yield new
    for pings in made:
        pings.close()


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, logger="celery_dynbeat")
    return lambda event: [each for each in caplog.records if getattr(each, "event", "") == event]


def set_url(dynbeat, url):
    # Not the API: it rejects some of these URLs.
    execute(dynbeat, "UPDATE dynbeat_schedule SET ping_url = :url", url=url)


RUN = {"owner": "user:42", "schedule": "n", "task": "t"}


def started(run_id, *, attempt=1, pings=True):
    return events.RunStarted(
        run_id=run_id,
        **RUN,
        queue=None,
        fire_at=START,
        attempt=attempt,
        waited=None,
        pings=pings,
    )


def ended(run_id, status, error=None, *, pings=True):
    return events.RunEnded(
        run_id=run_id,
        **RUN,
        status=status.value,
        attempt=1,
        duration=None,
        error=error,
        at=START,
        pings=pings,
    )


def test_a_run_is_reported_from_its_start_to_its_success(run, sink, new_pings):
    pings = new_pings()

    pings.on_started(started(run.id))
    pings.on_ended(ended(run.id, Status.SUCCEEDED))

    sink.wait_for(2)
    assert [each[:4] for each in sink.requests] == [
        ("POST", f"/{SECRET}/start", {"rid": run.id}, ""),
        ("POST", f"/{SECRET}", {"rid": run.id}, ""),
    ]


def test_a_failure_reports_the_type_of_the_exception_and_not_its_text(run, sink, new_pings):
    new_pings().on_ended(ended(run.id, Status.FAILED, "ValueError: alice@example.com"))

    (ping,) = sink.wait_for(1)
    assert (ping.path, ping.body) == (f"/{SECRET}/fail", "ValueError")
    assert "alice" not in repr(ping)


@pytest.mark.parametrize(
    "status", [Status.RETRYING, Status.REVOKED, Status.EXPIRED, Status.LOST, Status.SENT]
)
def test_other_ends_are_not_reported(status, run, sink, new_pings):
    pings = new_pings()

    pings.on_ended(ended(run.id, status))
    pings.on_started(started(run.id, attempt=2))
    pings.on_started(started(run.id, pings=False))
    pings.on_ended(ended(run.id, Status.FAILED, pings=False))
    pings.on_ended(ended(run.id, Status.SUCCEEDED))

    # The pings of a run keep their order: an earlier one would have arrived.
    assert [each.path for each in sink.wait_for(1)] == [f"/{SECRET}"]


@pytest.mark.parametrize(
    "url",
    [
        "http://{other}/d7b2-secret",
        "http://d7b2-secret@{netloc}/",
        "file:///etc/d7b2-secret",
        "https://{netloc}/d7b2-secret",
    ],
)
def test_a_url_that_was_edited_in_sql_is_checked_again(
    url, run, sink, new_pings, dynbeat, log, caplog
):
    with ping_sink() as other:
        set_url(dynbeat, url.format(other=other.netloc, netloc=sink.netloc))
        pings = new_pings()

        pings.on_started(started(run.id))
        pings.close()

        assert not other.requests
    assert not sink.requests
    (record,) = log("ping_failed")
    assert record.run_id == run.id
    assert SECRET not in caplog.text


def test_a_redirect_is_a_failed_ping(run, sink, new_pings, log, caplog):
    sink.status, sink.headers = 302, {"Location": f"{sink.url}/{SECRET}/elsewhere"}
    pings = new_pings()

    pings.on_ended(ended(run.id, Status.SUCCEEDED))
    pings.close()

    assert [each.path for each in sink.requests] == [f"/{SECRET}"]
    (record,) = log("ping_failed")
    assert "status 302 (redirects are not followed)" in record.getMessage()
    assert SECRET not in caplog.text


def test_an_outage_of_a_server_is_one_warning(run, sink, new_pings, log):
    sink.status = 500
    pings = new_pings()
    for _ in range(3):
        pings.on_ended(ended(run.id, Status.SUCCEEDED))
    sink.wait_for(3)
    wait_until(lambda: len(log("ping_failed")) == 3, within=10)
    sink.status = 200
    pings.on_ended(ended(run.id, Status.SUCCEEDED))
    sink.wait_for(4)
    sink.status = 500
    pings.on_ended(ended(run.id, Status.SUCCEEDED))
    wait_until(lambda: len(log("ping_failed")) == 4, within=10)

    levels = [record.levelname for record in log("ping_failed")]
    assert levels == ["WARNING", "INFO", "INFO", "WARNING"]


def test_a_server_that_hangs_delays_no_other_server(run, sink, new_pings, dynbeat, monkeypatch):
    monkeypatch.setattr(ping_module, "CLOSE_TIMEOUT", 0.1)
    with ping_sink() as hanging:
        hanging.gate.clear()
        pings = new_pings(allowed_origin(sink.url), allowed_origin(hanging.url))
        set_url(dynbeat, f"{hanging.url}/{SECRET}")
        pings.on_started(started(run.id))
        hanging.wait_for(1)
        set_url(dynbeat, f"{sink.url}/{SECRET}")

        pings.on_ended(ended(run.id, Status.SUCCEEDED))

        assert sink.wait_for(1)
        assert not hanging.gate.is_set()


@pytest.fixture
def dropped():
    """Return the events of the signal for dropped pings."""
    events = []

    def receive(event, **_):
        events.append(event)

    signals.ping_dropped.connect(receive)
    yield events
    signals.ping_dropped.disconnect(receive)


def test_pings_that_no_queue_holds_are_dropped_with_a_log_record(
    run, sink, new_pings, monkeypatch, log, dropped
):
    monkeypatch.setattr(ping_module, "QUEUE_SIZE", 1)
    monkeypatch.setattr(ping_module, "CLOSE_TIMEOUT", 0.1)
    sink.gate.clear()
    pings = new_pings()
    pings.on_started(started(run.id))
    sink.wait_for(1)

    # One waits in each of two queues. The others cannot.
    for _ in range(6):
        pings.on_ended(ended(run.id, Status.SUCCEEDED))
    wait_until(lambda: log("ping_dropped"), within=10)

    pings.close()
    assert "the worker ended" in log("ping_dropped")[-1].getMessage()
    assert dropped[-1].reason == "the worker ended"
    assert sum(each.count for each in dropped) == sum(each.count for each in log("ping_dropped"))


def test_a_pool_process_passes_its_pings_to_the_main_process(run, sink, new_pings):
    pings = new_pings(channel=PoolChannel(send_timeout=0))
    pings.start()
    pid = os.fork()
    if not pid:
        try:
            pings.on_process_init()
            pings.on_started(started(run.id))
            pings.on_ended(ended(run.id, Status.SUCCEEDED))
        finally:
            # As kill -9 does: nothing is flushed.
            os._exit(0)
    os.waitpid(pid, 0)

    assert [each.path for each in sink.wait_for(2)] == [f"/{SECRET}/start", f"/{SECRET}"]


def test_a_pool_process_does_not_wait_for_a_main_process_that_does_not_read(
    run, new_pings, log, dropped
):
    pings = new_pings(channel=PoolChannel(send_timeout=0))
    # The receiving thread is not started. The socket buffer is full at some point.
    pings._is_pool_process = True

    for _ in range(100_000):
        pings.on_started(started(run.id))
        if log("ping_dropped"):
            break
    pings.on_started(started(run.id))

    # One record for a series of dropped pings, and a signal for each.
    assert len(log("ping_dropped")) == 1
    assert [each.count for each in dropped] == [1, 1]
    pings._is_pool_process = False


def test_the_end_is_reported_after_it_was_written_and_once(run, sink, dynbeat, mine, new_pings):
    pings, seen = new_pings(), []
    pings.connect()

    def note(event):
        seen.append((mine.get_run(run.id).status, event.status))

    subscribe(note, events.RunEnded)
    recorder = Recorder(
        dynbeat.context.database,
        settings=dynbeat.context.settings,
        notify=lambda _session: None,
    )
    execute(dynbeat, "UPDATE dynbeat_run SET status = 'running', attempt = 1, overdue_at = NULL")
    outcome = Outcome(run_id=run.id, attempt=1, worker="w", status=Status.SUCCEEDED, at=START)

    # The second is a duplicate: the run has ended.
    recorder.record(outcome)
    recorder.record(outcome)
    recorder.close()
    unsubscribe(note, events.RunEnded)

    assert seen == [("succeeded", "succeeded")]
    assert len(sink.wait_for(1)) == 1
