"""The function of dynbeat_recipient may hang: beat keeps one thread for it, and logs it."""

import threading

import pytest

from celery_dynbeat.alerts import notice_sending
from celery_dynbeat.alerts.notice_content import Notice, NoticeContent
from celery_dynbeat.alerts.notice_sending import NOT_IN_TIME, NoticeSending
from celery_dynbeat.common.alert_kinds import NoticeKind
from celery_dynbeat.common.settings import Settings
from tests.support.waiting import wait_until

URL = "json://example.com"


def message_to(owner):
    notice = Notice(
        owner=owner,
        schedule="n",
        kind=NoticeKind.FAILING,
        since="2026-11-23T03:18:13Z",
        until=None,
        next_run=None,
        time_zone="UTC",
        failures=None,
    )
    return {"payload": NoticeContent(notices=[notice]).to_json()}


@pytest.fixture
def sending():
    def make(function):
        settings = Settings.read({"dynbeat_recipient": function}, timezone="UTC")
        return NoticeSending(settings, None, None)

    return make


def threads():
    return [each for each in threading.enumerate() if each.name == "dynbeat-recipient"]


def test_a_function_that_hangs_keeps_one_thread_and_fails_each_try_at_once(
    sending, monkeypatch, caplog
):
    monkeypatch.setattr(notice_sending, "RECIPIENT_TIMEOUT", 0.05)
    asked, released = [], threading.Event()

    def recipient(owner):
        asked.append(owner)
        released.wait()
        return [URL]

    made, before = sending(recipient), len(threads())
    plans = [made.plan(message_to(owner)) for owner in ("a", "b", "c")]

    assert [(each.error, each.is_logged) for each in plans] == [(NOT_IN_TIME, True)] * 3
    assert asked == ["a"]
    assert len(threads()) == before + 1
    failed = [each for each in caplog.records if each.event == "recipient_failed"]
    assert [each.owner for each in failed] == ["a"]

    released.set()
    wait_until(lambda: made.plan(message_to("d")).destinations == [URL], within=5)
    assert len(threads()) == before + 1


def test_a_function_that_ends_its_thread_is_an_error_of_its_message_alone(sending):
    answers = [SystemExit(1), None]

    def recipient(_owner):
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        return [URL]

    made = sending(recipient)
    assert made.plan(message_to("a")).error == "dynbeat_recipient failed: SystemExit"
    assert made.plan(message_to("a")).destinations == [URL]
