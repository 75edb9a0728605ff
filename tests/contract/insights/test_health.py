"""Which states of an installation are healthy, a warning or a problem."""

import json
import logging
import os
import socket
import threading
import time
from datetime import timedelta
from functools import partial

import pytest
from celery import Celery

from celery_dynbeat import Dynbeat, Every, Once
from celery_dynbeat.cli.status import as_dict
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.health.checks import evaluate
from celery_dynbeat.health.probes import collect_health
from celery_dynbeat.store import nodes
from celery_dynbeat.store.health import MAX_COUNTED, MAX_NAMED
from tests.support.applications import MINUTELY, START, application, execute
from tests.support.ended_runs import start
from tests.support.servers.machine import free_port
from tests.support.suites import each_database
from tests.support.worker_stub import WorkerStub

logger = logging.getLogger(__name__)

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
TIMEOUT = MINUTE
#: With the default settings: 2 x dynbeat_poll_interval + dynbeat_dispatch_timeout.
MAX_LAG = timedelta(seconds=40)


def status_json(dynbeat, **options):
    """Return the output of ``status --json``."""
    result = collect_health(dynbeat.app, **options)
    report = json.loads(json.dumps(as_dict(result, evaluate(result))))
    # pytest shows it with a failure.
    logger.warning("problems %s, warnings %s", report["problems"], report["warnings"])
    return report


def codes(report, kind="problems"):
    return [problem["code"] for problem in report[kind]]


def register(dynbeat, kind=NodeKind.BEAT, name="b1", *, progressed=True, error=None, **names):
    """Register a node, with progress unless ``progressed`` is False."""
    now = dynbeat.context.clock.now()
    heartbeat = nodes.NodeHeartbeat(
        kind=kind,
        name=name,
        pid=os.getpid(),
        seen_at=now,
        progressed_at=now if progressed else None,
        error=error,
        **names,
    )
    work = partial(nodes.register, heartbeat=heartbeat, started_at=now)
    dynbeat.context.database.run(work)


def send_heartbeat(dynbeat, *, name, progressed_at=None):
    """Send a heartbeat of a registered beat."""
    now = dynbeat.context.clock.now()
    beat = {"kind": NodeKind.BEAT, "name": name, "pid": os.getpid()}
    heartbeat = nodes.NodeHeartbeat(**beat, seen_at=now, progressed_at=progressed_at)
    assert dynbeat.context.database.run(partial(nodes.refresh, heartbeat=heartbeat))


@pytest.fixture
def working_nodes(dynbeat):
    """Register a working beat and worker; return the function that does it again."""

    def refresh():
        register(dynbeat)
        register(dynbeat, NodeKind.WORKER, "w1@test")

    refresh()
    return refresh


@pytest.mark.usefixtures("working_nodes")
def test_an_idle_installation_with_a_beat_and_a_worker_is_healthy(dynbeat):
    report = status_json(dynbeat)

    assert (report["healthy"], report["problems"], report["warnings"]) == (True, [], [])
    assert report["checked_at"] == START.isoformat()
    assert report["max_lag"] == MAX_LAG.total_seconds()
    assert report["notifier"] == "polling"
    assert report["database"]["revision"] == report["database"]["needed_revision"]
    assert report["schedules"] == {
        "due": {"count": 0, "exact": True},
        "oldest_due_at": None,
        "lag_seconds": None,
        "quarantined": {"count": 0, "exact": True},
        "quarantined_first": [],
        "unsupported_trigger": [],
        "refused": {"count": 0, "exact": True},
        "refused_first": [],
        "lost_first": [],
        "failing": {"count": 0, "exact": True},
        "failing_first": [],
    }
    assert report["holds"] == {"count": {"count": 0, "exact": True}, "first": []}
    assert report["unserved"] == {"queues": None, "tasks": None}


