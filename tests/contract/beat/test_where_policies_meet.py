"""What stands before the sending of a run: one test for each cell of the table in guarantees.md.

Each row brings a run to the moment of its sending: READY, or DUE for a fire time. Each column puts
an obstacle in its way before that moment, and takes it away at FREE. A cell says what becomes of
the run:

    sent      it is sent at that moment, whatever the obstacle
    waits     it is sent at FREE, and not before
    skipped   it is recorded as skipped at that moment
    revoked   it is never sent, and has ended as revoked
    refused   the call is refused
    none      no run is made
"""

from datetime import date, timedelta

import pytest

from celery_dynbeat import Cron, InvalidScheduleError, Once, Retry, ScheduleHeldError
from celery_dynbeat.common.states import Status
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import START, execute
from tests.support.worker_stub import WorkerStub

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
#: The fire time of each schedule "n".
DUE = START + HOUR
READY, FREE = DUE + 30 * MINUTE, DUE + 2 * HOUR
OWNER = "user:42"
DAYS = "holidays"


class Site:
    """An application with the schedule "n", and a worker that starts and ends what beat sends."""

    def __init__(self, limited, clock, *, cap=None):
        self.dynbeat = limited(**({} if cap is None else {"max_running_per_owner": cap}))
        self.clock, self.mine = clock, self.dynbeat.schedules.for_owner(OWNER)
        self.beat, self.worker = ManualBeat(self.dynbeat), WorkerStub(self.dynbeat)
        self.sent = self.beat.publisher.sent
        self.dynbeat.calendars.upsert(DAYS, dates=[date(2000, 1, 1)])
        self.blockers = []
        #: The runs of "n" that a cell is not about.
        self.others = set()
        self.previous = None

    def create(self, *, hour=DUE.hour, **fields):
        rule = Cron(f"0 {hour} * * *", timezone="UTC").excluding(calendar=DAYS)
        self.mine.create("n", task="t", trigger=rule, **fields)

    def of_n(self):
        """Return the messages of "n"."""
        return [run for run in self.sent if run.name == "n"]

    def pass_to(self, at):
        self.clock.move_to(at)
        self.worker.heartbeat()
        self.beat.run_until_idle()

    def block(self, number=1):
        """Let runs of another schedule take places."""
        self.mine.create("blocker", task="t", trigger=Once(DUE + 30 * DAY))
        for _ in range(number):
            self.mine.run_now("blocker")
        self.beat.run_until_idle()
        self.blockers = [run for run in self.sent if run.name == "blocker"]
        assert len(self.blockers) == number
        for run in self.blockers:
            assert self.worker.start(run)

    def unblock(self):
        for run in self.blockers:
            self.worker.finish(run)
        self.blockers = []

    def statuses(self):
        """Return the statuses of the runs of "n" that are not ``previous``."""
        runs = self.mine.runs("n", limit=50).items
        return [run.status for run in runs if run.id not in self.others]


# The rows: ``prepare`` is before the obstacle, ``arrive`` makes the run ready.


class FireTime:
    """A fire time whose schedule becomes due under the obstacle."""

    cap = None

    def prepare(self, site):
        site.create()
        site.pass_to(DUE - MINUTE)

    def arrive(self, site):
        site.pass_to(DUE)


class CaughtUp(FireTime):
    """A fire time that passed while no beat ran."""

    def arrive(self, site):
        site.pass_to(READY)


class OfRetry:
    """A retry of the policy, which is due at READY."""

    cap = None

    def prepare(self, site):
        site.create(retry=Retry(times=3))
        site.pass_to(DUE)
        (run,) = site.of_n()
        assert site.worker.start(run)
        self.end(site, run)

    def end(self, site, run):
        site.worker.finish(run, Status.RETRYING, retry_at=READY, sent_by_beat=True)

    def arrive(self, site):
        site.pass_to(READY)


class Postponed(OfRetry):
    """A run that its task has postponed to READY."""

    def end(self, site, run):
        site.worker.postpone(run, until=READY)


class WaitsForPlace:
    """A run that waits for a place, which is free at READY."""

    cap = 1

    def prepare(self, site):
        site.create()
        site.block()
        site.pass_to(DUE)

    def arrive(self, site):
        site.clock.move_to(READY)
        site.unblock()
        site.pass_to(READY)


