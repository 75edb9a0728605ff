"""The rollup has the figures of the ended runs that a plain count of all runs finds."""

import random
import threading
from collections import defaultdict
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import event, func, insert, select

from celery_dynbeat import Every
from celery_dynbeat.beat.pruning import prune_runs
from celery_dynbeat.beat.rollup import RollupDuty
from celery_dynbeat.common.run_ids import new_run_id
from celery_dynbeat.common.text import NAME_LENGTH
from celery_dynbeat.db.models import Rollup, Run
from celery_dynbeat.store import rollups
from celery_dynbeat.store.rollups import LAG_BOUNDS, RUN_TIME_BOUNDS, names_of
from celery_dynbeat.store.span_reads import Span
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import START, execute
from tests.support.suites import each_database

SECOND, MINUTE, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(days=1)
MILLISECOND = timedelta(milliseconds=1)
STATUSES = ("succeeded", "succeeded", "failed", "lost", "revoked", "expired", "skipped", "running")
NUMBERS = ("sent", "succeeded", "failed", "lost", "other")


class KilledError(Exception):
    """A beat dies."""


def run(end, *, status="succeeded", **fields):
    """Return the row of a run that ended at ``end``."""
    values = {
        "owner": "user:1",
        "name": "n",
        "task": "t",
        "origin": "schedule",
        "attempt": 1,
        "queue": "celery",
        "fire_at": end,
        "created_at": end,
        "sent_at": end,
        "started_at": end,
        "ready_at": None,
        "finished_at": None if status == "running" else end,
        **fields,
    }
    return {"id": new_run_id(values["created_at"]), "status": status, **values}


def random_run(chance):
    end = START + chance.randrange(1_200_000) * MILLISECOND
    # No time is the bound of a bucket: SQLite computes with an error of a tenth of a millisecond.
    steps = [(chance.choice([3, 33, 1_003, 33_333, 400_003])) * MILLISECOND for _ in range(3)]
    started = end - steps[0]
    sent = started - steps[1]
    due = sent - steps[2]
    status = chance.choice(STATUSES)
    is_sent = status != "skipped" and chance.random() < 0.9
    return run(
        end,
        status=status,
        origin=chance.choice(["schedule", "schedule", "manual", "backfill"]),
        attempt=chance.choice([0, 1]) if status == "skipped" else 1,
        queue=chance.choice(["celery", "mail", None]) if is_sent else None,
        fire_at=due,
        created_at=due,
        sent_at=sent if is_sent else None,
        # After the send: a retry waited.
        ready_at=chance.choice([None, due + MILLISECOND, sent + MILLISECOND]),
        started_at=chance.choice([started, started, None, end + SECOND]),
    )


def expected(rows):
    """Return the figures by minute and queue, and by queue alone."""
    found = defaultdict(list)
    for row in rows:
        end = row["finished_at"]
        if end is None or (row["status"] == "skipped" and not row["attempt"]):
            continue
        queue = row["queue"] or ""
        found[end.replace(second=0, microsecond=0), queue].append(row)
        found[rollups.TOTALS, queue].append(row)
    return {key: figures(some) for key, some in found.items()}


def figures(rows):
    statuses = [row["status"] for row in rows]
    known = {status: statuses.count(status) for status in ("succeeded", "failed", "lost")}
    lags = [lag_of(row) for row in rows if row["origin"] == "schedule" and row["sent_at"]]
    times = [
        max((row["finished_at"] - row["started_at"]).total_seconds(), 0)
        for row in rows
        if row["status"] in {"succeeded", "failed"} and row["started_at"]
    ]
    return {
        "sent": sum(row["sent_at"] is not None for row in rows),
        **known,
        "other": len(rows) - sum(known.values()),
        "lag_seconds": pytest.approx(sum(lags), abs=0.01),
        "lag_max": pytest.approx(max(lags, default=0), abs=0.01),
        "lags": buckets(lags, LAG_BOUNDS),
        "run_seconds": pytest.approx(sum(times), abs=0.01),
        "run_times": buckets(times, RUN_TIME_BOUNDS),
    }


def lag_of(row):
    since = row["fire_at"] if row["ready_at"] is None else row["ready_at"]
    return max((row["sent_at"] - since).total_seconds(), 0)


def buckets(values, bounds):
    found = defaultdict(int)
    for value in values:
        number = sum(value > bound for bound in bounds)
        found[names_of(bounds)[number]] += 1
    return dict(found)


