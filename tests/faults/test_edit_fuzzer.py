"""Random edits from several threads, with beats, workers and kills: each fire time is there.

The expected fire times come from arithmetic of this file, not from the triggers of the package. A
fire time must have exactly one row: a run, or a skipped row with its reason. No attempt starts
twice, nothing fires by an old trigger, and a deleted schedule gets no row.

The edits draw together what can hold, skip, retry or end a run: pauses, holds, quiet hours and
days, excluded days, skipped fire times, overlap, retries and a cap of each owner. By the log of the
bodies no owner is above its cap, and at the end nothing waits.

DYNBEAT_EDIT_SECONDS is the length in seconds (120), DYNBEAT_EDIT_SEED repeats the same choices.
Beats and workers have a pool of one connection.
"""

import itertools
import os
import random
import threading
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from celery_dynbeat import (
    ConflictError,
    Cron,
    Every,
    InvalidArgumentError,
    Once,
    Retry,
    ScheduleExistsError,
)
from celery_dynbeat.broker import HEADER_ATTEMPT
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Origin, Run, Schedule
from tests.support.fault_summary import SUMMARY_PROPERTY
from tests.support.refusals import accept, refuse
from tests.support.waiting import wait_until

SECONDS = float(os.environ.get("DYNBEAT_EDIT_SECONDS") or 120)
SEED = int(os.environ.get("DYNBEAT_EDIT_SEED") or random.randrange(10**6))  # noqa: S311
THREADS, SCHEDULES, KILLS = 4, 5, 3
POOLS = "threads", "prefork"
#: A calendar with today, in each time zone.
QUIET_DAYS = "quiet-days"
#: The runs of one owner that may have a place at the same time.
CAP = 3
SETTLES_WITHIN = 120
SECOND, MINUTE, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(days=1)
#: Two processes read the database's clock with an error of half a round trip each, which is long on
#: a busy machine. So close to an edit, the fire times of one of both triggers are optional.
TOLERANCE = 0.5 * SECOND
POOL_OF_ONE = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 20}
#: How long after it was due a fire time may be claimed, by the days of that moment.
LAG = 3 * SECOND
#: The owner of the schedules that the database refuses.
REFUSED = "user:refused"
NEVER_STARTED = {Status.SKIPPED, Status.EXPIRED}
POLICIES = {
    "args": [[1], [2]],
    "catch_up": ["all", "latest", "none"],
    "overlap": ["allow", "allow", "skip", "buffer_one", "cancel_previous"],
    "priority": [1, 5],
    "window": [None, 0, SECOND, "50%", "100%"],
    "retry": [
        None,
        Retry(max_retries=2, backoff=SECOND),
        Retry(max_retries=1, until_next_fire=True),
    ],
}
TASKS = ["probe.record", "probe.last", "probe.fail"]


class Days:
    """A calendar that excludes either no day or all days around now."""

    def __init__(self, dynbeat, name):
        self.calendars, self.name, self.now = dynbeat.calendars, name, dynbeat.context.clock.now
        #: Whether days are excluded, and since when: first perhaps, then surely.
        self.changes = []
        self.put(excluded=False)

    def put(self, *, excluded):
        since, today = self.now(), self.now().date()
        around = [today + number * DAY for number in (-1, 0, 1)]
        dates = around if excluded else [today - 999 * DAY]

        def is_in_force():
            return self.calendars.get(self.name).in_force_at is not None

        self.calendars.upsert(self.name, dates=dates)
        wait_until(is_in_force, within=SETTLES_WITHIN, message=f"{self.name} is not in force")
        self.changes.append((excluded, since - LAG, self.now() + TOLERANCE))

    def exclude(self, at, *, wait):
        """Return whether a fire time is excluded; None if that depends on when it was planned.

        ``wait`` is how long it can wait in its window before the claim.
        """
        found = False
        for excluded, perhaps, surely in self.changes:
            if at > perhaps - wait:
                found = excluded if at > surely else None
        return found


