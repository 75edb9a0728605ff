"""Unsent alerts become few messages, and each message is delivered once."""

import hashlib
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from celery_dynbeat import signals
from celery_dynbeat.common.alert_kinds import AlertKind, Severity, Unsent
from celery_dynbeat.db.alert_models import Alert, AlertMessage
from tests.support.applications import START, execute
from tests.support.suites import one_database

DELAY = timedelta(seconds=10)
INTERVAL = timedelta(minutes=5)


def stored(dynbeat, kind=AlertMessage):
    with Session(dynbeat.context.database.engine) as session:
        return session.scalars(select(kind).order_by(kind.id)).all()


def test_alerts_of_the_first_seconds_are_one_message(
    alerting, messages_of, add_alerts, clock, deliveries
):
    dynbeat = alerting()
    messages = messages_of(dynbeat)
    add_alerts(dynbeat, 3)

    due_at = messages.run_once()
    assert (due_at, deliveries.made) == (START + DELAY, [])
    clock.advance(DELAY)
    messages.run_once()

    (sent,) = deliveries.made
    (group,) = sent.content.groups
    assert (group.kind, group.state, group.count) == (AlertKind.FAILED, Unsent.OPENED, 3)
    assert [example.name for example in group.examples] == ["s0", "s1", "s2"]
    assert group.examples[0].task == "t"
    assert sent.urls == ["json://a"]


def test_thousands_of_alerts_are_one_message_with_a_count_and_examples(
    alerting, messages_of, add_alerts, clock, deliveries
):
    dynbeat = alerting()
    add_alerts(dynbeat, 2_500)
    clock.advance(DELAY)

    messages_of(dynbeat).run_once()

    (group,) = deliveries.made[0].content.groups
    assert (group.count, len(group.examples)) == (2_500, 10)
    assert len(deliveries.made) == 1
    assert not any(alert.unsent for alert in stored(dynbeat, Alert))


def test_later_alerts_wait_for_the_interval(alerting, messages_of, add_alerts, clock, deliveries):
    dynbeat = alerting()
    messages = messages_of(dynbeat)
    add_alerts(dynbeat)
    clock.advance(DELAY)
    messages.run_once()
    add_alerts(dynbeat, 2, prefix="later", at=clock.now())

    clock.advance(INTERVAL - timedelta(seconds=1))
    due_at = messages.run_once()
    assert len(deliveries.made) == 1
    assert due_at == clock.now() + timedelta(seconds=1)
    clock.advance(timedelta(seconds=1))
    messages.run_once()

    assert [each.content.total for each in deliveries.made] == [1, 2]


def test_a_clock_that_was_set_back_does_not_delay_new_messages(
    alerting, messages_of, add_alerts, clock, deliveries
):
    dynbeat = alerting()
    messages = messages_of(dynbeat)
    clock.advance(timedelta(days=1))
    add_alerts(dynbeat, at=clock.now() - DELAY)
    messages.run_once()
    add_alerts(dynbeat, prefix="later", at=clock.now())

    clock.advance(-timedelta(days=1))
    messages.run_once()
    add_alerts(dynbeat, prefix="last", at=clock.now())

    assert messages.run_once() == clock.now() + INTERVAL
    assert [each.content.total for each in deliveries.made] == [1, 1]


@one_database
def test_a_late_run_is_a_milder_message_than_a_failed_one(
    alerting, messages_of, add_alerts, clock, deliveries
):
    dynbeat = alerting()
    add_alerts(dynbeat, kind="late", prefix="late", value="90")
    add_alerts(dynbeat, kind="failed", prefix="failed")
    clock.advance(DELAY)
    messages_of(dynbeat).run_once()

    severities = {each.content.severity: each.content.groups[0].kind for each in deliveries.made}
    assert severities == {Severity.WARNING: AlertKind.LATE, Severity.ERROR: AlertKind.FAILED}


@one_database
def test_each_target_gets_its_own_alerts(limited, messages_of, add_alerts, clock, deliveries):
    dynbeat = limited(alert_urls={"default": ["json://a"], "billing": ["json://b"]})
    add_alerts(dynbeat, 1)
    add_alerts(dynbeat, 2, prefix="bill", target="billing")
    add_alerts(dynbeat, 4, prefix="old", target="removed")
    clock.advance(DELAY)
    messages_of(dynbeat).run_once()

    sent = sorted((each.urls, each.content.total) for each in deliveries.made)
    # A target that the settings no longer have: the default one.
    assert sent == [(["json://a"], 1), (["json://a"], 4), (["json://b"], 2)]