@pytest.fixture
def add(dynbeat):
    """Return a function that inserts runs."""

    def add_rows(*rows):
        with dynbeat.context.database.engine.begin() as connection:
            connection.execute(insert(Run), list(rows))

    return add_rows


@pytest.fixture
def table(dynbeat):
    """Return a function that reads the rollup."""

    def read():
        names = (*NUMBERS, "lag_seconds", "lag_max", "lags", "run_seconds", "run_times")

        def work(session):
            return {
                (row.minute, row.queue): {name: getattr(row, name) for name in names}
                for row in session.scalars(select(Rollup))
            }

        return dynbeat.context.database.read(work)

    return read


@pytest.fixture
def duty(dynbeat):
    """Return a function that makes the duty of a beat."""
    return partial(RollupDuty, database=dynbeat.context.database, retention=30 * DAY)


@pytest.fixture
def count(clock, duty):
    """Return a function that waits until all runs up to now are counted."""

    def until_counted():
        counting = duty()
        counting.run(clock.now())
        clock.advance(rollups.SETTLED_AFTER + MINUTE)
        counting.run(clock.now())

    return until_counted


@pytest.mark.parametrize("seed", [1, 2])
def test_it_equals_a_plain_count(clock, add, table, duty, monkeypatch, seed):
    """Two beats count while runs are committed late. Each of them dies in the middle of a count."""
    chance = random.Random(seed)  # noqa: S311 - repeatable
    monkeypatch.setattr(rollups, "MAX_MINUTES", 2)
    real, kills = rollups._add_to_totals, []

    def die_sometimes(session, new):
        real(session, new)
        if new and chance.random() < 0.4:
            kills.append(clock.now())
            raise KilledError

    monkeypatch.setattr(rollups, "_add_to_totals", die_sometimes)
    rows = [random_run(chance) for _ in range(1_000)]
    late = rollups.SETTLED_AFTER / SECOND
    waiting = [(row["finished_at"] or START, row) for row in rows]
    waiting = [(end + chance.uniform(0, late) * SECOND, row) for end, row in waiting]
    waiting.sort(key=lambda each: each[0], reverse=True)
    beats = [duty(), duty()]
    while clock.now() < START + 40 * MINUTE:
        clock.advance(chance.randrange(1, 40) * SECOND)
        committed = []
        while waiting and waiting[-1][0] <= clock.now():
            committed.append(waiting.pop()[1])
        if committed:
            add(*committed)
        number = chance.randrange(2)
        try:
            beats[number].run(clock.now())
        except KilledError:
            beats[number] = duty()

    assert len(kills) > 2
    assert table() == expected(rows)


@each_database
def test_one_beat_counts_at_a_time(dynbeat, clock, add, table):
    if dynbeat.context.database.engine.dialect.name == "sqlite":
        pytest.skip("a transaction of SQLite locks the whole database")
    rows = [run(START + number * SECOND) for number in range(90)]
    add(*rows)
    clock.advance(10 * MINUTE)
    database = dynbeat.context.database
    step = partial(rollups.count_minutes, now=clock.now(), retention=DAY)
    # Its row exists from the first count on.
    database.run(partial(rollups.count_minutes, now=START, retention=DAY))
    others = []

    def count_twice(session):
        step(session)
        other = threading.Thread(target=lambda: others.append(database.run(step)))
        other.start()
        other.join(10)

    database.run(count_twice)
    database.run(step)

    # The other beat did not wait, and counted nothing.
    assert others == [False]
    assert table() == expected(rows)


def test_a_beat_waits_for_buffered_outcomes_after_its_start_and_after_an_outage(
    dynbeat, clock, add, table, duty, monkeypatch
):
    counting, read = duty(), dynbeat.context.database.read
    clock.advance(10 * MINUTE)
    counting.run(clock.now())
    add(run(START))
    clock.advance(rollups.SETTLED_AFTER)
    counting.run(clock.now())
    assert table() == expected([run(START)])

    def fail(_):
        raise KilledError

    monkeypatch.setattr(dynbeat.context.database, "read", fail)
    clock.advance(10 * MINUTE)
    with pytest.raises(KilledError):
        counting.run(clock.now())
    monkeypatch.setattr(dynbeat.context.database, "read", read)
    counting.run(clock.now())
    add(run(START + 15 * MINUTE))
    clock.advance(rollups.SETTLED_AFTER)
    counting.run(clock.now())

    assert table() == expected([run(START), run(START + 15 * MINUTE)])