@dataclass(frozen=True)
class Rule:
    """Fires at ``anchor`` and each ``step`` after and before it; without a step only once."""

    anchor: datetime
    step: timedelta | None
    days: Days | None = None

    def fires(self, after, until):
        """Return the fire times in (after, until]."""
        if self.step is None:
            return {self.anchor} if after < self.anchor <= until else set()
        first = (after - self.anchor) // self.step + 1
        last = (until - self.anchor) // self.step
        return {self.anchor + number * self.step for number in range(first, last + 1)}

    @property
    def trigger(self):
        if self.step is None:
            return Once(self.anchor)
        minutely = self.step == MINUTE
        rule = Cron("* * * * *") if minutely else Every(self.step, anchor=self.anchor)
        return rule if self.days is None else rule.excluding(calendar=self.days.name)

    def of_days(self, fires, *answers, wait):
        """Return those of which the calendar says one of these."""
        days = self.days
        return {at for at in fires if (days.exclude(at, wait=wait) if days else False) in answers}


@dataclass
class Entry:
    """One schedule: its rules since their instants, and what else must be in the history."""

    owner: str
    name: str
    rules: list[tuple[datetime, Rule]]
    is_paused: bool = False
    #: Whether it has, or had, a window.
    has_window: bool = False
    deleted_at: datetime | None = None
    skipped: set[datetime] = field(default_factory=set)
    requested: Counter[str] = field(default_factory=Counter)
    next_fire_at: datetime | None = None

    @property
    def rule(self):
        return self.rules[-1][1]

    def changed(self, since, rule):
        self.rules.append((since, rule))

    def expected(self, end):
        """Return the required and the optional fire times before ``end``."""
        required, optional = set(), set()
        ends = [since for since, _ in self.rules[1:]] + [end]
        for (since, rule), next_since in zip(self.rules, ends, strict=True):
            # A row of beat can be older than the last edits.
            until = min(next_since, end)
            # A one-off that passed while its edit waited for a lock fires at once.
            first = since if rule.step else min(since, rule.anchor - timedelta.resolution)
            # The offset is shorter than the time up to the next fire time.
            wait = rule.step if self.has_window and rule.step else timedelta(0)
            required |= rule.of_days(rule.fires(first, until), False, wait=wait)
            around = rule.fires(since - TOLERANCE, until + TOLERANCE)
            optional |= rule.of_days(around, False, None, wait=wait)
        near = {at for at in required for until in ends[:-1] if abs(at - until) <= TOLERANCE}
        return required - near, optional | near


