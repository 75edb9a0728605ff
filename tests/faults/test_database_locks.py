"""The transaction of another program locks due rows."""

import time
from datetime import timedelta

import psutil
from sqlalchemy import select
from sqlalchemy.orm import Session

from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run, Schedule
from tests.support.failpoints import COUNT_VARIABLE, COUNTING
from tests.support.fault_summary import SUMMARY_PROPERTY
from tests.support.sites import OWNER
from tests.support.waiting import wait_until

LOCKED = 10
#: Beat checks for rows that are unlocked every 50 ms.
PASSES_PER_SECOND = 30


def lock_some(session):
    # Not the row of celery.backend_cleanup, which belongs to the application.
    mine = select(Schedule).where(Schedule.owner == OWNER).order_by(Schedule.id)
    return {row.name for row in session.scalars(mine.limit(LOCKED).with_for_update())}


def test_locked_rows_delay_no_other_run_and_beat_does_not_spin(
    fault_site, workload, record_property
):
    counted = fault_site.folder / "passes"
    beat = fault_site.beat(scheduler=COUNTING, **{COUNT_VARIABLE: str(counted)})
    beat.wait_for_log("beat started")
    fault_site.worker(pool="threads").wait_for_log("ready.")
    workload.create_one_offs(100, first_in=1.5)

    with workload.fault(), Session(fault_site.dynbeat.context.database.engine) as holder:
        locked = lock_some(holder)
        wait_until(lambda: ended(fault_site) == 100 - LOCKED, within=20)
        passes, seconds, busy = watch(beat, counted)
        late = [run.lag for run in fault_site.runs()]
        assert not {run.name for run in fault_site.runs()} & locked
        holder.rollback()

    workload.verify(f"{LOCKED} of 100 due rows locked by another transaction")
    assert max(late) < timedelta(seconds=1.5)
    assert passes / seconds < PASSES_PER_SECOND
    assert busy < 0.5
    record_property(
        SUMMARY_PROPERTY,
        f"beat with {LOCKED} locked rows: {passes / seconds:.0f} passes per second,"
        f" {busy:.0%} of a core; lag max of the others {max(late).total_seconds():.2f} s",
    )


def ended(fault_site):
    return fault_site.count_runs(Run.status == Status.SUCCEEDED)


def watch(beat, counted):
    """Watch forty passes; return their number, the seconds, and beat's share of a core."""
    process, began, first = psutil.Process(beat.pid), time.monotonic(), counted.stat().st_size
    before = sum(process.cpu_times()[:2])
    wait_until(lambda: counted.stat().st_size >= first + 40, within=30)
    seconds = time.monotonic() - began
    cpu = sum(process.cpu_times()[:2]) - before
    return counted.stat().st_size - first, seconds, cpu / seconds
