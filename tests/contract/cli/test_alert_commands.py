"""alerts, test-alert."""

from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from celery_dynbeat.common.recipients import Recipient
from celery_dynbeat.common.settings import apprise_urls
from celery_dynbeat.db.alert_models import Alert, AlertMessage
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
        f"{dynbeat.schedules.alerts()[0].id}\tuser:42\tdigest\tfailed\terror"
        "\t2026-11-21T09:00:00Z\t3\tKeyError: 'x'\\x1b[2J"
        f"\t{RUN_ID}\tdefault\t\t\t\t\t"
    )
    assert as_json("alerts") == [each.to_dict() for each in dynbeat.schedules.alerts()]
    assert len(shown("alerts", "--all")) == 2
    assert shown("alerts", "--owner", "user:7") == []


def test_alerts_are_acknowledged_and_snoozed_by_their_ids(
    shown, as_json, refused, dynbeat, add_alert, clock
):
    add_alert("user:42", "digest")
    add_alert("user:7", "sync")
    first, second = (str(each.id) for each in dynbeat.schedules.alerts())

    assert shown("ack", first, second, "--actor", "alice") == [
        f"alert {first}, failed of schedule 'digest': acknowledged",
        f"alert {second}, failed of schedule 'sync': acknowledged",
    ]
    (snoozed,) = as_json("snooze", first, "--until", "4h", "--actor", "bob")
    (listed,) = as_json("alerts", "--owner", "user:42")
    assert snoozed == listed
    assert (listed["snoozed_by"], listed["acknowledged_by"]) == ("bob", None)
    assert listed["snoozed_until"] == (clock.now() + timedelta(hours=4)).isoformat()
    assert "alice" in shown("alerts", "--owner", "user:7")[0]
    assert "no longer snoozed" in shown("snooze", first, "--end")[0]

    assert refused("ack", second, "--owner", "user:42")[0] == 1
    assert "no open alert 999" in refused("ack", "999")[1]
    assert refused("snooze", first)[0] == 2
    assert refused("snooze", first, "--until", "40d")[0] == 1
    assert refused("ack", "x")[0] == 2


def test_without_alerts_the_command_says_that_they_are_off(command):
    result = command("alerts")

    assert (result.exit_code, result.stdout) == (0, "")
    assert "alerts are off: set dynbeat_alert_urls" in result.stderr


@pytest.fixture
def add_messages(dynbeat):
    """Insert a message of each state to the target "ops"."""
    states = {
        "sent": {"sent_at": START},
        "dropped": {"dropped_at": START, "error": "403 Forbidden"},
        "failing": {"next_try_at": START, "error": "no answer in time", "attempts": 2},
        "waiting": {"next_try_at": START + timedelta(minutes=1)},
    }
    with Session(dynbeat.context.database.engine) as session, session.begin():
        for number, values in enumerate(states.values()):
            session.add(
                AlertMessage(
                    target="ops", previous_id=number, severity="error", payload={}, **values
                )
            )


@pytest.mark.usefixtures("add_messages")
def test_alert_targets_shows_what_the_messages_have_become(shown, as_json, dynbeat, add_alert):
    add_alert("user:42", "digest")
    with Session(dynbeat.context.database.engine) as session, session.begin():
        for each in session.scalars(select(Alert)):
            each.unsent, each.unsent_at, each.target = "opened", START, "ops"

    (line,) = shown("alert-targets")
    assert line.split("\t") == [
        *("ops", "0", "1", "2", "1", "1", "1"),
        *("2026-11-21T09:00:00Z", "2026-11-21T09:00:00Z", "no answer in time"),
    ]
    (listed,) = as_json("alert-targets")
    assert [listed] == [each.to_dict() for each in dynbeat.schedules.alert_targets()]
    assert (listed["waiting"], listed["error"]) == (2, "no answer in time")


@pytest.mark.usefixtures("add_messages")
def test_the_list_of_alerts_notes_targets_whose_messages_fail(command):
    result = command("alerts")

    note = (
        "target 'ops': messages that fail: 1, dropped in 7 days: 1; last error: no answer in time"
    )
    assert (result.stdout, note in result.stderr) == ("", True)
    assert note not in command("alerts", "--owner", "user:42").stderr