def test_no_message_names_a_deleted_schedule(alerting, messages_of, add_alerts, clock, deliveries):
    dynbeat = alerting()
    add_alerts(dynbeat, 2)
    add_alerts(dynbeat, 2, prefix="gone")
    # As an erasure that deletes the schedules while a beat opens their alerts.
    execute(dynbeat, "DELETE FROM dynbeat_schedule WHERE name LIKE 'gone%'")
    clock.advance(DELAY)
    messages_of(dynbeat).run_once()

    (sent,) = deliveries.made
    (group,) = sent.content.groups
    assert (group.count, [each.name for each in group.examples]) == (2, ["s0", "s1"])
    assert not any(alert.unsent for alert in stored(dynbeat, Alert))


def test_without_urls_no_message_is_written(limited, messages_of, add_alerts, clock, deliveries):
    dynbeat = limited(alerts=True)
    add_alerts(dynbeat, 3)
    clock.advance(DELAY)

    assert messages_of(dynbeat).run_once() is None
    assert (deliveries.made, stored(dynbeat)) == ([], [])
    assert not any(alert.unsent for alert in stored(dynbeat, Alert))


def test_two_beats_deliver_a_message_once(alerting, messages_of, add_alerts, clock, deliveries):
    dynbeat = alerting()
    add_alerts(dynbeat)
    clock.advance(DELAY)
    other = messages_of(dynbeat, node="beat2")

    def deliver(*arguments, **options):
        # While the first beat delivers.
        assert other.run_once() is not None
        return deliveries(*arguments, **options)

    messages_of(dynbeat, deliver=deliver).run_once()
    other.run_once()

    assert len(deliveries.made) == 1


def test_a_beat_that_dies_while_it_delivers_causes_one_duplicate(
    alerting, messages_of, add_alerts, clock, deliveries
):
    dynbeat = alerting()
    add_alerts(dynbeat)
    clock.advance(DELAY)

    def deliver_and_die(*arguments, **options):
        deliveries(*arguments, **options)
        raise SystemExit

    with pytest.raises(SystemExit):
        messages_of(dynbeat, deliver=deliver_and_die).run_once()
    other = messages_of(dynbeat, node="beat2")
    due_at = other.run_once()
    assert len(deliveries.made) == 1
    clock.advance(due_at - clock.now())
    other.run_once()
    clock.advance(timedelta(hours=2))
    other.run_once()

    assert len(deliveries.made) == 2
    assert stored(dynbeat)[0].sent_at is not None


def test_the_result_of_a_beat_whose_lease_has_ended_is_not_written(
    alerting, messages_of, add_alerts, clock, deliveries
):
    dynbeat = alerting()
    add_alerts(dynbeat)
    clock.advance(DELAY)
    other = messages_of(dynbeat, node="beat2")

    def deliver_slowly(*arguments, **options):
        clock.advance(timedelta(minutes=10))
        other.run_once()
        deliveries.errors["json://a"] = "too late"
        return deliveries(*arguments, **options)

    messages_of(dynbeat, deliver=deliver_slowly).run_once()

    (message,) = stored(dynbeat)
    assert (message.error, message.next_try_at) == (None, None)


@one_database
def test_an_url_that_refuses_is_tried_again_without_the_others(
    limited, messages_of, add_alerts, clock, deliveries, caplog
):
    dynbeat = limited(alert_urls=["json://good", "json://bad"])
    messages = messages_of(dynbeat)
    add_alerts(dynbeat)
    clock.advance(DELAY)
    deliveries.errors["json://bad"] = "connection refused"

    due_at = messages.run_once()
    (message,) = stored(dynbeat)
    assert (len(message.delivered), message.error) == (1, "connection refused")
    assert "alert_delayed" in [record.event for record in caplog.records]
    clock.advance(due_at - clock.now())
    del deliveries.errors["json://bad"]
    messages.run_once()

    assert [each.urls for each in deliveries.made] == [
        ["json://good", "json://bad"],
        ["json://bad"],
    ]
    assert stored(dynbeat)[0].sent_at == clock.now()


@one_database
@pytest.mark.parametrize(
    ("later", "tried"),
    [
        (["json://bad", "json://good"], ["json://bad"]),
        (["json://new", "json://bad", "json://good"], ["json://new", "json://bad"]),
        (["json://good"], None),
        (["json://new"], ["json://new"]),
    ],
    ids=["reordered", "longer", "shorter", "replaced"],
)
def test_a_retry_after_a_change_of_the_urls_skips_and_doubles_none(
    limited, messages_of, add_alerts, clock, deliveries, later, tried
):
    dynbeat = limited(alert_urls=["json://good", "json://bad"])
    add_alerts(dynbeat)
    clock.advance(DELAY)
    deliveries.errors["json://bad"] = "connection refused"
    due_at = messages_of(dynbeat).run_once()
    clock.advance(due_at - clock.now())
    deliveries.errors.clear()
    messages_of(limited(alert_urls=later), node="beat2").run_once()

    assert [each.urls for each in deliveries.made[1:]] == ([] if tried is None else [tried])
    assert stored(dynbeat)[0].sent_at == clock.now()


