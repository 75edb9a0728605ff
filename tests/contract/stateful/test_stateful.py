"""Beats, workers and a broker agree with a plain model in any order of events.

Each example is a random history: schedules are created, edited, paused, held, run and deleted;
fire times are skipped and put back; the clock advances, jumps and is set back; beats crash; the
broker is unreachable; workers die; messages arrive twice, with and without ``acks_late``. After
each step the tables are compared with plain enumeration (``ExpectedSchedule``) and checked against
rules that always hold. At the end every part works again, and no run may be unfinished.
"""

import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from celery_dynbeat import ConflictError, Every, InvalidArgumentError, Once
from celery_dynbeat.api.timing import MAX_SKIPPED
from celery_dynbeat.beat import confirms
from celery_dynbeat.common.states import UNFINISHED, Status
from celery_dynbeat.db.models import Origin
from celery_dynbeat.testing import FrozenClock
from celery_dynbeat.worker.start_decision import StartAction
from tests.contract.stateful.invariants import POINTS, Watched
from tests.contract.stateful.strategies import (
    CHANGES,
    FIELDS,
    MINUTE,
    SPAN,
    STEPS,
    TRIGGERS,
    too_intricate,
)
from tests.support.applications import START
from tests.support.expected_schedule import ExpectedSchedule
from tests.support.property_application import EXAMPLE_FACTOR, prepared_application

RESEND_AFTER = 300
LATEST = datetime.max.replace(tzinfo=UTC)
TIMING = {"trigger", "start_at", "end_at", "max_runs"}

NAMES = ["a", "b", "c"]


def some(values):
    """Choose one of the values that the machine has at that moment."""
    return st.runner().flatmap(lambda machine: st.sampled_from(values(machine)))


def schedules(machine):
    return sorted(machine.expected)


def skipping(machine):
    return [name for name in schedules(machine) if machine.expected[name].skipped]


def free(machine):
    return [name for name in NAMES if name not in machine.expected]


def live_workers(machine):
    return sorted(machine.cluster.workers)