@pytest.mark.usefixtures("working_nodes")
def test_an_installation_without_a_live_beat_is_unhealthy(dynbeat, clock):
    clock.advance(TIMEOUT + SECOND)

    report = status_json(dynbeat)

    assert codes(report) == ["no_beat"]
    assert report["beats"][0]["state"] == "gone"
    assert report["workers"][0]["state"] == "gone"
    assert codes(report, "warnings") == ["no_worker"]


def test_a_single_beat_without_progress_is_a_problem(dynbeat):
    register(dynbeat, progressed=False, error="OperationalError: no route to the broker")

    report = status_json(dynbeat)

    assert codes(report) == ["beat_failing"]
    assert "no route to the broker" in report["problems"][0]["text"]
    assert report["beats"][0]["state"] == "starting"


def test_a_due_schedule_that_no_beat_claims_is_late(dynbeat, mine, clock, working_nodes):
    mine.create("n", task="t", trigger=MINUTELY)

    clock.advance(MINUTE + MAX_LAG)
    working_nodes()
    in_time = status_json(dynbeat)
    clock.advance(SECOND)
    working_nodes()
    late = status_json(dynbeat)

    assert in_time["healthy"]
    assert in_time["schedules"]["due"] == {"count": 1, "exact": True}
    assert in_time["schedules"]["lag_seconds"] == MAX_LAG.total_seconds()
    assert codes(late) == ["schedules_late"]
    assert late["schedules"]["oldest_due_at"] == (START + MINUTE).isoformat()


def test_an_overdue_run_that_no_beat_resends_is_a_problem(dynbeat, mine, clock, working_nodes):
    mine.create("n", task="t", trigger=Every(timedelta(days=1)))
    # A manual run is overdue from its creation.
    mine.run_now("n")

    clock.advance(MINUTE)
    working_nodes()
    in_time = status_json(dynbeat)
    clock.advance(SECOND)
    working_nodes()
    overdue = status_json(dynbeat)

    assert in_time["healthy"]
    assert in_time["runs"]["overdue"] == {"count": 1, "exact": True}
    assert codes(overdue) == ["runs_overdue"]
    assert overdue["runs"]["overdue_since"] == START.isoformat()


def test_no_worker_is_a_problem_only_while_runs_wait(dynbeat, mine, beat):
    register(dynbeat)
    assert codes(status_json(dynbeat), "warnings") == ["no_worker"]
    mine.create("n", task="t", trigger=Every(timedelta(days=1)))
    mine.run_now("n")
    beat.run_until_idle()

    waiting = status_json(dynbeat)

    assert codes(waiting) == ["no_worker"]
    assert codes(waiting, "warnings") == []
    assert "; waiting runs: 1" in waiting["problems"][0]["text"]
    assert "workers without Dynbeat(app) do not count" in waiting["problems"][0]["hint"]


@pytest.mark.usefixtures("working_nodes")
def test_quarantined_schedules_are_counted_and_the_first_ones_are_named(dynbeat, mine):
    dynbeat.schedules.create_many(
        {"owner": "user:42", "name": f"n{number:04}", "task": "t", "trigger": MINUTELY}
        for number in range(MAX_COUNTED + 2)
    )
    mine.create("planned", task="t", trigger=MINUTELY)
    quarantine = (
        "UPDATE dynbeat_schedule SET next_run_at = NULL, error = 'E: no\nmore' WHERE name LIKE"
    )
    execute(dynbeat, f"{quarantine} 'n%'")

    report = status_json(dynbeat)

    assert report["healthy"]
    assert codes(report, "warnings") == ["schedules_quarantined"]
    assert report["schedules"]["quarantined"] == {"count": MAX_COUNTED, "exact": False}
    first = report["schedules"]["quarantined_first"]
    assert len(first) == MAX_NAMED
    assert first[0] == {**first[0], "owner": "user:42", "error": "E: no\nmore"}