def test_no_url_and_no_fast_hash_of_it_is_stored(
    limited, messages_of, add_alerts, clock, deliveries
):
    accepted = "mailto://bob:pw@example.com"
    dynbeat = limited(alert_urls=[accepted, "json://bad"])
    for prefix in ("first", "second"):
        add_alerts(dynbeat, prefix=prefix, at=clock.now())
        clock.advance(INTERVAL)
        deliveries.errors["json://bad"] = "connection refused"
        messages_of(dynbeat).run_once()

    marks = [mark for message in stored(dynbeat) for mark in message.delivered]
    assert len(marks) == len(set(marks)) == 2
    clock.advance(timedelta(hours=2))
    messages_of(dynbeat).run_once()
    assert [(each.delivered, bool(each.dropped_at)) for each in stored(dynbeat)] == [([], True)] * 2
    fast = [getattr(hashlib, name)(accepted.encode()).hexdigest() for name in ("md5", "sha256")]
    assert not any(text in mark for mark in marks for text in ("bob", "pw@", *fast))


def test_a_target_that_loses_its_urls_drops_its_messages_with_the_reason(
    limited, messages_of, add_alerts, clock, deliveries
):
    dynbeat = limited(alert_urls={"default": ["json://a"], "billing": ["json://b"]})
    add_alerts(dynbeat, target="billing")
    clock.advance(DELAY)
    deliveries.errors["json://b"] = "connection refused"
    messages_of(dynbeat).run_once()
    clock.advance(timedelta(hours=2))
    without = limited(alert_urls={"default": ["json://a"], "billing": []})
    messages_of(without).run_once()

    (message,) = stored(dynbeat)
    assert (message.dropped_at, message.error) == (clock.now(), "the target has no URL")


def test_a_message_that_is_never_accepted_is_dropped_with_a_log_record_and_a_signal(
    alerting, messages_of, add_alerts, clock, deliveries, caplog
):
    dropped = []

    def receive(event, **_):
        dropped.append(event)

    dynbeat = alerting()
    messages = messages_of(dynbeat)
    add_alerts(dynbeat)
    clock.advance(DELAY)
    deliveries.failure = "no mail server"
    signals.alert_message_dropped.connect(receive)
    tries = 0
    while (due_at := messages.run_once()) is not None:
        tries += 1
        clock.advance(due_at - clock.now())

    assert clock.now() >= START + timedelta(hours=1)
    assert clock.now() < START + timedelta(hours=1, minutes=15)
    assert 6 <= tries <= 20
    assert [record.event for record in caplog.records][-1] == "alert_dropped"
    assert [(event.target, event.error) for event in dropped] == [("default", "no mail server")]
    assert stored(dynbeat)[0].dropped_at == clock.now()


def test_ended_messages_are_deleted_after_a_week(
    alerting, messages_of, add_alerts, clock, deliveries
):
    dynbeat = alerting()
    messages = messages_of(dynbeat)
    add_alerts(dynbeat)
    clock.advance(DELAY)
    messages.run_once()
    clock.advance(timedelta(days=7, seconds=1))
    messages.run_once()

    assert stored(dynbeat) == []
    assert len(deliveries.made) == 1


def test_a_message_that_cannot_be_read_is_dropped_and_affects_no_other(
    alerting, messages_of, add_alerts, clock, deliveries
):
    dynbeat = alerting()
    messages = messages_of(dynbeat)
    with Session(dynbeat.context.database.engine) as session:
        damaged = AlertMessage(
            target="default", severity="error", payload={"odd": 1}, created_at=START
        )
        damaged.next_try_at = START
        session.add(damaged)
        session.commit()
    clock.advance(INTERVAL)
    add_alerts(dynbeat, at=START)
    messages.run_once()

    assert [each.content.total for each in deliveries.made] == [1]
    clock.advance(timedelta(hours=1))
    messages.run_once()
    assert stored(dynbeat)[0].dropped_at is not None


def test_a_look_without_work_does_not_wait_for_the_writer_of_sqlite(
    alerting, messages_of, add_alerts, clock, sqlite_writer
):
    dynbeat = alerting()
    messages = messages_of(dynbeat)
    add_alerts(dynbeat)
    clock.advance(DELAY)
    messages.run_once()
    # They wait for the interval.
    add_alerts(dynbeat, prefix="later", at=clock.now())

    with sqlite_writer(dynbeat):
        assert messages.run_once() == clock.now() + INTERVAL


@pytest.fixture
def sqlite_writer(database_url):
    if not database_url.startswith("sqlite"):
        pytest.skip("other databases have several writers at a time")

    @contextmanager
    def lock(dynbeat):
        with dynbeat.context.database.engine.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield
            connection.rollback()

    return lock


