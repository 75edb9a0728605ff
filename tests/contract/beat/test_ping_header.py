"""Beat marks the messages of schedules with a ping URL. The URL itself stays in the database."""

from datetime import timedelta

import pytest

from celery_dynbeat.broker import HEADER_PING, run_headers
from celery_dynbeat.store import runs
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, execute

URL = "https://hc-ping.com/d7b2-secret"


@pytest.fixture
def dynbeat(limited):
    return limited(ping_hosts=["hc-ping.com"])


@pytest.fixture
def schedule(dynbeat, mine):
    mine.create("n", task="t", trigger=MINUTELY)
    set_url(dynbeat, URL)


def set_url(dynbeat, url):
    execute(dynbeat, "UPDATE dynbeat_schedule SET ping_url = :url", url=url)


def headers_by_origin(beat):
    beat.run_until_idle()
    return {run.origin: run_headers(run) for run in beat.publisher.sent}


@pytest.mark.usefixtures("schedule")
def test_runs_of_the_schedule_and_manual_runs_are_marked_without_the_url(beat, mine, clock):
    mine.run_now("n")
    clock.advance(timedelta(minutes=2))

    headers = headers_by_origin(beat)

    assert headers["manual"][HEADER_PING] is headers["schedule"][HEADER_PING] is True
    assert "hc-ping" not in repr(beat.publisher.sent) + repr(headers)


@pytest.mark.usefixtures("schedule")
def test_without_the_setting_no_run_is_marked(limited):
    other = limited()
    other.schedules.for_owner("user:42").run_now("n")

    assert HEADER_PING not in headers_by_origin(ManualBeat(other))["manual"]


@pytest.mark.usefixtures("schedule")
def test_the_url_of_a_run_is_that_of_its_schedule(dynbeat, mine):
    run = mine.run_now("n")
    read = dynbeat.context.database.read

    assert read(lambda session: runs.ping_url(session, run_id=run.id)) == URL
    mine.delete("n")
    assert read(lambda session: runs.ping_url(session, run_id=run.id)) is None