@pytest.mark.usefixtures("working_nodes")
@each_database
def test_failing_schedules_are_a_warning_with_the_last_error(dynbeat, mine, beat, sent, clock):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.create("one-off", task="t", trigger=Once(START + MINUTE))
    mine.create("fine", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    beat.run_until_idle()
    worker = WorkerStub(dynbeat, "w1@test")
    for run in sent:
        worker.start(run)
        worker.finish(run, Status.SUCCEEDED if run.name == "fine" else Status.FAILED)
    # Sets the column as the recorder does.
    execute(
        dynbeat,
        "UPDATE dynbeat_schedule SET failing_since = last_run_at WHERE name <> 'fine'",
    )
    register(dynbeat)

    report = status_json(dynbeat)

    assert report["healthy"]
    assert "schedules_failing" in codes(report, "warnings")
    (hint,) = (one["hint"] for one in report["warnings"] if one["code"] == "schedules_failing")
    assert "`celery -A your_app dynbeat list --all-owners --state failing`" in hint
    assert report["schedules"]["failing"] == {"count": 1, "exact": True}
    (first,) = report["schedules"]["failing_first"]
    assert (first["owner"], first["name"], first["error"]) == ("user:42", "n", "ValueError: no")
    assert first["since"] == (START + MINUTE).isoformat()


@pytest.mark.usefixtures("working_nodes")
def test_a_hold_is_a_warning_with_who_and_why(dynbeat):
    with dynbeat.acting(actor="alice"):
        dynbeat.schedules.hold(reason="migration", until=START + HOUR)

    report = status_json(dynbeat)

    assert (report["healthy"], codes(report, "warnings")) == (True, ["schedules_held"])
    assert "hold --release --all-owners`" in report["warnings"][0]["hint"]
    (hold,) = report["holds"]["first"]
    assert (hold["owner"], hold["actor"], hold["reason"]) == (None, "alice", "migration")


def serve(dynbeat, *, queues=("celery",), tasks=("t",), name="w1@test"):
    """Register a worker that reports these names."""
    names = {"queues": json.dumps(queues), "tasks": json.dumps(tasks)}
    register(dynbeat, NodeKind.WORKER, name, **names)


def test_a_queue_without_a_worker_is_a_problem_only_while_runs_wait_in_it(dynbeat, mine, beat):
    register(dynbeat)
    serve(dynbeat)
    mine.create("n", task="t", trigger=Every(timedelta(days=1)), queue="reports")

    before = status_json(dynbeat)
    mine.run_now("n")
    beat.run_until_idle()
    waiting = status_json(dynbeat)
    serve(dynbeat, queues=["reports"], name="w2@test")
    served = status_json(dynbeat)

    assert (codes(before), codes(before, "warnings")) == ([], ["queue_not_consumed"])
    assert codes(waiting) == ["queue_not_consumed"]
    assert "'reports' (waiting runs: 1, schedules: 1)" in waiting["problems"][0]["text"]
    assert "worker -Q reports" in waiting["problems"][0]["hint"]
    assert waiting["unserved"]["queues"] == [
        {"name": "reports", "queue": None, "runs": 1, "schedules": 1, "urgent": True}
    ]
    assert served["healthy"]
    assert served["unserved"] == {"queues": [], "tasks": []}


def test_a_task_of_the_application_that_no_worker_has_is_a_problem_within_an_hour(
    dynbeat, mine, clock
):
    def body():
        """Do nothing."""

    dynbeat.app.task(name="mail.send", shared=False)(body)
    dynbeat.app.finalize()
    serve(dynbeat)
    mine.create("later", task="mail.send", trigger=Once(START + 2 * HOUR))
    later = status_json(dynbeat)
    clock.advance(HOUR)
    register(dynbeat)
    serve(dynbeat)
    soon = status_json(dynbeat)

    assert "task_not_registered" in codes(later, "warnings")
    assert codes(soon) == ["task_not_registered"]
    assert soon["unserved"]["tasks"][0]["name"] == "mail.send"
    assert soon["unserved"]["tasks"][0]["queue"] == "celery"


@pytest.mark.parametrize("damaged", ["[", "7", '"celery"', "[" * 100_000])
def test_a_worker_whose_names_sql_damaged_may_serve_anything(dynbeat, mine, damaged):
    register(dynbeat)
    serve(dynbeat)
    mine.create("n", task="t", trigger=MINUTELY, queue="reports")
    execute(dynbeat, "UPDATE dynbeat_node SET queues = :names", names=damaged)

    assert status_json(dynbeat)["unserved"] == {"queues": None, "tasks": None}


@pytest.mark.empty_database
def test_missing_tables_are_reported_and_not_created(database_url, clock):
    with application(database_url, clock=clock) as dynbeat:
        if dynbeat.context.database.capabilities.embedded:
            dynbeat.context.database.engine.connect().close()

        report = status_json(dynbeat)

        assert codes(report) == ["schema_outdated"]
        assert "dynbeat schema upgrade" in report["problems"][0]["hint"]
        assert not report["database"]["schema_ok"]
        assert report["schedules"] is None
        assert codes(status_json(dynbeat)) == ["schema_outdated"]


@pytest.mark.parametrize("driver", ["postgresql+psycopg", "mysql+pymysql"])
def test_a_database_that_refuses_connections_is_unreachable(driver):
    with application(f"{driver}://u:s3cret@127.0.0.1:{free_port()}/d") as dynbeat:
        report = status_json(dynbeat)

    assert codes(report) == ["database_unreachable"]
    assert "OperationalError" in report["database"]["error"]
    assert "s3cret" not in json.dumps(report)


@pytest.mark.parametrize("broker", ["redis://:s3c/ret@127.0.0.1/0", "odd://u:s3c/ret@h", "amqp://"])
def test_an_unreachable_broker_is_reported_without_its_password(sqlite_url, broker):
    broker = broker.replace("amqp://", f"amqp://u:s3c@127.0.0.1:{free_port()}//")
    app = Celery("contract", broker=broker, set_as_current=False)
    app.conf.update(dynbeat_database_url=sqlite_url)
    dynbeat = Dynbeat(app)

    report = status_json(dynbeat)

    assert "broker_unreachable" in codes(report)
    assert not report["broker"]["reachable"]
    assert "s3c" not in json.dumps(report)
    dynbeat.context.database.dispose()


@pytest.mark.slow
def test_a_server_that_accepts_connections_and_never_replies_is_unreachable():
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        application(f"postgresql+psycopg://u@127.0.0.1:{silent.getsockname()[1]}/d") as dynbeat,
    ):
        began = time.monotonic()
        report = status_json(dynbeat)
        took = time.monotonic() - began

    assert codes(report) == ["database_unreachable"]
    assert "no answer within 8 s" in report["database"]["error"]
    assert took < 10
    # Its thread ends with the connection.
    for thread in threading.enumerate():
        if thread.name == "dynbeat-probe":
            thread.join(30)


