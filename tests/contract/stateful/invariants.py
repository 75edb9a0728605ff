"""The checks of ``test_stateful``: what holds after each step."""

import contextlib
from collections import Counter
from itertools import islice

from hypothesis.stateful import RuleBasedStateMachine, invariant
from sqlalchemy import select

from celery_dynbeat.beat.decisions import CATCH_UP_BATCH
from celery_dynbeat.common.states import UNFINISHED, UNSTARTED, Status
from celery_dynbeat.db.models import Origin, Run, Schedule
from celery_dynbeat.planning import skips_in
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import START, instants
from tests.support.expected_schedule import MAX_RUN_TIME
from tests.support.property_application import delete_all_rows
from tests.support.simulated_cluster import SimulatedCluster

FASTER = "a worker is faster than the confirm"
POINTS = ["recorded", "committed", "swept", "published", FASTER]


class CrashError(BaseException):
    """Beat crashes at this point."""


def is_unsent(row):
    return row.sent_at is None and row.started_at is None


def is_skipped_by_call(row):
    """Return whether ``skip()`` took the fire time out, and not a policy."""
    return row.status == Status.SKIPPED and row.error == "skipped by a call"


class Watched(RuleBasedStateMachine):
    """Two beats, a cluster of workers, and ``expected`` by name of the schedule.

    ``latest`` is the latest instant that the clock has shown. ``cancelled`` are the runs that must
    not start any more, ``published`` those that beat has published.
    """

    def __init__(self, dynbeat, clock):
        super().__init__()
        self.dynbeat, self.clock = dynbeat, clock
        clock.move_to(START)
        delete_all_rows(dynbeat)
        self.mine = dynbeat.schedules.for_owner("user:42")
        self.beats = [ManualBeat(dynbeat, failpoint=self.failpoint) for _ in range(2)]
        self.crash_at = None
        self.cluster = SimulatedCluster(dynbeat)
        for worker in ("w1", "w2"):
            self.cluster.start_worker(worker)
        self.dead = {}
        self.deaths, self.cancelled, self.published = Counter(), set(), set()
        self.expected = {}
        #: The schedules whose ``on_lost`` was "rerun" at some time.
        self.rerun_if_lost = set()
        self.latest = START

    def deliver(self, message, worker):
        raise NotImplementedError

    def failpoint(self, point):
        if self.crash_at == FASTER and point == "published" and self.cluster.workers:
            for beat in self.beats:
                self.cluster.enqueue(beat.publisher.sent)
            for message in list(self.cluster.queue):
                self.deliver(message, min(self.cluster.workers))
        if point == self.crash_at:
            raise CrashError(point)

    def rows(self, schedule_id=None):
        statement = select(*Run.__table__.columns)
        if schedule_id is not None:
            statement = statement.where(Run.schedule_id == schedule_id)
        with self.dynbeat.context.database.engine.connect() as connection:
            return connection.execute(statement).all()

    def cancel(self, expected, *, keep_manual):
        """Note the runs that must not start any more."""
        self.cancelled |= {
            row.id
            for row in self.rows(expected.id)
            if not self.cluster.starts[row.id]
            and not is_skipped_by_call(row)
            and not (keep_manual and row.origin == Origin.MANUAL)
        }

    def newest(self, expected):
        """Return the newest fire time in the history."""
        return max((row.fire_at for row in self.rows(expected.id)), default=START)

    def waiting_skips(self, expected):
        """Return the skipped fire times that are not in the history yet."""
        statement = select(Schedule.skips).where(Schedule.id == expected.id)
        with self.dynbeat.context.database.engine.connect() as connection:
            return skips_in(connection.scalar(statement)).keys()

    def tick(self, which, crash_at=None):
        """Let one beat crash if it reaches that point, and the other make its passes.

        At FASTER no beat crashes, but a worker starts published runs before beat confirms them.
        """
        before = self.rows()
        if crash_at is not None:
            self.crash_at = crash_at
            with contextlib.suppress(CrashError):
                self.beats[1 - which].tick()
            self.crash_at = None
        self.beats[which].run_until_idle()

        after = self.rows()
        # Not in the order of the ids: they are random, and the example could not be repeated.
        messages = sorted(
            (run for beat in self.beats for run in beat.publisher.sent),
            key=lambda run: (run.fire_at, run.name),
        )
        terminated = {run for beat in self.beats for run in beat.publisher.terminated}
        for beat in self.beats:
            beat.publisher.sent.clear()
            beat.publisher.terminated.clear()
        self.check_messages(messages, before, after)
        self.check_decisions(
            before, after, messages if crash_at in {None, FASTER} else None, terminated
        )
        self.published |= {message.run_id for message in messages}
        self.cluster.enqueue(messages)
        for worker, running in self.cluster.workers.items():
            for run_id in terminated & running.keys():
                self.cluster.finish(worker, run_id, Status.REVOKED)

    def check_messages(self, messages, before, after):
        rows = {row.id: row for row in after}
        waits = {e.id for e in self.expected.values() if e.get("overlap") == "buffer_one"}
        for message in messages:
            row = rows[message.run_id]
            assert message.run_id not in self.cancelled
            assert row.fire_at == message.fire_at
            if row.origin == Origin.MANUAL:
                continue
            assert row.fire_at <= self.latest
            if row.schedule_id in waits and row.id not in self.published:
                blocking = self.published & {
                    other.id
                    for other in before
                    if other.schedule_id == row.schedule_id
                    # Not a run that has ended since, or that is sent again after max_run_time.
                    and self.is_busy(other)
                    and self.is_busy(rows[other.id])
                }
                assert blocking == set()

    def check_decisions(self, before, after, messages, terminated):
        now, known = self.clock.now(), {row.id for row in before}
        for name, expected in self.expected.items():
            ours = [row for row in before if row.schedule_id == expected.id]
            new = [row for row in after if row.schedule_id == expected.id and row.id not in known]
            runs = sorted((r.fire_at, r.id) for r in new if r.status != Status.SKIPPED)
            skips = [
                row for row in new if row.status == Status.SKIPPED and not is_skipped_by_call(row)
            ]
            count = len(runs) + sum(row.fire_count for row in skips)
            if not expected.enabled:
                assert runs == [] == skips
            if len(expected.ready(now)) > CATCH_UP_BATCH:
                # The backlog takes several passes: too intricate for the model.
                expected.exempt = True
            if expected.exempt:
                expected.made = self.mine.get(name).run_count
            if expected.exempt or not expected.enabled:
                continue
            busy = [row for row in ours if self.is_busy(row)]
            due = expected.ready(now)
            waiting = [row for row in busy if row.origin == Origin.SCHEDULE and is_unsent(row)]
            there = {"now": now, "busy": len(busy), "waiting": len(waiting)}
            decided = expected.decide(due, **there)
            assert [at for at, _ in runs] == [*decided.sent, *decided.buffered]
            assert count == decided.count
            assert {row.fire_at for row in skips} <= set(decided.settled)
            ids = dict(runs)
            if messages is not None:
                sent = {message.run_id for message in messages}
                assert [at for at in ids if ids[at] in sent] == [*decided.sent]
            if expected.get("overlap") == "cancel_previous" and busy and decided.sent:
                self.cancelled |= {row.id for row in ours if not self.cluster.starts[row.id]}
                if messages is not None:
                    assert {r.id for r in busy if r.status == Status.RUNNING} <= terminated
            expected.settle(decided)

    def is_busy(self, row):
        started = row.started_at
        recent = started is None or self.clock.now() - started < MAX_RUN_TIME
        return row.status in UNFINISHED and recent

    def compare_counts(self, name):
        expected = self.expected[name]
        rows = [row for row in self.rows(expected.id) if row.origin == Origin.SCHEDULE]
        if not expected.exempt:
            counted = sum(row.fire_count for row in rows if not is_skipped_by_call(row))
            assert counted == expected.accounted

    def compare_upcoming(self, name):
        """Compare the next fire times of a schedule of which none is due."""
        expected, now = self.expected[name], self.clock.now()
        if expected.exempt or not expected.enabled or expected.due(now):
            return
        if self.mine.get(name).is_held:
            # The fire times of a hold are sent together after its release.
            return
        after = max(now, expected.after)
        assert [*instants(self.mine.upcoming(name, count=3))] == [
            *islice(expected.upcoming(after), 3)
        ]

    @invariant()
    def rules_hold(self):
        rows = {row.id: row for row in self.rows()}
        fires = [(row.schedule_id, row.fire_at) for row in rows.values() if row.schedule_id]
        assert len(set(fires)) == len(fires)
        paused = {e.id for e in self.expected.values() if not e.enabled}
        for row in rows.values():
            assert (row.finished_at is None) == (row.status in UNFINISHED)
            assert row.status != Status.RUNNING or self.cluster.starts[row.id]
            if row.schedule_id in paused and row.origin != Origin.MANUAL:
                assert row.status not in UNSTARTED
        for expected in self.expected.values():
            of_schedule = [row for row in rows.values() if row.schedule_id == expected.id]
            recorded = {row.fire_at for row in of_schedule if is_skipped_by_call(row)}
            assert recorded <= expected.skipped
        for running in self.cluster.workers.values():
            for run_id in running:
                assert rows[run_id].status == Status.RUNNING
