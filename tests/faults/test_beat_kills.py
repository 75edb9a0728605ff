"""Beats that are killed at each point of their passes, alone and beside others."""

from datetime import UTC, datetime, timedelta

import pytest

from celery_dynbeat import Every
from celery_dynbeat.db.models import Run, Status
from tests.support.killed_beats import KilledBeats
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
def test_a_beat_killed_in_its_pass_loses_and_doubles_nothing(fault_site, workload, point, beats):
    killed_beats = KilledBeats(fault_site, point)
    fault_site.worker(pool="threads").wait_for_log("ready.")
    killed_beats.start(beats)
    workload.create_one_offs(BATCH, first_in=1)
    workload.create_repeating(BATCH, seconds=3, first_in=2)

    with workload.fault():
        killed_beats.wait_for_kills(1)
        replace(fault_site, beats)

    workload.verify(f"kill -9 of beat at {point!r}, {beats} beat(s)")
    assert len(killed_beats.dead) == 1


def test_the_others_do_not_wait_for_what_a_killed_beat_had_in_hand(fault_site, workload):
    killed_beats = KilledBeats(fault_site, "committed")
    fault_site.worker(pool="threads").wait_for_log("ready.")
    killed_beats.start(3)
    workload.create_one_offs(BATCH, first_in=1)
    workload.create_repeating(BATCH, seconds=3, first_in=2)

    with workload.fault():
        killed_beats.wait_for_kills(1)

    workload.verify("kill -9 of one of three beats: the next fire times go out first")
    wait_until(lambda: not fault_site.count_runs(Run.sent_at.is_(None)), within=10)
    # What the dead beat recorded fires earlier, and goes out later.
    sent = sorted((run.sent_at, run.name) for run in fault_site.all_runs())
    assert sent[0][1].startswith("repeat")


@ALONE_OR_BESIDE_OTHERS
def test_a_beat_killed_in_its_sweep_loses_and_doubles_nothing(fault_site, workload, beats):
    killed_beats = KilledBeats(fault_site, "committed", "swept")
    fault_site.worker(pool="threads").wait_for_log("ready.")
    killed_beats.start(beats)
    workload.create_one_offs(BATCH, first_in=0.5)

    killed_beats.wait_for_kills(1)
    assert killed_beats.killed_at == {"committed"}
    if beats == 1:
        killed_beats.start(1)
    with workload.fault():
        killed_beats.wait_for_kills(2)
        replace(fault_site, beats)

    workload.verify(f"kill -9 of beat at 'committed', of another at 'swept', {beats} beat(s)")
    assert killed_beats.killed_at == {"committed", "swept"}


@pytest.mark.combination(broker="rabbitmq")
def test_a_beat_killed_in_the_middle_of_its_publish_sends_the_rest_once(fault_site, workload):
    assert_published_twice(fault_site, workload, point="message 7", twice=7)


@pytest.mark.combination(broker="redis")
def test_a_beat_killed_in_the_middle_of_a_transaction_of_redis_has_sent_nothing(
    fault_site, workload
):
    assert_published_twice(fault_site, workload, point="message 7", twice=0)


@pytest.mark.combination(broker="rabbitmq")
def test_all_messages_that_come_twice_start_once(fault_site, workload):
    assert_published_twice(fault_site, workload, point="published", twice=BATCH)


def assert_published_twice(fault_site, workload, *, point, twice):
    """Kill beat with ``twice`` messages out, and let another send all of them before a worker."""
    fault_site.config["dynbeat_resend_after"] = 600
    killed_beats = KilledBeats(fault_site, point)
    killed_beats.start(1)
    workload.create_one_offs(BATCH, first_in=0.5)
    with workload.fault():
        killed_beats.wait_for_kills(1)
        fault_site.beat()
    wait_until(lambda: fault_site.count_runs(Run.status == Status.SENT) == BATCH, within=30)

    worker = fault_site.worker(pool="threads")
    workload.verify(f"kill -9 of beat at {point!r}: {twice} of {BATCH} messages came twice")

    assert worker.text.count("refused: cancelled, or started before") == twice


@ALONE_OR_BESIDE_OTHERS
@pytest.mark.parametrize("point", PASS_POINTS)
def test_a_beat_killed_in_a_batch_of_a_backfill_loses_and_doubles_nothing(
    fault_site, workload, point, beats
):
    killed_beats = KilledBeats(fault_site, point)
    fault_site.worker(pool="threads").wait_for_log("ready.")
    killed_beats.start(beats)
    fill_back(fault_site, workload, 2 * BATCH)

    with workload.fault():
        killed_beats.wait_for_kills(1)
        replace(fault_site, beats)

    workload.verify(f"kill -9 of beat at {point!r} of a backfill, {beats} beat(s)")
    (backfill,) = fault_site.mine.backfills("past")
    assert (backfill.made, backfill.finished_at is None) == (2 * BATCH, False)


def fill_back(fault_site, workload, number):
    """Ask for runs of fire times long gone, in batches of BATCH; nothing else is due."""
    day = timedelta(days=1)
    first = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - 400 * day
    fault_site.mine.create("past", task="probe.record", trigger=Every(day, anchor=first))
    instants = [first + n * day for n in range(number)]
    workload.expected |= {("past", instant) for instant in instants}
    fault_site.mine.backfill("past", start=first, end=instants[-1], batch_size=BATCH)