def test_the_newest_message_is_kept_for_an_interval_that_is_longer_than_a_week(
    alerting, messages_of, add_alerts, clock, deliveries
):
    dynbeat = alerting(alert_interval=timedelta(days=30))
    messages = messages_of(dynbeat)
    add_alerts(dynbeat)
    clock.advance(DELAY)
    messages.run_once()
    clock.advance(timedelta(days=8))
    messages.run_once()
    add_alerts(dynbeat, prefix="later", at=clock.now())
    clock.advance(DELAY)
    messages.run_once()

    assert len(deliveries.made) == 1


MINUTE = timedelta(minutes=1)


def test_an_error_waits_for_no_message_about_a_warning(
    alerting, messages_of, add_alerts, clock, deliveries
):
    dynbeat = alerting()
    messages = messages_of(dynbeat)
    add_alerts(dynbeat, kind="late", prefix="late")
    clock.advance(DELAY)
    messages.run_once()
    add_alerts(dynbeat, kind="slow", prefix="slow", at=clock.now())
    add_alerts(dynbeat, kind="lost", prefix="lost", at=clock.now())
    clock.advance(DELAY)
    messages.run_once()
    add_alerts(dynbeat, kind="lost", prefix="more", at=clock.now())
    clock.advance(INTERVAL - MINUTE)
    messages.run_once()

    # The other lost run waits for the interval of errors.
    kinds = [[group.kind for group in each.content.groups] for each in deliveries.made]
    assert kinds == [[AlertKind.LATE], [AlertKind.LOST]]
    clock.advance(MINUTE)
    messages.run_once()

    # The more severe message is first.
    kinds = [[group.kind for group in each.content.groups] for each in deliveries.made]
    assert kinds[2:] == [[AlertKind.LOST], [AlertKind.SLOW]]


def test_a_recovery_is_sent_when_it_has_lasted(
    alerting, messages_of, add_alerts, clock, deliveries
):
    dynbeat = alerting()
    messages = messages_of(dynbeat)
    ended = {"unsent": "'recovered'", "checked_at": "NULL"}
    ended["recovered_at"] = ended["unsent_at"] = f"'{START:%Y-%m-%d %H:%M:%S}'"
    add_alerts(dynbeat, kind="late", prefix="s", **ended)
    # The schedule of the late run still fails.
    execute(
        dynbeat,
        "INSERT INTO dynbeat_alert (schedule_id, owner, name, kind, opened_at, last_at, target,"
        " checked_at) SELECT schedule_id, owner, name, 'failed', opened_at, last_at, target,"
        " opened_at FROM dynbeat_alert",
    )

    assert messages.run_once() == START + INTERVAL
    # An opening does not take the recovery with it.
    add_alerts(dynbeat, kind="lost", prefix="lost")
    clock.advance(DELAY)
    messages.run_once()
    clock.advance(INTERVAL)
    messages.run_once()

    first, second = [each.content.groups for each in deliveries.made]
    assert [group.kind for group in first] == [AlertKind.LOST]
    assert [(group.kind, group.state) for group in second] == [(AlertKind.LATE, Unsent.RECOVERED)]
    assert (second[0].still_open, second[0].examples[0].still) == (1, ["failed"])


@one_database
def test_alerts_are_grouped_by_task_and_error_with_the_first_cause_first(
    alerting, messages_of, add_alerts, clock, deliveries
):
    dynbeat = alerting()
    add_alerts(dynbeat, prefix="one", detail="'KeyError: 17'")
    add_alerts(dynbeat, 30, prefix="many", detail="'OSError: no route'")
    add_alerts(dynbeat, 2, prefix="two", detail="'KeyError: 42'")
    clock.advance(DELAY)
    messages_of(dynbeat).run_once()

    (group,) = deliveries.made[0].content.groups
    assert group.count == 33
    assert [(cause.task, cause.error, cause.count) for cause in group.causes] == [
        ("t", "KeyError: 17", 3),
        ("t", "OSError: no route", 30),
    ]
    assert [len(cause.examples) for cause in group.causes] == [3, 7]


def test_a_late_schedule_without_a_run_is_not_sent_yet(
    alerting, messages_of, add_alerts, clock, deliveries
):
    dynbeat = alerting()
    add_alerts(dynbeat, kind="late", prefix="waits")
    clock.advance(10 * MINUTE)
    add_alerts(dynbeat, kind="late", prefix="sent", at=clock.now())
    clock.advance(DELAY)
    messages_of(dynbeat).run_once()

    (group,) = deliveries.made[0].content.groups
    progress = {each.name: each.progress for each in group.examples}
    assert progress == {"waits0": "not_sent", "sent0": "sent_late"}
