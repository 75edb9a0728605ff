"""Each alert is reported to each URL: once per interval, by one beat, until it is accepted."""

from datetime import timedelta

import pytest

from celery_dynbeat.common.states import Status
from tests.support.applications import MINUTELY
from tests.support.suites import each_database

MINUTE = timedelta(minutes=1)


def failing(each, clock, *names):
    for name in names:
        each.mine.create(name, task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    each.run(succeeds=False)
    each.check()


def test_alerts_of_one_error_are_one_entry_of_one_message(alerting, clock, servers):
    each = alerting()
    failing(each, clock, "a", "b")
    each.send()

    (message,) = servers.messages
    assert message.title == "[contract] 2 schedules are failing"
    assert message.body.count("ValueError: no") == 1
    assert "- a of user:42 since" in message.body


def test_a_url_gets_one_message_per_interval(alerting, clock, servers):
    each = alerting()
    failing(each, clock, "a")
    each.send()
    failing(each, clock, "b")
    each.send()
    assert len(servers.messages) == 1

    clock.advance(5 * MINUTE)
    each.send()

    assert len(servers.messages) == 2


@pytest.mark.usefixtures("at_once")
def test_a_recovery_does_not_repeat_the_cause_and_says_what_is_still_open(alerting, clock, servers):
    each = alerting()
    failing(each, clock, "a", "b")
    each.send()
    clock.advance(MINUTE)
    each.worker.heartbeat()
    for run in each.send_runs():
        each.worker.start(run)
        each.worker.finish(run, Status.SUCCEEDED if run.name == "a" else Status.FAILED)
    each.beat.run_until_idle()
    each.check_and_send()

    message = servers.messages[1]
    assert message.title == "[contract] a of user:42 no longer fails"
    assert "ValueError" not in message.body
    assert "Still open: 1 failing." in message.body


def test_a_url_that_refuses_is_tried_again_and_delays_no_other_url(alerting, clock, servers):
    each = alerting(alert_urls=["json://a", "json://b"])
    servers.errors["json://a"] = "refused"
    failing(each, clock, "s")
    each.send()
    assert [message.url for message in servers.messages] == ["json://b"]
    assert each.alerts()[0].reported_at is None

    servers.errors.clear()
    clock.advance(MINUTE)
    each.send()

    assert [message.url for message in servers.messages] == ["json://b", "json://a"]
    assert each.alerts()[0].reported_at is not None


@each_database
def test_only_one_of_two_beats_sends(alerting, clock, servers):
    each = alerting()
    servers.errors["json://a"] = "refused"
    failing(each, clock, "s")
    each.send()
    servers.errors.clear()
    each.new_sending("b2").run(clock.now())

    assert servers.messages == []


@each_database
def test_another_beat_sends_what_a_killed_beat_has_sent_and_not_marked(alerting, clock, servers):
    each = alerting()
    failing(each, clock, "s")

    class KilledError(Exception):
        """The beat was killed."""

    def killed(url, message, timeout):
        servers.send(url, message, timeout)
        raise KilledError

    each.sending._send = killed
    with pytest.raises(KilledError):
        each.send()
    clock.advance(2 * MINUTE)
    each.new_sending("b2").run(clock.now())

    assert len(servers.messages) == 2
    assert each.alerts()[0].reported_at is not None


def test_a_url_that_refuses_for_a_day_is_given_up(alerting, clock, servers):
    each = alerting()
    servers.errors["json://a"] = "refused"
    failing(each, clock, "s")
    each.send()
    clock.advance(timedelta(days=1))
    each.send()

    assert each.alerts()[0].reported_at is not None


@each_database
def test_only_the_row_of_the_lease_is_written_while_a_url_refuses(
    alerting, clock, servers, executed
):
    each = alerting()
    servers.errors["json://a"] = "refused"
    failing(each, clock, *"abc")
    executed(each.database)
    for _ in range(3):
        clock.advance(timedelta(seconds=10))
        each.send()

    assert [one for one in executed if one.startswith("UPDATE dynbeat_alert")] == []
    assert len([one for one in executed if one.startswith("UPDATE dynbeat_lock")]) == 3


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("ends", [True, False])
def test_what_changes_while_a_message_is_sent_is_reported_later(alerting, clock, servers, ends):
    each = alerting()
    failing(each, clock, "s")
    if not ends:
        each.send()
        each.run(succeeds=True)
        each.check()

    def change_and_send(url, message, timeout):
        clock.advance(MINUTE)
        each.run(succeeds=ends)
        each.check()
        return servers.send(url, message, timeout)

    each.sending._send = change_and_send
    each.send()
    each.sending._send = servers.send
    clock.advance(MINUTE)
    each.send()

    titles = ["s of user:42 is failing", "s of user:42 no longer fails", "s of user:42 is failing"]
    expected = titles[:2] if ends else titles
    assert servers.titles == [f"[contract] {title}" for title in expected]