class Buffered:
    """A run that waits for the previous run, which ends at READY."""

    cap = None

    def prepare(self, site):
        site.create(overlap="buffer_one")
        site.pass_to(DUE - MINUTE)
        overlap(site)
        site.pass_to(DUE)

    def arrive(self, site):
        site.clock.move_to(READY)
        site.worker.finish(site.previous)
        site.pass_to(READY)


class OfBackfill:
    """The backfill of yesterday's fire time, requested at READY."""

    cap = None
    now = False

    def prepare(self, site):
        site.create(hour=START.hour - 1)
        site.pass_to(DUE)

    def arrive(self, site):
        site.clock.move_to(READY)
        yesterday = START - HOUR - DAY
        site.mine.backfill("n", since=yesterday, until=yesterday + MINUTE, now=self.now)
        site.pass_to(READY)


class BackfillNow(OfBackfill):
    """A backfill that does not wait for the end of quiet hours."""

    now = True


class OfRerun:
    """The rerun of a run that has failed, requested at READY."""

    cap = None
    now = False

    def prepare(self, site):
        site.create()
        site.pass_to(DUE)
        (run,) = site.of_n()
        self.failed_id = run.run_id
        site.others.add(run.run_id)
        site.worker.start(run)
        site.worker.finish(run, Status.FAILED)

    def arrive(self, site):
        site.clock.move_to(READY)
        site.mine.rerun(self.failed_id, now=self.now)
        site.pass_to(READY)


class RerunNow(OfRerun):
    """A rerun that does not wait for the end of quiet hours."""

    now = True


class OfManyReruns(OfRerun):
    """The rerun of many, requested at READY."""

    def arrive(self, site):
        site.clock.move_to(READY)
        site.mine.rerun_many(since=DUE, status="failed", name="n", now=self.now)
        site.pass_to(READY)


class ManyRerunsNow(OfManyReruns):
    """Reruns that do not wait for the end of quiet hours."""

    now = True


class OfRunNow:
    """A manual run, requested at READY."""

    cap = None

    def prepare(self, site):
        site.create(hour=START.hour - 1)
        site.pass_to(DUE)

    def arrive(self, site):
        site.clock.move_to(READY)
        site.mine.run_now("n")
        site.pass_to(READY)


# The columns: each puts the obstacle in place and returns what takes it away.


def hold(site):
    site.mine.hold(reason="r")
    return site.mine.release


def pause(site):
    site.mine.pause("n")
    return lambda: site.mine.resume("n")


def quarantine(site):
    execute(site.dynbeat, "UPDATE dynbeat_schedule SET error = 'x', next_run_at = NULL")
    return lambda: site.mine.resume("n")


def excluded_day(site):
    site.dynbeat.calendars.upsert(DAYS, dates=[DUE.date()])
    site.beat.run_until_idle()
    return lambda: None


def quiet_hours(site):
    site.mine.set_quiet_hours([f"{START:%H:%M}-{FREE:%H:%M}"])
    return lambda: None


def quiet_day(site):
    # The day of this zone ends at FREE.
    site.mine.set_timezone("Etc/GMT-12")
    site.dynbeat.calendars.upsert("quiet", dates=[DUE.date()])
    site.mine.set_quiet_hours(calendar="quiet")
    return lambda: None


def skip_list(site):
    # Without another fire time, beat decides about it at this instant.
    site.mine.update("n", end_at=DUE)
    site.mine.skip("n", DUE)
    return lambda: None


def overlap(site, policy=None):
    """Let a manual run of "n" be in progress."""
    if policy is not None:
        site.mine.update("n", overlap=policy)
    before = {run.run_id for run in site.of_n()}
    site.mine.run_now("n")
    site.beat.run_until_idle()
    (site.previous,) = (run for run in site.of_n() if run.run_id not in before)
    site.others.add(site.previous.run_id)
    assert site.worker.start(site.previous)
    return lambda: site.worker.finish(site.previous)


def overlap_skip(site):
    return overlap(site, "skip")


def overlap_buffer(site):
    return overlap(site, "buffer_one")


def overlap_cancel(site):
    return overlap(site, "cancel_previous")


def cap(site):
    site.block()
    return site.unblock


