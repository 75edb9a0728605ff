"""``dynbeat status``, ``dynbeat prune`` and ``inspect ping`` on real installations."""

import json
import os
import signal
from datetime import timedelta

import pytest
from sqlalchemy import text

from celery_dynbeat import Every, Once
from celery_dynbeat.db.schema import head
from tests.support.event_log import BARE_VARIABLE
from tests.support.proxy import Proxy
from tests.support.servers import PostgreSQLServer, RedisServer
from tests.support.sites import site
from tests.support.waiting import wait_until

# Each test starts a beat, a worker and several commands, which take seconds to start.
pytestmark = [pytest.mark.long, pytest.mark.empty_database]

#: Seconds. An unreachable server is reported within about 10 s after the start of the process.
REPORTED_WITHIN = 40
SECRET = "s3cret"


def status(site, *arguments, **environment):
    """Return the exit status and the output of ``dynbeat status --json``."""
    process = site.run("dynbeat", "status", "--json", *arguments, name="status", **environment)
    exit_status = process.wait(within=REPORTED_WITHIN)
    return exit_status, json.loads(process.text.splitlines()[-1])


def codes(report):
    return [problem["code"] for problem in report["problems"]]


@pytest.mark.parametrize("any_site", ["sqlite-sqlalchemy", "postgresql-rabbitmq"], indirect=True)
def test_a_working_installation_is_healthy(any_site):
    any_site.mine.create("often", task="probe.record", trigger=Every(1))
    any_site.beat().wait_for_log("beat started")
    any_site.worker(pool="solo").wait_for_log("ready.")
    any_site.wait_for_run("often", "succeeded")

    exit_status, report = status(any_site)

    assert (exit_status, report["healthy"], report["problems"]) == (0, True, [])
    assert report["database"]["reachable"]
    assert report["database"]["schema_ok"]
    assert report["broker"] == {**report["broker"], "reachable": True, "error": None}
    assert [node["state"] for node in report["beats"]] == ["working"]
    # A worker writes its first heartbeat before its loop starts.
    assert report["workers"][0]["state"] in {"starting", "working"}
    (beat,) = any_site.nodes("beat")
    assert report["beats"][0] == {**report["beats"][0], "name": beat.name, "pid": beat.pid}
    assert report["schedules"]["lag_seconds"] is None or report["schedules"]["lag_seconds"] < 5


def test_the_text_output_contains_no_passwords(site_folder, postgresql_url, redis_url):
    urls = {
        "database_url": postgresql_url.replace("postgres@", f"postgres:{SECRET}@"),
        "broker_url": redis_url.replace("redis://", f"redis://:{SECRET}@"),
    }
    with site(site_folder, **urls) as made:
        made.dynbeat.context.prepare()

        shown = made.run("dynbeat", "status")

        assert shown.wait(within=REPORTED_WITHIN) == 1
        assert SECRET not in shown.text
        for words in (
            "UNHEALTHY",
            "problem     no beat is alive: no schedule runs\n",
            "hint: start one: `celery -A tests.support.proj beat`",
            "postgresql+psycopg://postgres:***@127.0.0.1",
            "redis://:**@127.0.0.1",
            "notifier    postgresql",
            f"schema {head()}",
        ):
            assert words in shown.text


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["refuse", "drop_silently"])
def test_an_unreachable_database_is_reported_within_seconds(
    site_folder, postgresql_server, postgresql_url, redis_url, fault
):
    with (
        Proxy(postgresql_server.port) as proxy,
        site(site_folder, database_url=proxy.through(postgresql_url), broker_url=redis_url) as made,
    ):
        getattr(proxy, fault)()

        exit_status, report = status(made)

        assert (exit_status, codes(report)) == (1, ["database_unreachable"])
        assert not report["database"]["reachable"]
        assert report["broker"]["reachable"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["stop", "freeze"])
def test_an_unreachable_broker_is_reported_within_seconds(
    own_server, site_folder, postgresql_url, fault
):
    broker = own_server(RedisServer)
    with site(site_folder, database_url=postgresql_url, broker_url=broker.url) as made:
        made.dynbeat.context.prepare()
        getattr(broker, fault)()

        exit_status, report = status(made)

        assert (exit_status, codes(report)) == (1, ["broker_unreachable", "no_beat"])
        assert report["broker"]["url"] == f"redis://:**@127.0.0.1:{broker.port}/0"
        broker.thaw()