class Fuzzer:
    """The edits of one thread, on the schedules of an owner."""

    def __init__(self, site, number):
        self.site, self.owner = site, f"user:f{number}"
        self.random = random.Random(f"{SEED}-{number}")  # noqa: S311 - not a secret
        self.mine = site.dynbeat.schedules.for_owner(self.owner)
        self.entries, self.names = [], (f"{number}-{n}" for n in itertools.count())
        self.counts, self.now = Counter(), site.dynbeat.context.clock.now
        self.zone = UTC
        #: Every other owner has a calendar. A hold of its schedules would make its days unsure.
        self.days = Days(site.dynbeat, f"days-{number}") if number % 2 else None
        self.edits = {
            self.create: 3,
            self.create_many: 1,
            self.retime: 6,
            self.change_policy: 4,
            self.delete: 2,
            self.run_now: 2,
            self.backfill: 1,
            self.rerun: 2,
            self.rerun_many: 1,
            self.set_timezone: 2,
            self.roll_back: 4,
        }
        if self.days:
            self.edits |= {self.change_days: 2}
        else:
            self.edits |= {
                self.pause_or_resume: 5,
                self.skip_or_unskip: 6,
                self.hold_or_release: 2,
                self.set_or_clear_quiet_hours: 2,
            }

    def work(self, stop):
        for _ in range(SCHEDULES):
            self.create()
        edits, weights = zip(*self.edits.items(), strict=True)
        # Not faster: two cores serve the beats and the worker, too.
        while not stop.wait(0.15):
            edit = self.random.choices(edits, weights)[0]
            try:
                edit()
            except (ConflictError, InvalidArgumentError):
                # The instant has passed, or the schedule is in no state for this edit.
                self.counts["refused"] += 1
            self.counts[edit.__name__] += 1

    def existing(self):
        return [entry for entry in self.entries if entry.deleted_at is None]

    def choose(self):
        return self.random.choice(self.existing())

    def new_rule(self):
        second = self.now().replace(microsecond=0)
        kind = self.random.choice(["every", "every", "cron", "once"])
        if kind == "once":
            return Rule(second + self.random.randint(2, 6) * SECOND, None)
        if kind == "cron":
            return Rule(datetime(2026, 1, 1, tzinfo=UTC), MINUTE, self.days)
        step = self.random.randint(1, 4)
        return Rule(second - self.random.randint(0, step) * SECOND, step * SECOND, self.days)

    def given(self, rule):
        return {"task": self.random.choice(TASKS), "trigger": rule.trigger, "catch_up": "all"}

    def created(self, made, rule):
        self.entries.append(Entry(self.owner, made.name, [(made.created_at, rule)]))

    def create(self):
        rule = self.new_rule()
        call = self.random.choice([self.mine.create, self.mine.upsert])
        self.created(call(next(self.names), **self.given(rule)), rule)

    def create_many(self):
        rules = {next(self.names): self.new_rule() for _ in range(2)}
        taken = {self.choose().name: self.new_rule()} if self.random.random() < 0.5 else {}
        many = [
            {"owner": self.owner, "name": name, **self.given(rule)}
            for name, rule in {**rules, **taken}.items()
        ]
        try:
            self.site.dynbeat.schedules.create_many(many)
        except ScheduleExistsError:
            assert taken
            return
        for name, rule in rules.items():
            self.created(self.mine.get(name), rule)

    def retime(self):
        entry, rule = self.choose(), self.new_rule()
        made = self.mine.update(entry.name, trigger=rule.trigger)
        if rule.step is None and rule != entry.rule:
            # A new one-off fires also at an instant that was skipped before.
            entry.skipped = {at for at in entry.skipped if at <= made.updated_at}
        entry.changed(made.updated_at, rule)

    def change_policy(self):
        name = self.random.choice(sorted(POLICIES))
        entry, value = self.choose(), self.random.choice(POLICIES[name])
        entry.has_window |= name == "window" and bool(value)
        self.mine.update(entry.name, **{name: value})

    def pause_or_resume(self):
        entry = self.choose()
        (self.mine.resume if entry.is_paused else self.mine.pause)(entry.name)
        entry.is_paused = not entry.is_paused

    def skip_or_unskip(self):
        entry, now = self.choose(), self.now()
        skipped = [at for at in entry.skipped if at > now]
        if skipped and self.random.random() < 0.4:
            at = self.random.choice(sorted(skipped))
            self.mine.unskip(entry.name, at)
            entry.skipped.remove(at)
        elif ahead := sorted(entry.rule.fires(now, now + 8 * SECOND)):
            at = self.random.choice(ahead)
            self.mine.skip(entry.name, at)
            entry.skipped.add(at)

    def delete(self):
        entry = self.choose()
        self.mine.delete(entry.name)
        entry.deleted_at = self.now()
        if len(self.existing()) < SCHEDULES:
            self.create()

    def run_now(self):
        entry = self.choose()
        self.mine.run_now(entry.name)
        entry.requested[Origin.MANUAL] += 1

    def backfill(self):
        entry, now = self.choose(), self.now()
        span = {"since": now - 5 * SECOND, "until": now - SECOND}
        self.mine.backfill(entry.name, **span, per_minute=self.random.choice((60, 600)))
        entry.requested[Origin.BACKFILL] += 1

    def rerun_many(self):
        entry = self.choose()
        since = self.now() - 5 * SECOND
        made = self.mine.rerun_many(name=entry.name, since=since, per_minute=600)
        entry.requested[Origin.RERUN] += made.total

    def rerun(self):
        entry = self.choose()
        failed = self.mine.runs(entry.name, status="failed", limit=5)
        of_entry = [run for run in failed if run.schedule_id is not None]
        if of_entry:
            self.mine.rerun(self.random.choice(of_entry).id)
            entry.requested[Origin.RERUN] += 1

    def hold_or_release(self):
        if not self.mine.release():
            self.mine.hold(reason="fuzzer", until=self.now() + 3 * SECOND)

    def set_or_clear_quiet_hours(self):
        if self.random.random() < 0.6:
            self.mine.clear_quiet_hours()
            return
        local = self.now().astimezone(self.zone)
        window = [f"{local:%H:%M}-{local + MINUTE:%H:%M}"]
        self.mine.set_quiet_hours(window, calendar=self.random.choice([None, QUIET_DAYS]))

    def change_days(self):
        self.days.put(excluded=not self.days.changes[-1][0])

    def set_timezone(self):
        zone = self.random.choice(["Asia/Seoul", "Asia/Kolkata", None])
        self.mine.set_timezone(zone)
        self.zone = ZoneInfo(zone or "UTC")

    def roll_back(self):
        entry, rule = self.choose(), self.new_rule()
        with Session(self.site.dynbeat.context.database.engine) as session:
            mine = self.mine.bound(session=session)
            self.random.choice(
                [
                    lambda: mine.delete(entry.name),
                    lambda: mine.update(entry.name, trigger=rule.trigger),
                    lambda: mine.pause(entry.name),
                    lambda: mine.run_now(entry.name),
                    lambda: mine.create("rolled back", **self.given(rule)),
                ]
            )()
            session.rollback()


