"""PgBouncer in transaction mode supports neither LISTEN nor prepared statements."""

import asyncio
import json
from datetime import timedelta

import pytest
from sqlalchemy import make_url

from celery_dynbeat import Every, Once
from tests.support.applications import async_application
from tests.support.fixtures import service_is_missing
from tests.support.servers import PgBouncerServer, ServerMissingError
from tests.support.sites import site
from tests.support.waiting import wait_until

#: The poll interval, longer than any test.
NEVER = 600.0


@pytest.fixture
def pooled_url(postgresql_url):
    """Yield the URL of a new database through a pooler with two server connections."""

    class Pooler(PgBouncerServer):
        server_port = make_url(postgresql_url).port

    try:
        server = Pooler()
    except ServerMissingError as error:
        service_is_missing(str(error))
    with server:
        pooled = make_url(postgresql_url).set(port=server.port)
        yield pooled.render_as_string(hide_password=False)


@pytest.fixture
def pooled_site(tmp_path, pooled_url, redis_url):
    with site(
        tmp_path,
        database_url=pooled_url,
        broker_url=redis_url,
        dynbeat_poll_interval=NEVER,
    ) as created:
        yield created


def test_beat_notices_that_no_notification_arrives_and_uses_the_broker(pooled_site):
    beat = pooled_site.beat().wait_for_log("LISTEN receives no notification", within=30)
    wait_until(
        lambda: [node.notifier for node in pooled_site.nodes("beat")] == ["broker"], within=15
    )

    for number in range(3):
        name = f"soon-{number}"
        pooled_site.mine.create(name, task="probe.record", trigger=Once.after(timedelta(seconds=1)))
        pooled_site.wait_for_run(name, "sent", within=4)

    status = pooled_site.run("dynbeat", "status", "--json", name="status")
    status.wait(within=30)
    shown = json.loads(status.text.splitlines()[-1])
    assert "notifier_fallback" in [warning["code"] for warning in shown["warnings"]]
    assert [each["notifier"] for each in shown["beats"]] == ["broker"]
    # The fallback listener must stop with beat.
    beat.terminate()


def test_prepared_statements_that_the_pooler_loses_fail_no_call_and_no_outcome(pooled_site):
    pooled_site.config.update(dynbeat_notifier="broker")
    pooled_site.app.conf.dynbeat_notifier = "broker"
    beats = [pooled_site.beat().wait_for_log("beat started") for _ in range(2)]
    worker = pooled_site.worker(pool="threads").wait_for_log("ready")
    for number in range(20):
        pooled_site.mine.create(
            f"every-{number}", task="probe.record", trigger=Every(timedelta(seconds=1))
        )

    def succeeded():
        return sum(run.status == "succeeded" for run in pooled_site.runs())

    wait_until(lambda: succeeded() > 200, within=60)
    for number in range(20):
        pooled_site.mine.pause(f"every-{number}")

    wait_until(
        lambda: {run.status for run in pooled_site.runs()} <= {"succeeded", "revoked"}, within=30
    )
    for process in (*beats, worker):
        assert "dropped" not in process.text
        assert process.text.count("Continuing without prepared statements") <= 5


def test_concurrent_asynchronous_calls_through_the_pooler_prepare_no_statement(pooled_url, caplog):
    async def main():
        async with async_application(pooled_url) as dynbeat:
            owners = [dynbeat.schedules.for_owner(f"user:{n}") for n in range(20)]
            for _ in range(8):
                calls = (each.upsert("n", task="t", trigger=Every(60)) for each in owners)
                await asyncio.gather(*calls)

            assert (await dynbeat.schedules.count()).count == 20

    asyncio.run(main())
    # If a statement is lost, the calls are repeated, and a warning is logged.
    assert [each for each in caplog.records if "prepared" in each.getMessage()] == []