@pytest.mark.slow
def test_a_hanging_beat_is_gone_and_a_stopped_beat_is_stopped(redis_site):
    # A pass is progress. An idle beat makes one pass in each dynbeat_poll_interval.
    redis_site.config.update(dynbeat_node_timeout=8, dynbeat_poll_interval=1)
    stopped = redis_site.beat().wait_for_log("beat started")
    hanging = redis_site.beat().wait_for_log("beat started")
    stopped.send_sigterm()
    stopped.wait()
    assert status(redis_site)[0] == 0

    os.kill(hanging.pid, signal.SIGSTOP)
    reports = []
    wait_until(lambda: reports.append(status(redis_site)) or reports[-1][0] == 1, within=30)
    os.kill(hanging.pid, signal.SIGCONT)

    exit_status, report = reports[-1]
    assert (exit_status, codes(report)) == (1, ["no_beat"])
    assert {node["pid"]: node["state"] for node in report["beats"]} == {
        stopped.pid: "stopped",
        hanging.pid: "gone",
    }


@pytest.mark.slow
def test_a_beat_without_its_broker_is_alive_and_reports_the_error(
    own_server, site_folder, postgresql_url
):
    broker = own_server(RedisServer)
    with site(site_folder, database_url=postgresql_url, broker_url=broker.url) as made:
        made.config.update(dynbeat_node_timeout=3, dynbeat_poll_interval=1)
        made.beat().wait_for_log("beat started")
        # A beat whose first pass fails is starting, not without progress.
        wait_until(lambda: status(made)[1]["beats"][0]["state"] == "working", within=30)
        broker.stop()
        reports = []

        wait_until(
            lambda: reports.append(status(made)) or "beat_failing" in codes(reports[-1][1]),
            within=40,
        )

        assert codes(reports[-1][1]) == ["broker_unreachable", "beat_failing"]
        (beat,) = reports[-1][1]["beats"]
        assert beat["state"] == "no_progress"
        assert "OperationalError" in beat["error"]


def test_no_worker_is_a_problem_when_runs_wait(redis_site):
    redis_site.beat().wait_for_log("beat started")
    exit_status, idle = status(redis_site)
    assert exit_status == 0
    assert "no_worker" in [warning["code"] for warning in idle["warnings"]]

    redis_site.create_once("record")
    redis_site.wait_for_run("record", "sent")

    exit_status, waiting = status(redis_site)
    assert (exit_status, codes(waiting)) == (1, ["no_worker"])
    assert waiting["runs"]["sent"] == {"count": 1, "more": False}


def test_a_queue_that_no_worker_consumes_is_a_problem_until_a_worker_consumes_it(redis_site):
    redis_site.config["dynbeat_node_timeout"] = 3
    redis_site.beat().wait_for_log("beat started")
    redis_site.worker().wait_for_log("ready.")
    redis_site.create_once("record", queue="reports")
    redis_site.wait_for_run("record", "sent")

    exit_status, waiting = status(redis_site)
    redis_site.app.control.add_consumer("reports", reply=True)
    redis_site.wait_for_run("record", "succeeded")
    reports = []
    wait_until(lambda: reports.append(status(redis_site)) or reports[-1][0] == 0, within=30)

    assert (exit_status, codes(waiting)) == (1, ["queue_not_consumed"])
    assert "'reports' (waiting runs: 1, schedules: 0)" in waiting["problems"][0]["text"]
    assert reports[-1][1]["unserved"] == {"queues": [], "tasks": []}


def test_status_writes_nothing(redis_site, postgresql_url):
    empty = status(redis_site)
    tables = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'dynbeat%'"
    with redis_site.dynbeat.context.database.engine.begin() as connection:
        assert connection.execute(text(tables)).scalar_one() == 0
    redis_site.dynbeat.context.prepare()
    name = postgresql_url.rpartition("/")[2]
    with redis_site.dynbeat.context.database.engine.begin() as connection:
        read_only = f"ALTER DATABASE {name} SET default_transaction_read_only = on"
        connection.execute(text(read_only))

    full = status(redis_site)

    assert (empty[0], codes(empty[1])) == (1, ["schema_outdated"])
    assert (full[0], codes(full[1])) == (1, ["no_beat"])


def test_status_does_not_create_a_missing_file(file_site):
    exit_status, report = status(file_site)

    assert (exit_status, codes(report)) == (1, ["schema_outdated"])
    assert "does not exist" in report["problems"][0]["text"]
    command = "celery -A tests.support.proj dynbeat schema upgrade"
    assert report["problems"][0]["hint"] == f"run `{command}`"
    assert not list(file_site.folder.glob("**/*.sqlite3"))
    assert not list(file_site.folder.parent.glob("dynbeat.sqlite3*"))