@pytest.fixture
def fuzzed(fault_site):
    # A run that waits in the queue of a busy machine must not be sent again meanwhile.
    limits = {"dynbeat_min_interval": 0, "dynbeat_owner_limits": {"*": {"max_running": CAP}}}
    fault_site.config.update(dynbeat_engine_options=POOL_OF_ONE, dynbeat_resend_after=60, **limits)
    fault_site.app.conf.update(limits)
    return fault_site


@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.combination(broker="redis")
def test_random_edits_of_several_threads_leave_each_fire_time_in_one_row(fuzzed, record_property):
    beats = [fuzzed.beat() for _ in range(2)]
    workers = [fuzzed.worker(pool=pool, name=f"{pool}@test") for pool in POOLS]
    for process in [*beats, *workers]:
        process.wait_for_log("ready." if process in workers else "beat started")
    refuse_rows(fuzzed.dynbeat)
    today = datetime.now(UTC).date()
    quiet_days = [today + number * DAY for number in (-1, 0, 1)]
    fuzzed.dynbeat.calendars.upsert(QUIET_DAYS, dates=quiet_days)
    fuzzers = [Fuzzer(fuzzed, number) for number in range(THREADS)]
    stop = threading.Event()

    with ThreadPoolExecutor(THREADS) as threads:
        working = [threads.submit(each.work, stop) for each in fuzzers]
        for number in range(KILLS):
            stop.wait(SECONDS / (KILLS + 1))
            beats[number % 2].kill()
            workers[number % 2].kill()
            beats[number % 2] = fuzzed.beat()
            pool = POOLS[number % 2]
            workers[number % 2] = fuzzed.worker(pool=pool, name=f"{pool}-{number}@test")
        stop.wait(SECONDS / (KILLS + 1))
        stop.set()
        for each in working:
            each.result()

    accept_rows(fuzzed.dynbeat)
    entries = [entry for fuzzer in fuzzers for entry in fuzzer.entries]
    try:
        settle(fuzzed, fuzzers)
        runs = fuzzed.all_runs()
        fires = verify(entries, runs, fuzzed.event_log.starts())
        verify_caps(runs, fuzzed.event_log)
    except AssertionError as error:
        error.add_note(f"DYNBEAT_EDIT_SEED={SEED} DYNBEAT_EDIT_SECONDS={SECONDS:g}")
        error.add_note(fuzzed.report())
        raise
    counts = sum((fuzzer.counts for fuzzer in fuzzers), Counter())
    record_property(
        SUMMARY_PROPERTY,
        f"edit fuzzer of {SECONDS:g} s (seed {SEED}): {fires} fire times of {len(entries)}"
        f" schedules, all accounted for; {dict(sorted(counts.items()))}",
    )


