"""alerts, test-alert."""

import pytest
from sqlalchemy.orm import Session

from celery_dynbeat.db.alert_models import Alert
from tests.support.applications import MINUTELY, START
from tests.support.sinks import HttpSink

RUN_ID = "01a1ffea-b135-76a3-b9c5-3667a500c655"


@pytest.fixture
def add_alert(dynbeat):
    """Return a function that inserts a schedule with an alert."""

    def add(owner, name, *, is_open=True):
        created = dynbeat.schedules.for_owner(owner).create(name, task="t", trigger=MINUTELY)
        alert = Alert(
            schedule_id=created.id,
            owner=owner,
            name=name,
            kind="failed",
            opened_at=START,
            last_at=START,
            fact_count=3,
            run_id=RUN_ID,
            detail="KeyError: 'x'\x1b[2J",
            target="default",
            checked_at=START if is_open else None,
            recovered_at=None if is_open else START,
        )
        with Session(dynbeat.context.database.engine) as session, session.begin():
            session.add(alert)

    return add


def test_open_alerts_are_listed_with_their_error(shown, as_json, dynbeat, add_alert):
    add_alert("user:42", "digest")
    add_alert("user:7", "sync", is_open=False)

    (line,) = shown("alerts")
    assert line == (
        "user:42\tdigest\tfailed\terror\t2026-11-21T09:00:00Z\t3\tKeyError: 'x'\\x1b[2J"
        f"\t{RUN_ID}\tdefault\t"
    )
    assert as_json("alerts") == [each.to_dict() for each in dynbeat.schedules.alerts()]
    assert len(shown("alerts", "--all")) == 2
    assert shown("alerts", "--owner", "user:7") == []


def test_without_alerts_the_command_says_that_they_are_off(command):
    result = command("alerts")

    assert (result.exit_code, result.stdout) == (0, "")
    assert "alerts are off: set dynbeat_alert_urls" in result.stderr


def test_a_target_without_urls_is_refused(refused):
    status, error = refused("test-alert", "billing")

    assert status == 1
    assert "target 'billing' has no URL; targets of dynbeat_alert_urls: none" in error


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
class TestTestAlert:
    """The messages go to a real server."""

    @pytest.fixture
    def sink(self, dynbeat):
        with HttpSink().serving() as sink:
            object.__setattr__(dynbeat.context.settings, "alert_urls", {"default": (sink.url,)})
            yield sink

    def test_a_test_message_reaches_the_target(self, sink, shown):
        lines = shown("test-alert")

        assert lines == [
            "[contract] test-alert failed",
            "target default: 1 of 1 URLs accepted the message",
        ]
        assert sink.bodies[0]["title"] == lines[0]

    def test_a_refusal_names_the_number_of_the_url_and_no_secret(self, sink, refused):
        sink.status = 403
        status, error = refused("test-alert")

        assert status == 1
        assert "1 of 1 URLs refused: URL 1:" in error
        assert "secret" not in error
