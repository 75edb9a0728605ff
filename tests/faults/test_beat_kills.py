"""Beats that are killed at each point of their passes, alone and beside others."""

from datetime import UTC, datetime, timedelta

import pytest

from celery_dynbeat import Every
from celery_dynbeat.db.models import Run, Status
from tests.support.killing import Mortals
from tests.support.waiting import wait_until

BATCH = 20
PASS_POINTS = ["recorded", "committed", "message 10", "published"]
ALONE_OR_BESIDE_OTHERS = pytest.mark.parametrize("beats", [1, 3], ids=["alone", "beside-others"])


def replace(fault_site, beats):
    """Start a beat in the place of the dead one, where it was alone; others just go on."""
    if beats == 1:
        fault_site.beat()


@ALONE_OR_BESIDE_OTHERS
@pytest.mark.parametrize("point", PASS_POINTS)
def test_a_beat_killed_in_its_pass_loses_and_doubles_nothing(fault_site, ledger, point, beats):
    mortals = Mortals(fault_site, point)
    fault_site.worker(pool="threads").wait_for_log("ready.")
    mortals.start(beats)
    ledger.once(BATCH, first_in=1)
    ledger.repeat(BATCH, seconds=3, first_in=2)

    with ledger.fault():
        mortals.wait_for_deaths(1)
        replace(fault_site, beats)

    ledger.settle(f"kill -9 of beat at {point!r}, {beats} beat(s)")
    assert len(mortals.dead) == 1


def test_the_others_do_not_wait_for_what_a_killed_beat_had_in_hand(fault_site, ledger):
    mortals = Mortals(fault_site, "committed")
    fault_site.worker(pool="threads").wait_for_log("ready.")
    mortals.start(3)
    ledger.once(BATCH, first_in=1)
    ledger.repeat(BATCH, seconds=3, first_in=2)

    with ledger.fault():
        mortals.wait_for_deaths(1)

    ledger.settle("kill -9 of one of three beats: the next fire times go out first")
    wait_until(lambda: not fault_site.count_runs(Run.sent_at.is_(None)), within=10)
    # What the dead beat recorded fires earlier, and goes out later.
    sent = sorted((run.sent_at, run.name) for run in fault_site.all_runs())
    assert sent[0][1].startswith("repeat")


@ALONE_OR_BESIDE_OTHERS
def test_a_beat_killed_in_its_sweep_loses_and_doubles_nothing(fault_site, ledger, beats):
    mortals = Mortals(fault_site, "committed", "swept")
    fault_site.worker(pool="threads").wait_for_log("ready.")
    mortals.start(beats)
    ledger.once(BATCH, first_in=0.5)

    mortals.wait_for_deaths(1)
    assert mortals.points_of_death == {"committed"}
    if beats == 1:
        mortals.start(1)
    with ledger.fault():
        mortals.wait_for_deaths(2)
        replace(fault_site, beats)

    ledger.settle(f"kill -9 of beat at 'committed', of another at 'swept', {beats} beat(s)")
    assert mortals.points_of_death == {"committed", "swept"}


@pytest.mark.combination(broker="rabbitmq")
def test_a_beat_killed_in_the_middle_of_its_publish_sends_the_rest_once(fault_site, ledger):
    assert_published_twice(fault_site, ledger, point="message 7", twice=7)


@pytest.mark.combination(broker="redis")
def test_a_beat_killed_in_the_middle_of_a_transaction_of_redis_has_sent_nothing(fault_site, ledger):
    assert_published_twice(fault_site, ledger, point="message 7", twice=0)


@pytest.mark.combination(broker="rabbitmq")
def test_all_messages_that_come_twice_start_once(fault_site, ledger):
    assert_published_twice(fault_site, ledger, point="published", twice=BATCH)


def assert_published_twice(fault_site, ledger, *, point, twice):
    """Kill beat with ``twice`` messages out, and let another send all of them before a worker."""
    fault_site.config["dynbeat_resend_after"] = 600
    mortals = Mortals(fault_site, point)
    mortals.start(1)
    ledger.once(BATCH, first_in=0.5)
    with ledger.fault():
        mortals.wait_for_deaths(1)
        fault_site.beat()
    wait_until(lambda: fault_site.count_runs(Run.status == Status.SENT) == BATCH, within=30)

    worker = fault_site.worker(pool="threads")
    ledger.settle(f"kill -9 of beat at {point!r}: {twice} of {BATCH} messages came twice")

    assert worker.text.count("refused: cancelled, or started before") == twice


@ALONE_OR_BESIDE_OTHERS
@pytest.mark.parametrize("point", PASS_POINTS)
def test_a_beat_killed_in_a_batch_of_a_backfill_loses_and_doubles_nothing(
    fault_site, ledger, point, beats
):
    mortals = Mortals(fault_site, point)
    fault_site.worker(pool="threads").wait_for_log("ready.")
    mortals.start(beats)
    fill_back(fault_site, ledger, 2 * BATCH)

    with ledger.fault():
        mortals.wait_for_deaths(1)
        replace(fault_site, beats)

    ledger.settle(f"kill -9 of beat at {point!r} of a backfill, {beats} beat(s)")
    (backfill,) = fault_site.mine.backfills("past")
    assert (backfill.made, backfill.finished_at is None) == (2 * BATCH, False)


def fill_back(fault_site, ledger, number):
    """Ask for runs of fire times long gone, in batches of BATCH; nothing else is due."""
    day = timedelta(days=1)
    first = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - 400 * day
    fault_site.mine.create("past", task="probe.record", trigger=Every(day, anchor=first))
    instants = [first + n * day for n in range(number)]
    ledger.expected |= {("past", instant) for instant in instants}
    fault_site.mine.backfill("past", start=first, end=instants[-1], batch_size=BATCH)