def refuse_rows(dynbeat):
    """Let the database refuse the runs of one due schedule, and each change of another one."""
    mine = dynbeat.schedules.for_owner(REFUSED)
    for name in ("runs", "schedule"):
        mine.create(name, task="t", trigger=Every(SECOND))
    of_owner = f"NEW.owner = '{REFUSED}'"
    refuse(dynbeat, action="INSERT", table="dynbeat_run", when=of_owner, name="refuse_runs")
    change = f"{of_owner} AND NEW.name = 'schedule'"
    refuse(dynbeat, action="UPDATE", table="dynbeat_schedule", when=change, name="refuse_change")


def accept_rows(dynbeat):
    """Delete these schedules, which have no runs."""
    accept(dynbeat, table="dynbeat_schedule", name="refuse_change")
    mine = dynbeat.schedules.for_owner(REFUSED)
    for name in ("runs", "schedule"):
        assert mine.runs(name) == []
        mine.delete(name)
    accept(dynbeat, table="dynbeat_run", name="refuse_runs")


def settle(site, fuzzers):
    """End the edits: wait until beats have caught up, stop all schedules, and let runs end."""
    database, now = site.dynbeat.context.database, site.dynbeat.context.clock.now
    for fuzzer in fuzzers:
        fuzzer.mine.release()
        fuzzer.mine.clear_quiet_hours()
        for entry in fuzzer.existing():
            if entry.is_paused:
                fuzzer.mine.resume(entry.name)

    def caught_up():
        late = select(Schedule.id).where(Schedule.next_run_at < now() - SECOND)
        return not database.read(lambda session: session.execute(late).all())

    wait_until(caught_up, within=SETTLES_WITHIN, message="beat does not catch up")
    for fuzzer in fuzzers:
        for entry in fuzzer.existing():
            fuzzer.mine.pause(entry.name)
    wait_until(
        lambda: not site.count_runs(Run.finished_at.is_(None)),
        within=SETTLES_WITHIN,
        message="runs are unfinished",
    )
    columns = select(Schedule.owner, Schedule.name, Schedule.next_fire_at)
    rows = database.read(lambda session: session.execute(columns).all())
    found = {(row.owner, row.name): row.next_fire_at for row in rows}
    existing = [entry for fuzzer in fuzzers for entry in fuzzer.existing()]
    assert found.keys() == {(entry.owner, entry.name) for entry in existing}
    for entry in existing:
        entry.next_fire_at = found[entry.owner, entry.name]


def verify(entries, runs, starts):
    """Assert that the history has the expected rows only; return the number of fire times."""
    by_key = {(entry.owner, entry.name): [] for entry in entries}
    for run in runs:
        by_key[run.owner, run.name].append(run)
    attempts = Counter((start["run_id"], start["headers"][HEADER_ATTEMPT]) for start in starts)
    assert max(attempts.values()) == 1, f"started twice: {attempts.most_common(3)}"
    started = {run_id for run_id, _ in attempts}
    succeeded = {run.id for run in runs if run.status == Status.SUCCEEDED}
    assert succeeded <= started, "succeeded without a start"
    never = [
        f"{run.id} {run.name} {run.status} {run.error} attempt {run.attempt}"
        for run in runs
        if run.id in started
        if run.status in NEVER_STARTED or (run.status == Status.REVOKED and run.attempt == 0)
    ]
    assert not never, f"started although they have ended: {never[:3]}"
    return sum(verify_entry(entry, by_key[entry.owner, entry.name]) for entry in entries)


