"""Acknowledged and snoozed alerts: what messages report of them."""

from datetime import timedelta
from threading import Barrier, Thread

import pytest
from sqlalchemy.orm import Session

from celery_dynbeat import AlertNotFoundError, InvalidScheduleError
from celery_dynbeat.alerts import checks
from celery_dynbeat.common.states import Status
from tests.contract.alerting.conftest import evaluation
from tests.support.applications import MINUTELY, START, execute
from tests.support.suites import one_database

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
#: After this time an open alert is checked again.
LATER = checks.RECHECK_AFTER + timedelta(seconds=1)


@pytest.fixture
def made(alerting):
    """Return an application with one schedule."""
    made = alerting()
    made.mine.create("n", task="t", trigger=MINUTELY)
    return made


@pytest.fixture
def end_run(made, clock):
    """Return a function that ends the next run of the schedule, and evaluates."""

    def end(status=Status.FAILED):
        clock.advance(MINUTE)
        made.worker.heartbeat()
        made.beat.run_until_idle()
        run = made.beat.publisher.sent[-1]
        assert made.worker.start(run)
        made.worker.finish(run, status)
        # Beat notes the recovery of a schedule.
        made.beat.run_until_idle()
        made.alerts.run()

    return end


@pytest.fixture
def look(made, clock):
    """Return a function that lets time pass, evaluates, and returns the only alert."""

    def look(after=LATER):
        clock.advance(after)
        made.worker.heartbeat()
        made.alerts.run()
        (row,) = made.stored()
        return row

    return look


@pytest.fixture
def told(made):
    """Return a function that takes what a message would report, as the sender does."""

    def take():
        (row,) = made.stored()
        execute(made.dynbeat, "UPDATE dynbeat_alert SET unsent = NULL, unsent_at = NULL")
        return row.unsent

    return take


def alert_of(made):
    (alert,) = made.mine.alerts()
    return alert


def test_an_acknowledged_alert_is_not_reported_again_and_its_recovery_is_once(
    made, end_run, look, told
):
    end_run()
    with made.dynbeat.acting(actor="alice", reason="known"):
        info = made.mine.acknowledge_alert(alert_of(made).id)

    assert (info.acknowledged_by, info.message_status) == ("alice", None)
    end_run()
    look(HOUR)
    assert told() is None
    end_run(Status.SUCCEEDED)
    look()
    assert [told(), told()] == ["recovered", None]


def test_the_next_streak_of_an_acknowledged_alert_is_reported(made, end_run, look, told):
    end_run()
    made.mine.acknowledge_alert(alert_of(made).id)
    end_run(Status.SUCCEEDED)
    look(HOUR)
    told()
    end_run()

    assert told() == "opened"
    assert alert_of(made).acknowledged_at is None


def test_a_snoozed_alert_is_reported_once_when_it_is_still_open_at_the_end(
    made, end_run, look, told, clock
):
    end_run()
    assert told() == "opened"
    made.mine.snooze_alert(alert_of(made).id, until=clock.now() + HOUR)
    end_run()
    assert look(HOUR - 2 * MINUTE).unsent is None

    row = look(2 * MINUTE)
    assert (row.unsent, row.unsent_at, row.snoozed_until) == ("opened", clock.now(), None)
    assert told() == "opened"
    assert look().unsent is None
    end_run()
    assert told() is None


def test_a_snooze_of_an_alert_that_is_counted_without_a_pause_ends(made, end_run, told, clock):
    end_run()
    told()
    made.mine.snooze_alert(alert_of(made).id, until=clock.now() + 90 * timedelta(seconds=1))
    end_run()
    assert told() is None

    # No check of open alerts: it was checked less than RECHECK_AFTER ago.
    end_run()
    assert told() == "opened"


def test_a_recovery_while_snoozed_and_failures_after_it_are_not_reported(
    made, end_run, look, told, clock
):
    end_run()
    told()
    made.mine.snooze_alert(alert_of(made).id, until=clock.now() + HOUR)
    end_run(Status.SUCCEEDED)
    assert look().recovered_at is not None
    assert told() is None
    end_run()
    assert (told(), made.open()) == (None, ["failed"])
    end_run(Status.SUCCEEDED)
    look(HOUR)
    assert (told(), made.open()) == (None, [])
    # The snooze has ended: the next streak is reported once.
    end_run()
    assert told() == "opened"
    look()
    assert told() is None


