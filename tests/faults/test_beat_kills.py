"""Kill beats at each point of a pass: a single beat, and one of three."""

from datetime import UTC, datetime, timedelta

import pytest

from celery_dynbeat import Every
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run
from tests.support.killed_beats import KilledBeats
from tests.support.versions import needs_celery
from tests.support.waiting import wait_until

BATCH = 20
PASS_POINTS = ["recorded", "committed", "message 10", "published"]
SWEEP_POINTS = ["swept", "message 10", "published"]
#: Runs of a batch per minute: BATCH of them each second.
PACE = 60 * BATCH
ONE_OR_THREE_BEATS = pytest.mark.parametrize("beats", [1, 3], ids=["one-beat", "three-beats"])


def replace(fault_site, beats):
    """Start a new beat if the dead beat was the only one."""
    if beats == 1:
        fault_site.beat()


@ONE_OR_THREE_BEATS
@pytest.mark.parametrize("point", PASS_POINTS)
def test_a_beat_killed_in_a_pass_loses_and_duplicates_no_run(fault_site, workload, point, beats):
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


def test_other_beats_do_not_wait_for_the_runs_of_a_killed_beat(fault_site, workload):
    killed_beats = KilledBeats(fault_site, "committed")
    fault_site.worker(pool="threads").wait_for_log("ready.")
    killed_beats.start(3)
    workload.create_one_offs(BATCH, first_in=1)
    workload.create_repeating(BATCH, seconds=3, first_in=2)

    with workload.fault():
        killed_beats.wait_for_kills(1)

    workload.verify("kill -9 of one of three beats: the next fire times go out first")
    wait_until(lambda: not fault_site.count_runs(Run.sent_at.is_(None)), within=10)
    # The runs of the dead beat have earlier fire times, and are sent later.
    sent = sorted((run.sent_at, run.name) for run in fault_site.all_runs())
    assert sent[0][1].startswith("repeat")


@ONE_OR_THREE_BEATS
def test_a_beat_killed_in_a_sweep_loses_and_duplicates_no_run(fault_site, workload, beats):
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
def test_after_a_kill_during_publish_the_remaining_runs_are_sent_once(fault_site, workload):
    assert_published_twice(fault_site, workload, point="message 7", twice=7)


@needs_celery(5, 7, "a kombu that sends a batch to Redis in one transaction")
@pytest.mark.combination(broker="redis")
def test_a_beat_killed_during_a_redis_transaction_has_sent_nothing(fault_site, workload):
    assert_published_twice(fault_site, workload, point="message 7", twice=0)


@pytest.mark.combination(broker="rabbitmq")
def test_runs_whose_messages_are_all_published_twice_start_once(fault_site, workload):
    assert_published_twice(fault_site, workload, point="published", twice=BATCH)


def assert_published_twice(fault_site, workload, *, point, twice):
    """Kill beat after ``twice`` messages; start another beat, and a worker after its messages."""
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

    assert worker.text.count(" refused: ") == twice


@ONE_OR_THREE_BEATS
@pytest.mark.parametrize("point", SWEEP_POINTS)
def test_a_beat_killed_in_a_batch_of_a_backfill_loses_and_duplicates_no_run(
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
    (batch_id,) = {run.batch_id for run in fault_site.mine.runs("past", limit=99)}
    assert fault_site.mine.get_batch(batch_id).counts == {"succeeded": 2 * BATCH}


def fill_back(fault_site, workload, number):
    """Backfill old fire times, BATCH of them each second; no other run is due."""
    day = timedelta(days=1)
    first = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - 400 * day
    fault_site.mine.create("past", task="probe.record", trigger=Every(day, anchor=first))
    instants = [first + n * day for n in range(number)]
    workload.expected |= {("past", instant) for instant in instants}
    fault_site.mine.backfill(
        "past", since=first, until=instants[-1] + timedelta(seconds=1), per_minute=PACE
    )