class Schedules(Watched):
    # Actions of users

    @initialize(
        made=st.lists(st.tuples(TRIGGERS, FIELDS), min_size=2, max_size=2), acks_late=st.booleans()
    )
    def create_some_schedules(self, made, acks_late):
        self.cluster.acks_late = acks_late
        for name, (trigger, given) in zip(NAMES, made, strict=False):
            self.create(name, trigger, given, upsert=False)

    @precondition(free)
    @rule(name=some(free), trigger=TRIGGERS, given=FIELDS, upsert=st.booleans())
    def create(self, name, trigger, given, upsert):
        given = self.at_the_clock({**given, "trigger": trigger})
        fields = {key: value for key, value in given.items() if key != "trigger"}
        now = self.clock.now()
        key = f"{self.mine.owner}\n{name}"
        made = ExpectedSchedule(0, given["trigger"], fields, anchor=now, after=now, key=key)
        made.plan_from(now)
        call = self.mine.upsert if upsert else self.mine.create
        if made.next_fire_time() is None:
            with pytest.raises(InvalidArgumentError):
                call(name, task="t", **given)
            return
        made.id = call(name, task="t", **given).id
        self.remember(name, made)

    @precondition(schedules)
    @rule(name=some(schedules), trigger=TRIGGERS, given=CHANGES)
    def upsert(self, name, trigger, given):
        given = self.at_the_clock({**given, "trigger": trigger})
        self.change(name, given, lambda: self.mine.upsert(name, task="t", **given))

    @precondition(schedules)
    @rule(name=some(schedules), trigger=st.none() | TRIGGERS, given=CHANGES)
    def edit(self, name, trigger, given):
        given = given if trigger is None else {**given, "trigger": trigger}
        given = self.at_the_clock(given)
        self.change(name, given, lambda: self.mine.update(name, **given))

    def change(self, name, given, call):
        was, now = self.expected[name], self.clock.now()
        fields = {**was.fields, **given}
        trigger = fields.pop("trigger", was.trigger)
        if too_intricate(fields) or fields.get("start_at", now) > fields.get("end_at", LATEST):
            return
        old = {**was.fields, "trigger": was.trigger}
        new = replace(was, trigger=trigger, fields=fields)
        retimed = any(given[key] != old.get(key) for key in TIMING & given.keys())
        if retimed and not given.get("trigger") and self.keeps_waiting(was, new, now):
            call()
            self.remember(name, new)
            return
        if retimed:
            passed = replace(was)
            passed.record_missed(now)
            new.accounted, new.after = passed.accounted, passed.after
            new.anchor = was.anchor if trigger == was.trigger else now
            new.plan_from(now, self.newest(was))
        if retimed and was.enabled and new.next_fire_time() is None and "trigger" in given:
            with pytest.raises(InvalidArgumentError):
                call()
            return
        if retimed and isinstance(was.trigger, Once):
            self.cancel(was, keep_manual=True)
        call()
        self.remember(name, new)
        if retimed:
            self.compare_counts(name)

    @staticmethod
    def keeps_waiting(was, new, now):
        """Return whether a fire time waits for beat that the new limits allow."""
        first = next(iter(was.due(now)), None) if was.enabled else None
        return (
            first is not None
            and new.get("start_at", first) <= first <= new.get("end_at", first)
            and new.remaining_runs > 0
        )

    def remember(self, name, expected):
        self.expected[name] = expected
        if expected.get("on_lost") == "rerun":
            self.rerun_if_lost.add(expected.id)

    def at_the_clock(self, given):
        now = self.clock.now()
        made = {key: now + value if key in SPAN else value for key, value in given.items()}
        if isinstance(made.get("trigger"), timedelta):
            made["trigger"] = Once(now + made["trigger"])
        return made

    @precondition(schedules)
    @rule(name=some(schedules))
    def pause(self, name):
        self.cancel(self.expected[name], keep_manual=True)
        self.mine.pause(name)
        self.expected[name].enabled = False

    @precondition(schedules)
    @rule(name=some(schedules))
    def resume(self, name):
        expected = self.expected[name]
        self.mine.resume(name)
        if expected.enabled:
            return
        expected.enabled = True
        expected.record_missed(self.clock.now())
        expected.plan_from(self.clock.now(), self.newest(expected))
        self.compare_counts(name)

    @precondition(schedules)
    @rule(name=some(schedules), minutes=st.integers(1, 9), which=st.integers(0, 1))
    def pause_for_minutes(self, name, minutes, which):
        self.pause(name)
        self.advance_minutes(minutes, which)
        self.resume(name)
        self.tick(which)

    @precondition(schedules)
    @rule(name=some(schedules), number=st.integers(0, 3))
    def skip(self, name, number):
        """Take out one of the next fire times."""
        expected, now = self.expected[name], self.clock.now()
        candidates = expected.nominal_after(max(now, expected.after))
        fire_time = next(islice(candidates, number, None), None)
        if fire_time is None or len(expected.skipped) == MAX_SKIPPED:
            return
        recorded = {row.fire_at for row in self.rows(expected.id)}
        taken = recorded - self.waiting_skips(expected)
        # A pause keeps a schedule finished.
        is_finished = self.mine.get(name).finished_at is not None
        if is_finished or fire_time in taken:
            with pytest.raises(ConflictError):
                self.mine.skip(name, fire_time)
            return
        self.mine.skip(name, fire_time)
        expected.skipped |= {fire_time}
        self.compare_upcoming(name)

    @precondition(skipping)
    @rule(name=some(skipping), number=st.integers(0, 3))
    def unskip(self, name, number):
        """Put back one of the skipped fire times, if it has not passed."""
        expected, now = self.expected[name], self.clock.now()
        fire_time = sorted(expected.skipped)[-1 - number % len(expected.skipped)]
        if fire_time <= now or fire_time not in self.waiting_skips(expected):
            with pytest.raises(InvalidArgumentError):
                self.mine.unskip(name, fire_time)
            return
        # Only if the clock was set back.
        expected.exempt = expected.exempt or fire_time <= expected.after
        self.mine.unskip(name, fire_time)
        expected.put_back(fire_time)
        self.compare_upcoming(name)

    @precondition(schedules)
    @rule(
        name=some(schedules),
        numbers=st.lists(st.integers(0, 2), min_size=1, max_size=3),
        minutes=st.integers(1, 9),
        which=st.integers(0, 1),
    )
    def skip_and_pass(self, name, numbers, minutes, which):
        for number in numbers:
            self.skip(name, number)
        self.advance_minutes(minutes, which)

    @rule(
        minutes=st.integers(1, 9),
        which=st.integers(0, 1),
        everything=st.booleans(),
        skipped=st.none() | st.integers(0, 3),
        put_back=st.booleans(),
    )
    def hold_for_minutes(self, minutes, which, everything, skipped, put_back):
        held = self.dynbeat.schedules if everything else self.mine
        enabled = [expected for expected in self.expected.values() if expected.enabled]
        held.hold(reason="r")
        if skipped is not None:
            for name in schedules(self):
                self.skip(name, skipped)
        for expected in enabled:
            expected.enabled = False
        self.advance_minutes(minutes, which)
        for expected in enabled:
            expected.enabled = True
        if put_back:
            for name in skipping(self):
                self.unskip(name, 0)
        held.release()
        # catch_up decides, as after downtime.
        self.tick(which)

    @precondition(schedules)
    @rule(name=some(schedules))
    def run_now(self, name):
        made = self.mine.run_now(name)

        assert (made.origin, made.status) == ("manual", "pending")

    @precondition(schedules)
    @rule(name=some(schedules))
    def delete(self, name):
        self.cancel(self.expected[name], keep_manual=False)
        self.mine.delete(name)
        del self.expected[name]

    # The clock

    def advance(self, step):
        self.clock.advance(step)
        self.latest = max(self.latest, self.clock.now())
        self.cluster.heartbeat()

    @rule(minutes=st.integers(1, 3), which=st.integers(0, 1))
    def advance_minutes(self, minutes, which):
        self.advance(minutes * MINUTE)
        self.tick(which)

    @precondition(live_workers)
    @rule(which=st.integers(0, 1), worker=some(live_workers), minutes=st.integers(1, 5))
    def advance_minutes_and_deliver_all(self, which, worker, minutes):
        self.advance_minutes(minutes, which)
        for message in list(self.cluster.queue):
            self.deliver(message, worker)

    # Beat

    @rule(which=st.integers(0, 1), step=STEPS, crash_at=st.none() | st.sampled_from(POINTS))
    def advance_and_tick(self, which, step, crash_at):
        self.advance(step)
        self.tick(which, crash_at)

    @rule(which=st.integers(0, 1), step=STEPS)
    def advance_without_a_broker(self, which, step):
        self.advance(step)
        before = self.rows()
        publisher = self.beats[which].publisher
        publisher.fail_with(ConnectionError("unreachable"))
        with pytest.raises(ConnectionError):
            self.beats[which].tick()
        publisher.fail_with(None)

        # Without a broker, beat makes and sends no run, but ends the runs of dead workers.
        after = self.rows()
        assert [row.id for row in after] == [row.id for row in before]
        sent = {row.id for row in before if row.sent_at is not None}
        assert {row.id for row in after if row.sent_at is not None} <= sent

    # The broker and the workers

    @precondition(lambda self: self.cluster.queue and self.cluster.workers)
    @rule(message=some(lambda self: self.cluster.queue), worker=some(live_workers))
    def deliver(self, message, worker):
        action = self.cluster.deliver(message, worker)

        if action is not StartAction.START:
            return
        run_id = message.run_id
        (row,) = [row for row in self.rows() if row.id == run_id]
        assert (row.status, row.worker) == (Status.RUNNING, worker)
        assert self.cluster.workers_running(run_id) == [worker]
        runs_again = self.cluster.acks_late or row.schedule_id in self.rerun_if_lost
        assert self.cluster.starts[run_id] <= 1 + (self.deaths[run_id] if runs_again else 0)
        if self.cluster.starts[run_id] == 1:
            assert run_id not in self.cancelled
            enabled = {e.id for e in self.expected.values() if e.enabled}
            assert row.schedule_id in enabled or row.origin == Origin.MANUAL

    @precondition(lambda self: self.cluster.queue)
    @rule(message=some(lambda self: self.cluster.queue))
    def duplicate_a_message(self, message):
        self.cluster.queue.append(message)

    @precondition(lambda self: any(self.cluster.workers.values()))
    @rule(worker=some(lambda self: [w for w in live_workers(self) if self.cluster.workers[w]]))
    def redeliver_running_messages(self, worker):
        self.cluster.redeliver(worker)

    @precondition(lambda self: self.cluster.queue)
    @rule()
    def broker_loses_its_queue(self):
        self.cluster.queue.clear()

    @precondition(lambda self: any(self.cluster.workers.values()))
    @rule(
        worker=some(lambda self: [w for w in live_workers(self) if self.cluster.workers[w]]),
        status=st.sampled_from([Status.SUCCEEDED, Status.FAILED]),
    )
    def finish(self, worker, status):
        run_id = next(iter(self.cluster.workers[worker]))
        self.cluster.finish(worker, run_id, status)

        assert [row.status for row in self.rows() if row.id == run_id] == [status]

    @precondition(lambda self: any(self.cluster.workers.values()))
    @rule()
    def finish_all(self):
        for worker in live_workers(self):
            while self.cluster.workers[worker]:
                self.finish(worker, Status.SUCCEEDED)

    @precondition(live_workers)
    @rule(worker=some(live_workers), redelivered=st.booleans())
    def worker_dies(self, worker, redelivered):
        self.deaths.update(self.cluster.workers[worker].keys())
        self.cluster.kill_worker(worker, redelivered=redelivered)
        self.dead[worker] = self.latest

    @precondition(lambda self: self.dead)
    @rule(worker=some(lambda self: sorted(self.dead)))
    def worker_starts_again(self, worker):
        # After the clock was set back, the two workers could not be told apart by their start.
        if self.clock.now() > self.dead[worker]:
            del self.dead[worker]
            self.cluster.start_worker(worker)

    def teardown(self):
        if sys.exc_info()[0] is None:
            self.check_that_all_runs_end()

    def check_that_all_runs_end(self):
        left = {row.id for row in self.rows() if row.status in UNFINISHED}
        if not self.cluster.workers:
            self.cluster.start_worker("last")
        self.clock.move_to(self.latest)
        for _ in range(4):
            self.advance(timedelta(seconds=RESEND_AFTER + 1))
            self.tick(0)
            self.tick(1)
            for message in list(self.cluster.queue):
                self.deliver(message, live_workers(self)[0])
            if any(self.cluster.workers.values()):
                self.finish_all()
        ends = {row.id: row.status for row in self.rows() if row.id in left}

        assert {status for status in ends.values() if status in UNFINISHED} == set()