COLUMNS = {
    "hold": hold,
    "paused": pause,
    "error": quarantine,
    "excluded": excluded_day,
    "quiet": quiet_hours,
    "quiet day": quiet_day,
    "skip()": skip_list,
    "overlap=skip": overlap_skip,
    "overlap=buffer_one": overlap_buffer,
    "overlap=cancel_previous": overlap_cancel,
    "cap": cap,
}
#: In the order of the columns. None is a cell that cannot exist.
TABLE = {
    FireTime: (
        *("waits", "none", "none", "none", "waits", "waits", "skipped"),
        *("skipped", "waits", "sent", "waits"),
    ),
    CaughtUp: (
        *("waits", "none", "none", "none", "waits", "waits", "skipped"),
        *("skipped", "waits", "sent", "waits"),
    ),
    OfRetry: (
        *("waits", "revoked", "revoked", "sent", "waits", "waits", None),
        *("sent", "sent", "sent", "waits"),
    ),
    Postponed: (
        *("waits", "revoked", "revoked", "sent", "waits", "waits", None),
        *("sent", "sent", "sent", "waits"),
    ),
    WaitsForPlace: (
        *("waits", "revoked", "revoked", "sent", "waits", "waits", None),
        *(None, None, None, None),
    ),
    Buffered: (
        *("waits", "revoked", "revoked", "sent", "waits", "waits", None),
        *(None, None, None, None),
    ),
    OfBackfill: (
        *("waits", "sent", "sent", "sent", "waits", "waits", None),
        *("waits", "waits", "waits", "waits"),
    ),
    BackfillNow: (
        *("waits", "sent", "sent", "sent", "sent", "sent", None),
        *("waits", "waits", "waits", "waits"),
    ),
    OfRerun: (
        *("waits", "sent", "sent", "sent", "waits", "waits", None),
        *("waits", "waits", "waits", "waits"),
    ),
    RerunNow: (
        *("waits", "sent", "sent", "sent", "sent", "sent", None),
        *("waits", "waits", "waits", "waits"),
    ),
    OfManyReruns: (
        *("waits", "sent", "sent", "sent", "waits", "waits", None),
        *("waits", "waits", "waits", "waits"),
    ),
    ManyRerunsNow: (
        *("waits", "sent", "sent", "sent", "sent", "sent", None),
        *("waits", "waits", "waits", "waits"),
    ),
    OfRunNow: (
        *("refused", "sent", "sent", "sent", "sent", "sent", None),
        *("sent", "sent", "sent", "waits"),
    ),
}
#: What SQL makes wait. The other cells are the same plan on each database.
ON_SERVERS = {
    (FireTime, "hold"),
    (FireTime, "overlap=buffer_one"),
    (FireTime, "cap"),
    (OfRetry, "hold"),
    (OfRetry, "cap"),
    (Postponed, "cap"),
    (WaitsForPlace, "hold"),
    (WaitsForPlace, "quiet"),
    (Buffered, "hold"),
    (Buffered, "quiet"),
    (OfBackfill, "overlap=buffer_one"),
    (OfManyReruns, "cap"),
    (OfRunNow, "cap"),
}
CELLS = [
    pytest.param(database, row, column, expected, id=f"{database}-{row.__name__}-{column}")
    for row, expectations in TABLE.items()
    for column, expected in zip(COLUMNS, expectations, strict=True)
    if expected is not None
    for database in ("sqlite", "postgresql", "mariadb")
    if database == "sqlite" or (row, column) in ON_SERVERS
]


def outcome(site, row, put):
    """Return what becomes of the run of a cell."""
    row.prepare(site)
    free = put(site)
    before = len(site.of_n())
    try:
        row.arrive(site)
    except (ScheduleHeldError, InvalidScheduleError):
        return "refused"
    found = "sent" if len(site.of_n()) > before else next(iter(site.statuses()), "none")
    for run in site.of_n()[before:]:
        assert site.worker.start(run)
        site.worker.finish(run)
    site.clock.move_to(FREE)
    free()
    for number in range(3):
        site.pass_to(FREE + number * MINUTE)
    sent = len(site.of_n()) - before
    if found == "sent":
        assert sent == 1
        return found
    assert sent <= 1
    return "waits" if sent else found


@pytest.mark.parametrize(
    ("database_url", "row", "column", "expected"), CELLS, indirect=["database_url"]
)
def test_a_cell_of_the_table(limited, clock, row, column, expected):
    cap = row.cap or (1 if column == "cap" else None)
    site = Site(limited, clock, cap=cap)

    assert outcome(site, row(), COLUMNS[column]) == expected