def test_a_configured_target_without_messages_is_listed(limited):
    (target,) = limited(alert_urls=["json://a", "json://b"]).schedules.alert_targets()

    assert (target.target, target.urls, target.sent, target.error) == ("default", 2, 0, None)


def test_a_target_without_urls_is_refused(refused):
    status, error = refused("test-alert", "billing")

    assert status == 1
    assert "target 'billing' has no URL; targets of dynbeat_alert_urls: none" in error


@pytest.fixture
def set_recipient(dynbeat):
    """Return a function that sets ``dynbeat_recipient``."""

    def set_to(function):
        recipient = Recipient(function, check_urls=apprise_urls)
        object.__setattr__(dynbeat.context.settings, "recipient", recipient)

    return set_to


def test_a_test_notice_without_a_recipient_is_refused(refused, set_recipient, caplog):
    assert "dynbeat_recipient is not set" in refused("test-alert", "--owner", "user:42")[1]

    set_recipient(lambda _owner: None)
    assert "returns None for 'user:42'" in refused("test-alert", "--owner", "user:42")[1]
    assert "gets no notices" in refused("test-alert", "--owner", "")[1]
    set_recipient(lambda _owner: 1 / 0)
    assert "failed: ZeroDivisionError" in refused("test-alert", "--owner", "user:42")[1]
    # The command does not try again.
    assert caplog.messages[-1].endswith("ZeroDivisionError; correct the function")
    assert refused("test-alert", "billing", "--owner", "user:42")[0] == 2


def test_a_test_notice_is_sent_to_the_task_of_the_recipient(
    dynbeat, shown, set_recipient, monkeypatch
):
    told = []

    @dynbeat.app.task(name="tell_owner")
    def tell_owner(**notice):
        told.append(notice)

    # Celery's send_task would publish the message; task_always_eager does not apply to it.
    monkeypatch.setattr(
        dynbeat.app, "send_task", lambda name, kwargs, **_: dynbeat.app.tasks[name](**kwargs)
    )
    set_recipient(lambda owner: "tell_owner" if owner == "user:42" else None)
    dynbeat.schedules.for_owner("user:42").set_timezone("Asia/Seoul")

    assert shown("test-alert", "--owner", "user:42") == ["owner user:42: task tell_owner was sent"]
    (notice,) = told
    assert (notice["owner"], notice["kind"]) == ("user:42", "failing")
    assert notice["text"] == "test-alert has been failing since 2026-11-21 18:00 (Asia/Seoul)."


@pytest.mark.slow
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
            "message: [contract] test-alert failed",
            "target default: 1 of 1 URLs accepted the message",
        ]
        assert sink.bodies[0]["title"] == "[contract] test-alert failed"

    def test_a_refusal_names_the_number_of_the_url_and_no_secret(self, sink, refused):
        sink.status = 403
        status, error = refused("test-alert")

        assert status == 1
        assert "1 of 1 URLs refused: URL 1:" in error
        assert "secret" not in error

    def test_a_test_notice_reaches_the_recipient_of_an_owner(self, sink, shown, set_recipient):
        set_recipient(lambda owner: [sink.url] if owner == "user:42" else None)
        lines = shown("test-alert", "--owner", "user:42")

        assert lines[-1] == "owner user:42: 1 of 1 URLs accepted the message"
        assert sink.bodies[0]["title"] == lines[0].removeprefix("message: ")
        assert "has been failing since" in sink.bodies[0]["message"]


@pytest.mark.parametrize("owner", ["org:7/", "x" * 300])
def test_a_test_notice_to_an_invalid_owner_is_a_usage_error(command, set_recipient, owner):
    asked = []
    set_recipient(lambda each: asked.append(each) or "tell")

    result = command("test-alert", "--owner", owner)

    assert (result.exit_code, asked) == (2, [])


def test_a_test_notice_that_the_broker_does_not_accept_is_reported(
    command, set_recipient, dynbeat, monkeypatch
):
    def refuse(*_args, **_given):
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(dynbeat.app, "send_task", refuse)
    set_recipient(lambda _: "tell")

    result = command("test-alert", "--owner", "user:42")

    assert result.exit_code == 1
    assert "the broker did not accept task tell: " in result.stderr
    assert "check broker_url" in result.stderr
