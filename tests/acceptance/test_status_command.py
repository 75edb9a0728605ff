"""``dynbeat status``, ``dynbeat prune`` and ``inspect ping`` on real installations."""

import json
import os
import signal

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_dynbeat.cli import dynbeat as group
from celery_dynbeat.db.schema import head
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer
from tests.support.sites import site
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.empty_database]

#: Seconds. An unreachable server is reported within about 10 s after the start of the process.
REPORTED_WITHIN = 40
SECRET = "s3cret"
#: An idle beat makes one pass, which is progress, in each dynbeat_poll_interval.
HASTY = {"dynbeat_node_timeout": 4, "dynbeat_poll_interval": 1}


def command(site, *arguments):
    """Run a command in this process. Return its exit status and its JSON output."""
    context = CLIContext(app=site.app, no_color=True, workdir=None)
    result = CliRunner().invoke(group, [*arguments, "--json"], obj=context)
    return result.exit_code, json.loads(result.stdout.splitlines()[-1])


def status(site):
    return command(site, "status")


def codes(report):
    return [problem["code"] for problem in report["problems"]]


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
def test_a_hanging_beat_is_gone_and_a_stopped_beat_is_stopped(
    site_folder, postgresql_url, redis_url
):
    with site(site_folder, database_url=postgresql_url, broker_url=redis_url, **HASTY) as made:
        stopped, hanging = made.beat(), made.beat()
        for beat in (stopped, hanging):
            beat.wait_for_log("beat started")
        stopped.send_sigterm()
        stopped.wait()
        assert status(made)[0] == 0

        os.kill(hanging.pid, signal.SIGSTOP)
        reports = []
        wait_until(lambda: reports.append(status(made)) or reports[-1][0] == 1, within=30)
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
    urls = {"database_url": postgresql_url, "broker_url": broker.url}
    with site(site_folder, **urls, **HASTY) as made:
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


@pytest.mark.slow
def test_beat_answers_a_ping_while_passes_succeed(
    site_folder, postgresql_server, postgresql_url, redis_url
):
    name = "beat1@test"

    def answers():
        """Ping beat; without a reply it takes the timeout."""
        replies = made.app.control.inspect([name], timeout=1).ping()
        return replies == {name: {"ok": "pong"}}

    with (
        Proxy(postgresql_server.port) as proxy,
        site(site_folder, database_url=proxy.through(postgresql_url), broker_url=redis_url) as made,
    ):
        # It replies if a pass succeeded within 3 s.
        made.config.update(beat_remote_control_max_tick_age=3, dynbeat_poll_interval=1)
        beat = made.beat("--enable-remote-control", "-n", name, "--max-interval", "1")
        wait_until(answers, within=30)

        proxy.refuse()
        wait_until(lambda: not answers(), within=15)
        silent = made.run("inspect", "ping", "-d", name, "--timeout", "1")
        assert silent.wait(within=REPORTED_WITHIN) == os.EX_UNAVAILABLE
        assert beat.exit_status is None

        proxy.pass_on()
        wait_until(answers, within=30)