@each_database
def test_it_continues_after_the_clock_is_set_back(add, table, duty):
    counting = duty()
    counting.run(START)
    add(run(START), run(START + DAY))
    counting.run(START + DAY + 5 * MINUTE)
    back = START + 8 * MINUTE
    counting.run(back)
    add(run(back))

    counting.run(back + 5 * MINUTE)

    assert {minute for minute, _ in table()} == {rollups.TOTALS, START, back, START + DAY}
    assert table()[rollups.TOTALS, "celery"]["succeeded"] == 3
    counting.run(START + DAY + 5 * MINUTE)
    assert table()[rollups.TOTALS, "celery"]["succeeded"] == 3


@each_database
def test_a_small_step_back_of_the_clock_loses_no_end_and_counts_none_twice(
    dynbeat, add, table, duty
):
    counting = duty()
    counting.run(START)
    before = START + 7 * MINUTE + SECOND
    add(run(before))
    counting.run(START + 10 * MINUTE)
    back = START + 10 * MINUTE - 175 * SECOND
    counting.run(back)
    add(run(back))
    read = dynbeat.context.database.read
    spans = [Span(START, START + DAY)]

    # The pages read these minutes from the runs until they are counted again.
    assert read(partial(rollups.count_spans, spans=spans)) == [(0, 0)]
    for number in range(20):
        counting.run(back + number * MINUTE)

    assert table() == expected([run(before), run(back)])
    assert read(partial(rollups.count_spans, spans=spans)) == [(2, 0)]


@each_database
def test_a_prune_keeps_runs_that_are_not_counted(dynbeat, clock, add, count):
    count()
    add(run(clock.now() + MINUTE))
    clock.advance(90 * DAY)

    def pruned():
        database = dynbeat.context.database
        return prune_runs(database, now=clock.now(), older_than=30 * DAY).deleted

    assert pruned() == 0
    count()
    assert pruned() == 1


def test_minutes_are_deleted_after_the_retention_and_the_sums_stay(clock, add, table, count):
    add(*(run(START + number * MINUTE) for number in range(3)))
    clock.advance(5 * MINUTE)
    count()
    assert table()[rollups.TOTALS, "celery"]["succeeded"] == 3
    clock.advance(30 * DAY)
    last = clock.now()
    add(run(last))

    count()

    assert {minute for minute, _ in table()} == {rollups.TOTALS, last}
    assert table()[rollups.TOTALS, "celery"]["succeeded"] == 4


# Only PostgreSQL has infinity.
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_an_instant_outside_the_calendar_stops_no_count(dynbeat, add, table, count):
    add(run(START, name="damaged"), run(START, name="other"))
    execute(
        dynbeat,
        "UPDATE dynbeat_run SET sent_at = 'infinity', started_at = '-infinity',"
        " ready_at = 'infinity' WHERE name = 'damaged'",
    )

    count()

    assert table()[START, "celery"]["succeeded"] == 2


@each_database
def test_a_run_has_the_queue_to_which_it_was_sent(dynbeat, mine, clock, all_queues):
    mine.create("default", task="t", trigger=Every(60))
    mine.create("mail", task="t", trigger=Every(60))
    mine.create("long", task="t", trigger=Every(60))
    clock.advance(MINUTE)
    beat = ManualBeat(dynbeat)
    queues = {"default": "celery", "mail": "mail ", "long": "q" * 300}
    name_queues(beat.publisher, lambda run: queues[run.name])
    beat.run_until_idle()

    found = all_queues()

    assert (found["default"], found["mail"]) == ("celery", "mail")
    assert found["long"].startswith("qqq")
    assert len(found["long"]) == NAME_LENGTH


def name_queues(publisher, queue_of):
    """Let a publisher return the queues of its runs."""
    publish = publisher.publish

    def published(batch):
        result = publish(batch)
        result.queues = {run.run_id: queue_of(run) for run in batch}
        return result

    publisher.publish = published


@contextmanager
def counting(dynbeat):
    """Give the list that grows with the statements."""
    statements = []

    def append(_connection, _cursor, statement, *_others):
        statements.append(statement.replace("`", ""))

    engine = dynbeat.context.database.engine
    event.listen(engine, "before_cursor_execute", append)
    yield statements
    event.remove(engine, "before_cursor_execute", append)


@pytest.fixture
def all_queues(dynbeat):
    """Return a function that reads the queue of the run of each schedule."""

    def read():
        statement = select(Run.name, func.max(Run.queue)).group_by(Run.name)
        return dict(dynbeat.context.database.read(lambda session: session.execute(statement).all()))

    return read
