"""Deliveries to several targets at the same time."""

import threading
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from celery_dynbeat.alerts.delivery import deliver
from celery_dynbeat.alerts.sending import MAX_IN_FLIGHT
from tests.contract.alerts.test_messages import DELAY, stored
from tests.support.sinks import HttpSink, hanging_server, mail_url
from tests.support.waiting import wait_until

PATIENCE = 10


def targets(*names):
    return {"default": [], **{name: [f"json://{name}"] for name in names}}


@contextmanager
def sending_in_a_thread(messages):
    """Call ``run_once`` in a thread; wait for its end when the block ends."""
    thread = threading.Thread(target=messages.run_once)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(60)
    assert not thread.is_alive()


@pytest.fixture
def gated(deliveries):
    """Return a delivery that waits for ``opened`` if its target is called "hangs..."."""

    class Gated:
        opened = threading.Event()
        waiting = 0

        def __call__(self, content, urls, **options):
            if urls[0].startswith("json://hangs"):
                self.waiting += 1
                assert self.opened.wait(60)
            return deliveries(content, urls, **options)

    gate = Gated()
    yield gate
    gate.opened.set()


def test_a_target_that_does_not_answer_delays_no_other(
    limited, messages_of, add_alerts, clock, deliveries, gated
):
    dynbeat = limited(alert_urls=targets("hangs", "other"))
    add_alerts(dynbeat, prefix="first", target="hangs")
    add_alerts(dynbeat, prefix="second", target="other")
    clock.advance(DELAY)

    with sending_in_a_thread(messages_of(dynbeat, deliver=gated)):
        wait_until(lambda: deliveries.made, within=PATIENCE)
        assert [each.urls for each in deliveries.made] == [["json://other"]]
        wait_until(lambda: sent_targets(dynbeat) == ["other"], within=PATIENCE)
        gated.opened.set()

    assert sent_targets(dynbeat) == ["hangs", "other"]


def sent_targets(dynbeat):
    return sorted(each.target for each in stored(dynbeat) if each.sent_at)


def test_alerts_that_open_while_a_delivery_hangs_are_sent(
    limited, messages_of, add_alerts, clock, deliveries, gated
):
    dynbeat = limited(alert_urls=targets("hangs", "other"))
    add_alerts(dynbeat, prefix="first", target="hangs")
    clock.advance(DELAY)

    with sending_in_a_thread(messages_of(dynbeat, deliver=gated)):
        wait_until(lambda: gated.waiting, within=PATIENCE)
        add_alerts(dynbeat, prefix="second", target="other")
        wait_until(lambda: deliveries.made, within=PATIENCE)
        gated.opened.set()

    assert [each.urls for each in deliveries.made] == [["json://other"], ["json://hangs"]]


def test_the_number_of_deliveries_at_the_same_time_is_limited(
    limited, messages_of, add_alerts, clock, deliveries, gated
):
    names = [f"hangs{number}" for number in range(MAX_IN_FLIGHT + 2)]
    dynbeat = limited(alert_urls=targets(*names))
    for name in names:
        add_alerts(dynbeat, prefix=f"{name}-", target=name)
    clock.advance(DELAY)

    with sending_in_a_thread(messages_of(dynbeat, deliver=gated)):
        wait_until(lambda: gated.waiting == MAX_IN_FLIGHT, within=PATIENCE)
        leased = [each for each in stored(dynbeat) if each.leased_by]
        assert len(leased) == MAX_IN_FLIGHT
        gated.opened.set()

    assert len(deliveries.made) == len(names)


def test_a_target_has_one_message_at_a_time(
    limited, messages_of, add_alerts, clock, deliveries, gated
):
    dynbeat = limited(alert_urls=targets("hangs"))
    add_alerts(dynbeat, prefix="failed", kind="failed", target="hangs")
    add_alerts(dynbeat, prefix="late", kind="late", target="hangs")
    clock.advance(DELAY)

    with sending_in_a_thread(messages_of(dynbeat, deliver=gated)):
        wait_until(lambda: gated.waiting, within=PATIENCE)
        assert len([each for each in stored(dynbeat) if each.leased_by]) == 1
        gated.opened.set()

    assert len(deliveries.made) == 2


@contextmanager
def failing_results(dynbeat):
    """Make the write of each result of a try fail."""

    def fail(_connection, _cursor, statement, *_):
        if statement.startswith("UPDATE dynbeat_alert_message") and "delivered" in statement:
            raise OperationalError(statement, {}, Exception("server closed the connection"))

    engine = dynbeat.context.database.engine
    event.listen(engine, "before_cursor_execute", fail)
    yield
    event.remove(engine, "before_cursor_execute", fail)


def test_a_result_that_the_database_refuses_is_written_later(
    alerting, messages_of, add_alerts, clock, deliveries
):
    dynbeat = alerting()
    messages = messages_of(dynbeat)
    add_alerts(dynbeat)
    clock.advance(DELAY)
    with failing_results(dynbeat), pytest.raises(OperationalError):
        messages.run_once()
    # No other beat has taken the message.
    clock.advance(timedelta(minutes=10))
    messages.run_once()

    assert len(deliveries.made) == 1
    assert stored(dynbeat)[0].sent_at == clock.now()


def test_another_beat_delivers_again_after_a_lease_whose_result_was_not_written(
    alerting, messages_of, add_alerts, clock, deliveries
):
    dynbeat = alerting()
    messages, other = messages_of(dynbeat), messages_of(dynbeat, node="beat2")
    add_alerts(dynbeat)
    clock.advance(DELAY)
    with failing_results(dynbeat), pytest.raises(OperationalError):
        messages.run_once()
    clock.advance(timedelta(minutes=10))
    other.run_once()
    messages.run_once()

    assert len(deliveries.made) == 2
    assert stored(dynbeat)[0].sent_at == clock.now()


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_mail_server_that_does_not_answer_delays_no_webhook(
    limited, messages_of, add_alerts, clock
):
    with HttpSink().serving() as sink, ExitStack() as hanging:
        mail = mail_url(hanging.enter_context(hanging_server()))
        dynbeat = limited(alert_urls={"default": [mail], "hook": [sink.url]}, alert_timeout=60)
        add_alerts(dynbeat, prefix="mail")
        add_alerts(dynbeat, prefix="hook", target="hook")
        clock.advance(DELAY)
        with sending_in_a_thread(messages_of(dynbeat, deliver=deliver)):
            # Two processes start, and import Apprise. The mail server may take 60 s.
            wait_until(lambda: sent_targets(dynbeat) == ["hook"], within=40)
            assert [each.target for each in stored(dynbeat) if each.leased_by] == ["default"]
            # The end of the server ends the delivery.
            hanging.close()

    assert len(sink.bodies) == 1