def test_a_wrong_configuration_is_named(redis_site):
    exit_status, bare = status(redis_site, **{BARE_VARIABLE: "1"})
    assert (exit_status, codes(bare)) == (1, ["configuration"])
    assert "add `dynbeat = Dynbeat(app)`" in bare["problems"][0]["text"]

    redis_site.config["dynbeat_pol_interval"] = 3
    exit_status, unknown = status(redis_site)
    assert (exit_status, codes(unknown)) == (1, ["configuration"])
    assert "did you mean dynbeat_poll_interval?" in unknown["problems"][0]["text"]
    assert unknown["broker"]["reachable"]


def test_prune_deletes_old_runs_and_prints_their_number(redis_site):
    redis_site.dynbeat.context.prepare()
    redis_site.mine.create("n", task="probe.record", trigger=Once.after(timedelta(days=1)))
    redis_site.mine.run_now("n")
    with redis_site.dynbeat.context.database.engine.begin() as connection:
        ended = "UPDATE dynbeat_run SET id = :id, status = 'succeeded', overdue_at = NULL,"
        old = f"{ended} created_at = :at, finished_at = :at"
        values = {"id": "01900000-0000-7000-8000-000000000000", "at": "2024-06-10 00:00:00+00"}
        assert connection.execute(text(old), values).rowcount == 1

    kept = redis_site.run("dynbeat", "prune", "--older-than", "36000")
    assert kept.wait(within=REPORTED_WITHIN) == 0
    assert "runs older than 36000 days deleted: 0" in kept.text

    gone = redis_site.run("dynbeat", "prune", "--json")
    assert gone.wait(within=REPORTED_WITHIN) == 0
    assert json.loads(gone.text.splitlines()[-1]) == {
        "ok": True,
        "dry_run": False,
        "deleted": 1,
        "older_than_days": 30.0,
        "changes_deleted": 0,
        "changes_older_than_days": 90.0,
        "refused": None,
    }
    assert redis_site.all_runs() == []


def test_prune_reports_an_unreachable_database(own_server, site_folder, redis_url):
    server = own_server(PostgreSQLServer)
    with site(site_folder, database_url=server.url, broker_url=redis_url) as made:
        server.stop()

        refused = made.run("dynbeat", "prune", "--json")

        assert refused.wait(within=REPORTED_WITHIN) == 1
        assert not json.loads(refused.text.splitlines()[-1])["ok"]


@pytest.fixture
def ping():
    """Return a function that pings a node; without a reply it takes its timeout."""

    def answers(site, name):
        replies = site.app.control.inspect([name], timeout=1).ping()
        return replies == {name: {"ok": "pong"}}

    return answers


@pytest.fixture
def pinged_beat():
    """Return a function that starts a beat that replies if a pass succeeded within 3 s."""

    def start(made):
        made.config.update(beat_remote_control_max_tick_age=3, dynbeat_poll_interval=1)
        options = ("--enable-remote-control", "-n", "beat1@test", "--max-interval", "1")
        return made.beat(*options).wait_for_log("beat started")

    return start


BEAT = "beat1@test"


@pytest.mark.slow
def test_beat_answers_a_ping_while_passes_succeed(
    site_folder, postgresql_server, postgresql_url, redis_url, ping, pinged_beat
):
    with (
        Proxy(postgresql_server.port) as proxy,
        site(site_folder, database_url=proxy.through(postgresql_url), broker_url=redis_url) as made,
    ):
        beat = pinged_beat(made)
        wait_until(lambda: ping(made, BEAT), within=15)

        proxy.refuse()
        wait_until(lambda: not ping(made, BEAT), within=15)
        silent = made.run("inspect", "ping", "-d", BEAT, "--timeout", "1")
        assert silent.wait(within=REPORTED_WITHIN) == os.EX_UNAVAILABLE
        assert beat.exit_status is None

        proxy.pass_on()
        wait_until(lambda: ping(made, BEAT), within=30)
        answered = made.run("inspect", "ping", "-d", BEAT, "--timeout", "3")
        assert answered.wait(within=REPORTED_WITHIN) == 0


def test_a_beat_whose_loop_hangs_answers_no_ping(redis_site, ping, pinged_beat):
    beat = pinged_beat(redis_site)
    wait_until(lambda: ping(redis_site, BEAT), within=15)

    os.kill(beat.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: not ping(redis_site, BEAT), within=15)
    finally:
        os.kill(beat.pid, signal.SIGCONT)

    wait_until(lambda: ping(redis_site, BEAT), within=15)


def test_a_worker_answers_a_ping_while_its_loop_turns(redis_site, ping):
    worker = redis_site.worker().wait_for_log("ready.")
    wait_until(lambda: ping(redis_site, "w1@test"), within=15)

    os.kill(worker.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: not ping(redis_site, "w1@test"), within=15)
    finally:
        os.kill(worker.pid, signal.SIGCONT)

    wait_until(lambda: ping(redis_site, "w1@test"), within=15)
