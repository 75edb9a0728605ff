"""``dynbeat status --alerts``."""

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner
from sqlalchemy.orm import Session

from celery_dynbeat.cli import dynbeat as group
from celery_dynbeat.db.models import Alert
from tests.support.applications import MINUTELY, START
from tests.support.sinks import HttpSink

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def run(limited):
    def run(*arguments, **settings):
        dynbeat = limited(**settings)
        context = CLIContext(app=dynbeat.app, no_color=True, workdir=None)
        return CliRunner().invoke(group, arguments, obj=context)

    return run


def test_open_alerts_are_listed_with_their_cause(shown, dynbeat, mine):
    mine.create("digest", task="t", trigger=MINUTELY)
    values = {"task": "t", "kind": "failing", "opened_at": START, "cause": "KeyError: 'x'"}
    with Session(dynbeat.context.database.engine) as session, session.begin():
        session.add(
            Alert(schedule_id=mine.get("digest").id, owner=mine.owner, name="digest", **values)
        )

    (line,) = shown("status", "--alerts", "open")

    assert "digest" in line
    assert "KeyError: 'x'" in line


def test_a_test_message_goes_to_each_url(run):
    with HttpSink().serving() as one, HttpSink().serving() as other:
        result = run("status", "--alerts", "test", alert_urls=[one.url, other.url])

    assert result.exit_code == 0, result.output
    assert "2 of 2 URLs accepted the message" in result.output
    assert [sink.bodies[0]["title"] for sink in (one, other)] == ["[contract] test alert"] * 2


def test_a_url_that_refuses_is_named_by_its_position(run):
    refusing = HttpSink()
    refusing.status = 403
    with refusing.serving():
        result = run("status", "--alerts", "test", alert_urls=[refusing.url])

    assert result.exit_code == 1
    assert "1 of 1 URLs refused: URL 1:" in result.output
    assert "hunter2" not in result.output


def test_without_a_url_nothing_is_sent(run):
    result = run("status", "--alerts", "test")

    assert result.exit_code == 1
    assert "dynbeat_alert_urls has no URL" in result.output