def test_a_snooze_of_a_clock_that_was_set_back_by_a_year_ends(made, end_run, told):
    end_run()
    told()
    execute(made.dynbeat, "UPDATE dynbeat_alert SET snoozed_until = '2027-11-21 10:00:00'")

    end_run()

    assert told() == "opened"


def test_the_longest_snooze_is_kept_by_a_beat_whose_clock_is_behind(
    made, end_run, look, told, clock
):
    end_run()
    told()
    clock.advance(LATER + HOUR)
    made.mine.snooze_alert(alert_of(made).id, until=clock.now() + timedelta(days=30))
    clock.advance(-HOUR)

    look(timedelta(0))

    assert told() is None


def test_a_snooze_ends_at_once_and_an_acknowledgement_ends_it_silently(made, end_run, told, clock):
    end_run()
    told()
    alert = alert_of(made).id
    until = clock.now() + HOUR
    made.mine.snooze_alert(alert, until=until)
    assert made.mine.snooze_alert(alert, until=None).snoozed_until is None
    assert told() == "opened"

    made.mine.snooze_alert(alert, until=None)
    assert told() is None
    made.mine.snooze_alert(alert, until=until)
    assert made.mine.acknowledge_alert(alert).snoozed_until is None
    assert told() is None
    assert made.mine.snooze_alert(alert, until=until).acknowledged_by is None


def test_two_beats_report_the_end_of_a_snooze_once(made, end_run, told, clock, request):
    if "sqlite" in request.node.callspec.id:
        pytest.skip("SQLite has one writer")
    end_run()
    told()
    made.mine.snooze_alert(alert_of(made).id, until=clock.now() + HOUR)
    clock.advance(HOUR + LATER)
    made.worker.heartbeat()
    beats = [evaluation(made.dynbeat) for _ in range(2)]
    start, seen = Barrier(2), []

    def run(beat):
        start.wait()
        beat.run()
        seen.append(beat)

    threads = [Thread(target=run, args=[beat]) for beat in beats]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)

    assert len(seen) == 2
    assert [told(), told()] == ["opened", None]
    for beat in beats:
        beat.run()
    assert told() is None


@one_database
@pytest.mark.parametrize(
    "until", [START - HOUR, START + timedelta(days=31), "tomorrow", START.replace(tzinfo=None)]
)
def test_a_snooze_has_an_end_in_the_next_30_days(made, end_run, until):
    end_run()

    with pytest.raises(InvalidScheduleError) as caught:
        made.mine.snooze_alert(alert_of(made).id, until=until)
    assert caught.value.field == "until"


def test_only_an_open_alert_of_the_owner_is_changed(made, end_run, look):
    end_run()
    alert = alert_of(made).id
    other = made.dynbeat.schedules.for_owner("user:7")
    for call in (other.acknowledge_alert, lambda each: other.snooze_alert(each, until=None)):
        with pytest.raises(AlertNotFoundError):
            call(alert)
    end_run(Status.SUCCEEDED)
    look()

    with pytest.raises(AlertNotFoundError, match="it may have recovered"):
        made.dynbeat.schedules.acknowledge_alert(alert)
    with pytest.raises(InvalidScheduleError):
        made.mine.acknowledge_alert("1")


def test_the_audit_says_who_acknowledged_and_snoozed_until_when(made, end_run, clock):
    end_run()
    alert, until = alert_of(made).id, clock.now() + HOUR
    with made.dynbeat.acting(actor="alice", reason="vendor"):
        made.mine.snooze_alert(alert, until=until)
        made.mine.acknowledge_alert(alert)

    acknowledged, snoozed = made.mine.changes("n", limit=2)
    assert (acknowledged.action, acknowledged.actor) == ("acknowledge_alert", "alice")
    assert (snoozed.action, snoozed.reason) == ("snooze_alert", "vendor")
    assert snoozed.after == {"kind": "failed", "snoozed_until": until.isoformat()}


def test_a_change_joins_the_transaction_of_the_caller(made, end_run):
    end_run()
    alert = alert_of(made).id
    with Session(made.dynbeat.context.database.engine) as session:
        made.mine.acknowledge_alert(alert, session=session)
        session.rollback()

    assert alert_of(made).acknowledged_at is None
