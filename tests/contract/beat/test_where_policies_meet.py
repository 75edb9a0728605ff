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

While the obstacle stands, ``explain`` names it as the cause, and ``upcoming`` and ``preview`` show
the same decision with the same words.
"""

import re
from datetime import date, timedelta
from functools import partial
from pathlib import Path

import pytest

from celery_dynbeat import ConflictError, Cron, InvalidArgumentError, Once, Retry
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.planning.obstacles import Obstacle
from celery_dynbeat.store import nodes
from celery_dynbeat.store.nodes import NodeHeartbeat
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import START, execute
from tests.support.suites import each_database
from tests.support.worker_stub import WorkerStub

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
#: The fire time of each schedule "n".
DUE = START + HOUR
READY, FREE = DUE + 30 * MINUTE, DUE + 2 * HOUR
RULE = Cron(f"0 {DUE.hour} * * *", timezone="UTC")
OWNER = "user:42"
DAYS = "holidays"


class Site:
    """An application with the schedule "n", and a worker that starts and ends what beat sends."""

    def __init__(self, limited, clock, *, cap=None):
        self.dynbeat = limited(
            **({} if cap is None else {"owner_limits": {"*": {"max_running": cap}}})
        )
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

    def explain(self, **options):
        """Explain "n" while a beat works."""
        now = self.clock.now()
        heartbeat = NodeHeartbeat(
            kind=NodeKind.BEAT, name="beat@a", pid=1, seen_at=now, progressed_at=now
        )
        work = partial(nodes.register, heartbeat=heartbeat, started_at=now)
        self.dynbeat.context.database.run(work)
        return self.mine.explain("n", **options)

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
        site.create(retry=Retry(max_retries=3))
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
    "paused": pause,
    "error": quarantine,
    "excluded": excluded_day,
    "skip()": skip_list,
    "hold": hold,
    "quiet": quiet_hours,
    "quiet day": quiet_day,
    "overlap=skip": overlap_skip,
    "overlap=buffer_one": overlap_buffer,
    "overlap=cancel_previous": overlap_cancel,
    "cap": cap,
}
#: The columns of each obstacle, in its order.
OBSTACLES = {
    Obstacle.STOPPED: ("paused", "error"),
    Obstacle.EXCLUDED: ("excluded",),
    Obstacle.SKIPPED: ("skip()",),
    Obstacle.HOLD: ("hold",),
    Obstacle.QUIET: ("quiet", "quiet day"),
    Obstacle.OVERLAP: ("overlap=skip", "overlap=buffer_one", "overlap=cancel_previous"),
    Obstacle.CAP: ("cap",),
}
#: The cause that ``explain`` names, and the words about it.
EXPLAINED = {
    "paused": ("paused", "paused it"),
    "error": ("quarantined", "because x"),
    "excluded": ("excluded_day", "is excluded"),
    "skip()": ("skipped", "skipped by a call"),
    "hold": ("held", "held"),
    "quiet": ("quiet_hours", "in quiet hours"),
    "quiet day": ("quiet_hours", "on a quiet day of the calendar 'quiet'"),
    "overlap=skip": ("waits_for_previous", "the previous run has been running"),
    "overlap=buffer_one": ("waits_for_previous", "the previous run has been running"),
    "overlap=cancel_previous": ("waits_for_previous", "the previous run has been running"),
    "cap": ("waits_for_place", "for a place"),
}
#: In the order of the columns. None is a cell that cannot exist.
TABLE = {
    FireTime: (
        *("none", "none", "none", "skipped"),
        *("waits", "waits", "waits"),
        *("skipped", "waits", "sent", "waits"),
    ),
    CaughtUp: (
        *("none", "none", "none", "skipped"),
        *("waits", "waits", "waits"),
        *("skipped", "waits", "sent", "waits"),
    ),
    OfRetry: (
        *("revoked", "revoked", "sent", None),
        *("waits", "waits", "waits"),
        *("sent", "sent", "sent", "waits"),
    ),
    Postponed: (
        *("revoked", "revoked", "sent", None),
        *("waits", "waits", "waits"),
        *("sent", "sent", "sent", "waits"),
    ),
    WaitsForPlace: (
        *("revoked", "revoked", "sent", None),
        *("waits", "waits", "waits"),
        *(None, None, None, None),
    ),
    Buffered: (
        *("revoked", "revoked", "sent", None),
        *("waits", "waits", "waits"),
        *(None, None, None, None),
    ),
    OfBackfill: (
        *("sent", "sent", "sent", None),
        *("waits", "waits", "waits"),
        *("waits", "waits", "waits", "waits"),
    ),
    BackfillNow: (
        *("sent", "sent", "sent", None),
        *("waits", "sent", "sent"),
        *("waits", "waits", "waits", "waits"),
    ),
    OfRerun: (
        *("sent", "sent", "sent", None),
        *("waits", "waits", "waits"),
        *("waits", "waits", "waits", "waits"),
    ),
    RerunNow: (
        *("sent", "sent", "sent", None),
        *("waits", "sent", "sent"),
        *("waits", "waits", "waits", "waits"),
    ),
    OfManyReruns: (
        *("sent", "sent", "sent", None),
        *("waits", "waits", "waits"),
        *("waits", "waits", "waits", "waits"),
    ),
    ManyRerunsNow: (
        *("sent", "sent", "sent", None),
        *("waits", "sent", "sent"),
        *("waits", "waits", "waits", "waits"),
    ),
    OfRunNow: (
        *("sent", "sent", "sent", None),
        *("refused", "sent", "sent"),
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


def look_ahead(site, column):
    """Check what ``upcoming`` and ``preview`` say about a fire time before it comes."""
    _, words = EXPLAINED[column]
    upcoming = site.mine.upcoming("n", count=1)
    ahead = next(iter(site.mine.upcoming("n", count=1, with_skipped=True)), None)
    (previewed,) = site.mine.preview(RULE, "n", count=1).fire_times
    if column in {"paused", "error"}:
        assert upcoming == []
    elif column in {"excluded", "skip()"}:
        assert (ahead.fire_at, ahead.is_skipped) == (DUE, True) if ahead else column == "excluded"
        assert all(each.fire_at > DUE for each in upcoming)
    elif column in {"hold", "quiet", "quiet day"}:
        assert upcoming == [ahead]
        assert (ahead.fire_at, ahead.run_at) == (DUE, None if column == "hold" else FREE)
        assert ahead.wait_note.startswith(words)
        assert (previewed.fire_at, previewed.run_at, previewed.note) == (
            ahead.fire_at,
            ahead.run_at,
            ahead.wait_note,
        )
    else:
        # They are known only when the fire time comes.
        assert [(each.fire_at, each.run_at, each.wait_note) for each in upcoming] == [
            (DUE, DUE, None)
        ]


def look(site, row, column, found):
    """Check what ``explain`` and ``upcoming`` say about a run while the obstacle stands."""
    cause, words = EXPLAINED[column]
    if found == "skipped" and column == "overlap=skip":
        cause, words = "skipped_overlap", "overlap: the previous run had not ended"
    # The fire time is not among the upcoming ones any more, and the schedule may have finished.
    at = DUE if column in {"excluded", "skip()"} else None
    explanation = site.explain(at=at)
    assert (explanation.cause, words in explanation.sentence) == (cause, True), explanation.sentence
    upcoming = site.mine.upcoming("n", with_skipped=True)
    assert [each.fire_at for each in explanation.next] == [each.fire_at for each in upcoming]
    assert [each.note for each in explanation.next] == [
        each.reason or each.wait_note for each in upcoming
    ]
    if isinstance(row, FireTime) and column in {"hold", "quiet", "quiet day"}:
        assert upcoming[0].fire_at == DUE
        assert upcoming[0].wait_note.startswith(words)


def outcome(site, row, column):
    """Return what becomes of the run of a cell."""
    row.prepare(site)
    free = COLUMNS[column](site)
    before = len(site.of_n())
    if isinstance(row, FireTime):
        look_ahead(site, column)
    try:
        row.arrive(site)
    except InvalidArgumentError:
        return "refused"
    except ConflictError as error:
        return {"held": "refused"}[error.code]
    found = "sent" if len(site.of_n()) > before else next(iter(site.statuses()), "none")
    if found != "sent":
        look(site, row, column, found)
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

    assert outcome(site, row(), column) == expected


#: The rows of the page. With ``now=True``, only quiet hours differ.
PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "guarantees.md"
ROWS = {
    "fire time": (FireTime, CaughtUp),
    "retry of the policy, postponed run": (OfRetry, Postponed),
    "run that waits, for a place or buffered": (WaitsForPlace, Buffered),
    "backfill, rerun": (OfBackfill, OfRerun, OfManyReruns),
    "run_now": (OfRunNow,),
}


def test_the_page_the_list_and_this_table_agree():
    section = PAGE.read_text().partition("## Where policies meet")[2].partition("\n## ")[0]
    plain = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", section)
    lines = [line.strip("| ").split(" | ") for line in plain.splitlines() if line.startswith("|")]
    head, _, *rows, causes = lines

    assert [each.strip("`") for each in head] == [*Obstacle] == [*OBSTACLES]
    assert [column for columns in OBSTACLES.values() for column in columns] == [*COLUMNS]
    assert [label.strip("`") for label, *_ in rows] == [*ROWS]
    for label, *cells in rows:
        for obstacle, cell in zip(Obstacle, cells, strict=True):
            expected = {
                dict(zip(COLUMNS, TABLE[row], strict=True))[column]
                for row in ROWS[label.strip("`")]
                for column in OBSTACLES[obstacle]
            }
            assert all((each or "-") in cell for each in expected), (label, obstacle)
            assert cell.startswith(("its policy", *(each or "-" for each in expected)))
    for obstacle, cell in zip(Obstacle, causes[1:], strict=True):
        named = {EXPLAINED[column][0] for column in OBSTACLES[obstacle]}
        skips = {"skipped_overlap"} if obstacle is Obstacle.OVERLAP else set()
        assert {*re.findall(r"`(\w+)`", cell)} == named | skips


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pause, hold),
        (quarantine, hold),
        (excluded_day, quiet_hours),
        (skip_list, quiet_hours),
        (hold, quiet_hours),
        (hold, cap),
        (quiet_hours, cap),
    ],
)
@each_database
def test_of_two_obstacles_the_first_of_the_list_is_named(limited, clock, first, second):
    site = Site(limited, clock, cap=1)
    FireTime().prepare(site)
    for put in (second, first):
        put(site)
    site.pass_to(DUE)

    column = next(name for name, put in COLUMNS.items() if put is first)
    is_past = first in {excluded_day, skip_list}
    assert site.explain(at=DUE if is_past else None).cause == EXPLAINED[column][0]