def verify_caps(runs, log):
    """Assert that no owner had more bodies at once than its cap.

    A run that was terminated, or whose worker was killed, has its place until its row has ended.
    """
    ends = {end["run_id"]: end["at"] for end in log.read("ended")}
    changes = defaultdict(list)
    for run in runs:
        for start in log.starts(run.id) if run.task == "probe.last" else ():
            until = run.finished_at.timestamp()
            until = min(until, ends.get(run.id, until))
            changes[run.owner] += [(start["at"], 1), (max(until, start["at"]), -1)]
    for owner, of_owner in changes.items():
        # Ends before starts at the same instant.
        highest = max(itertools.accumulate(change for _, change in sorted(of_owner)))
        assert highest <= CAP, f"{owner} had {highest} runs at once"


def instants_written_with_backfills(runs):
    """Return the instants of the skipped rows that a backfill has moved from a fire time.

    It runs the newest fire time of a count from before the trigger changed. The others are not
    known any more, so their count is a microsecond before the run, in the same transaction.
    """
    with_backfill = {
        (run.fire_at - timedelta.resolution, run.created_at)
        for run in runs
        if run.origin == Origin.BACKFILL
    }
    skipped = [run for run in runs if run.status == Status.SKIPPED]
    return {run.fire_at for run in skipped if (run.fire_at, run.created_at) in with_backfill}


def verify_entry(entry, runs):
    own = [run for run in runs if run.origin == Origin.SCHEDULE]
    recorded = {run.fire_at: run for run in own}
    assert len(recorded) == len(own), f"{entry}: a fire time has two rows"
    now = datetime.now(UTC)
    if entry.deleted_at is not None:
        # A deletion does not record the fire times that it cut off. Other rows have no gaps.
        end = min(entry.deleted_at, max(recorded, default=entry.rules[0][0])) + timedelta.resolution
        last = entry.deleted_at
        late = [run.id for run in runs if run.created_at > last + TOLERANCE]
        assert not late, f"{entry}: rows after the deletion: {late}"
    else:
        last = end = entry.next_fire_at or now
    required, optional = entry.expected(end - timedelta.resolution)
    possible = required | optional | entry.expected(last)[1]
    # Beat records them when it decides about a later fire time.
    settled = max(recorded, default=entry.rules[0][0])
    required -= {at for at in entry.skipped if at > settled}
    # A backfill may make the run of a fire time that beat has not processed yet.
    required -= {run.fire_at for run in runs if run.origin == Origin.BACKFILL}
    unexpected = sorted(recorded.keys() - possible - instants_written_with_backfills(runs))
    assert not unexpected, f"{entry}: not expected: {unexpected[:5]}"
    count = sum(run.fire_count for run in own)
    assert len(required) <= count <= len(possible), (
        f"{entry}: {len(required)} to {len(possible)} fire times before {end}, {count} in rows;"
        f" without a row: {sorted(required - recorded.keys())[:10]}"
    )
    # A backfill runs the fire times that skip() took out, too.
    for at in entry.skipped & required:
        is_skipped = at in recorded and recorded[at].status == Status.SKIPPED
        assert is_skipped, f"{entry}: {at} was skipped"
    requested = Counter(run.origin for run in runs)
    for origin in (Origin.MANUAL, Origin.RERUN):
        assert requested[origin] == entry.requested[origin], f"{entry}: {origin} {requested}"
    assert requested[Origin.BACKFILL] == 0 or entry.requested[Origin.BACKFILL], entry
    return count