def check(url, *, examples, steps):
    clock = FrozenClock(START)
    # Long waiting runs are sent again as soon as others. Otherwise the example would take long.
    soon = mock.patch.object(confirms, "MAX_RESEND_AFTER", timedelta(seconds=RESEND_AFTER))
    with soon, prepared_application(url, clock=clock, resend_after=RESEND_AFTER) as dynbeat:
        run_state_machine_as_test(
            lambda: Schedules(dynbeat, clock),
            settings=settings(
                max_examples=examples * EXAMPLE_FACTOR,
                stateful_step_count=steps,
                # Explaining a history takes too long.
                phases=set(Phase) - {Phase.explain},
                suppress_health_check=list(HealthCheck),
            ),
        )


@pytest.mark.parametrize("limit", [{}, {"max_runs": 1}])
def test_an_unskip_after_the_clock_was_set_back_twice_agrees_with_the_model(sqlite_url, limit):
    """Beat has decided on a later fire time than the skipped one."""
    clock = FrozenClock(START)
    with prepared_application(sqlite_url, clock=clock) as dynbeat:
        history = Schedules(dynbeat, clock)
        fields = {"overlap": "allow", "catch_up": "latest", **limit}
        history.create("a", Every(60), fields, upsert=False)
        history.skip("a", 0)
        history.advance_and_tick(0, 2 * MINUTE, None)
        history.advance_and_tick(0, -3 * MINUTE, None)
        history.edit("a", None, {"end_at": 100 * MINUTE})
        history.advance_and_tick(0, 9 * MINUTE, None)
        history.advance_and_tick(0, -9 * MINUTE, None)

        history.unskip("a", 0)

        history.rules_hold()
        history.check_that_all_runs_end()


# Shrinking a failing example takes minutes.
@pytest.mark.timeout(600 * EXAMPLE_FACTOR)
def test_any_history_agrees_with_the_model_on_sqlite(sqlite_url):
    check(sqlite_url, examples=100, steps=40)


# Shrinking a failing example takes minutes.
@pytest.mark.timeout(600 * EXAMPLE_FACTOR)
def test_any_history_agrees_with_the_model_on_postgresql(postgresql_url):
    check(postgresql_url, examples=10, steps=40)