def test_status_names_the_lost_runs_of_a_killed_worker_for_an_hour(dynbeat, mine, clock, beat):
    mine.create("report", task="t", trigger=Every(timedelta(days=1)))
    mine.run_now("report")
    beat.run_until_idle()
    (run,) = beat.publisher.sent
    start(dynbeat, run.run_id)
    clock.advance(2 * dynbeat.context.settings.node_timeout)
    beat.run_until_idle()

    found = status_json(dynbeat)

    (warning,) = [each for each in found["warnings"] if each["code"] == "runs_lost"]
    assert f"{run.run_id} of 'report'" in warning["text"]
    assert [each["id"] for each in found["schedules"]["lost_first"]] == [run.run_id]
    clock.advance(timedelta(hours=2))
    assert "runs_lost" not in codes(status_json(dynbeat), "warnings")


def test_status_is_degraded_while_one_of_two_beats_is_dead(dynbeat, clock):
    for name in ("b1", "b2"):
        register(dynbeat, name=name)
    assert not status_json(dynbeat)["degraded"]
    clock.advance(11 * MINUTE)
    send_heartbeat(dynbeat, name="b1", progressed_at=clock.now())

    found = status_json(dynbeat)

    assert (found["healthy"], found["degraded"]) == (True, True)
    assert "beats_missing" in codes(found, "warnings")
