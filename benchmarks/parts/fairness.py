"""Measure fair dispatch: the lag of 100 owners while one owner uses most of beat's capacity.

One beat runs in this process with the real publisher. Each case is measured with and without the
rules of celery_dynbeat.beat.fairness.

Sending: one owner has 20,000 runs due at the same instant as one run of each other owner. The rows
of the others come last in the order of the claim, which is the worst order for them.

Planning: one owner has 40 schedules that fire every second, with the costliest trigger that is
accepted. Planning them takes most of beat's time. Each of 100 other owners has a one-off every
second, at a different instant. The lag of the others is measured.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from types import ModuleType

from sqlalchemy import Engine, select, update

from benchmarks.bench import Bench
from benchmarks.lag_statistics import lags_by_owner, percentile
from benchmarks.queues import queue
from celery_dynbeat import AnyOf, Cron, Dynbeat, Once, RRule
from celery_dynbeat.beat import fairness, refused
from celery_dynbeat.beat.dispatcher import Dispatcher
from celery_dynbeat.broker.publisher import Publisher
from celery_dynbeat.db.models import Run, Schedule

ONE, OTHERS, MIN_OTHERS = 20_000, 100, 5
BATCH, MIN_BATCH = 1_000, 20
#: With this divisor the fair share is a whole batch, so no owner exceeds it.
NO_FAIRNESS_DIVISOR = 1
OF_THE_ONE, OF_THE_OTHERS = "the one owner", "the others"
#: Number of costly schedules, and seconds for which they fire.
COSTLY, MIN_COSTLY, SECONDS, MIN_SECONDS = 40, 16, 20, 3
NEVER_NS, MAX_SLEEP, START_SECONDS = 10**18, 0.05, 3
FIGURES = {"median": 0.5, "p99": 0.99, "last": 1.0}

#: Lags in seconds: of the one owner, and of the others.
Lags = Mapping[str, Sequence[float]]


def run(bench: Bench) -> None:
    """Measure both cases and report the lags with and without the rules."""
    _measure_sending(bench)
    _measure_planning(bench)


def _measure_planning(bench: Bench) -> None:
    with _replaced_constants(
        fairness, PLANNING_NS=NEVER_NS, COSTLY_PLANNING_NS=NEVER_NS, MIN_REPORTED_NS=NEVER_NS
    ):
        without = _costly(bench, title="much to plan, without the rule")
    fair = _costly(bench, title="much to plan, with the rule")
    for what, share in FIGURES.items():
        value, baseline = percentile(fair, share), percentile(without, share)
        bench.report(
            "fairness",
            f"lag of the others with costly triggers, {what}",
            value=value,
            unit="s",
            baseline=baseline,
            baseline_name="without the rule",
            compared=value / baseline,
        )
    bench.series("fairness, planning", {"with": fair, "without": without})


def _costly(bench: Bench, *, title: str) -> Sequence[float]:
    """Return the lags of the others while one owner's schedules take most of beat's time."""
    costly = bench.size(COSTLY, minimum=MIN_COSTLY)
    seconds = bench.size(SECONDS, minimum=MIN_SECONDS)
    others = bench.size(OTHERS, minimum=MIN_OTHERS)
    # No minimum interval, because the costly triggers fire every second.
    settings = {"dynbeat_notifier": "polling", "dynbeat_min_interval": 0}
    with (
        bench.site() as site,
        site.application(**settings) as dynbeat,
        queue(site) as task_queue,
    ):
        ends_at = _create_costly(dynbeat, costly=costly, others=others, seconds=seconds)
        beat, publisher = _beat(dynbeat)
        engine, clock = dynbeat.context.database.engine, dynbeat.context.clock
        for _ in bench.track(range(START_SECONDS + seconds), title):
            until = clock.now() + timedelta(seconds=1)
            while clock.now() < min(until, ends_at):
                time.sleep(min(max(beat.run_pass().total_seconds(), 0), MAX_SLEEP))
        while _unsent(engine):
            beat.run_pass()
        beat.close()
        publisher.close()
        task_queue.drain()
        return _lags_of_others(engine)


def _unsent(engine: Engine) -> bool:
    """Return whether a one-off has no run yet."""
    unsent = select(Schedule.id).where(Schedule.owner != "one", Schedule.finished_at.is_(None))
    with engine.connect() as connection:
        return connection.execute(unsent.limit(1)).first() is not None


def _lags_of_others(engine: Engine) -> Sequence[float]:
    # Some fire times of the one owner were skipped.
    runs = select(Run.sent_at, Run.fire_at).where(Run.owner != "one")
    with engine.connect() as connection:
        rows = connection.execute(runs).all()
    return [(sent_at - at).total_seconds() for sent_at, at in rows if sent_at is not None]


def _create_costly(dynbeat: Dynbeat, *, costly: int, others: int, seconds: int) -> datetime:
    """Create the schedules and return when the last of the others fires."""
    dynbeat.schedules.create_many(
        [
            {"owner": "one", "name": str(number), "task": "noop", "trigger": _costliest(number)}
            for number in range(costly)
        ]
    )
    start = dynbeat.context.clock.now() + timedelta(seconds=START_SECONDS)
    dynbeat.schedules.create_many(
        [
            {
                "owner": f"other:{number}",
                "name": str(second),
                "task": "noop",
                "trigger": Once(start + timedelta(seconds=second + number / others)),
            }
            for number in range(others)
            for second in range(seconds)
        ]
    )
    return start + timedelta(seconds=seconds)


def _costliest(number: int) -> AnyOf:
    """Return a trigger of 228 rules, close to the limit of the search budget."""
    rules = "\n".join(f"RRULE:FREQ=DAILY;BYHOUR={hour}" for hour in range(12))
    starts = (f"DTSTART:20200101T00{number % 60:02}{second:02}Z" for second in range(19))
    return AnyOf(Cron("* * * * * *"), *(RRule(f"{start}\n{rules}") for start in starts))


def _measure_sending(bench: Bench) -> None:
    without = _burst(bench, share=NO_FAIRNESS_DIVISOR, title="without fairness")
    fair = _burst(bench, share=fairness.FAIR_SHARE_DIVISOR, title="with fairness")
    for owner, lags in fair.items():
        for what, share in FIGURES.items():
            value, baseline = percentile(lags, share), percentile(without[owner], share)
            bench.report(
                "fairness",
                f"lag of {owner}, {what}",
                value=value,
                unit="s",
                baseline=baseline,
                baseline_name="without the rule",
                compared=value / baseline,
            )
    bench.series("fairness", {"with": fair, "without": without})


def _burst(bench: Bench, *, share: int, title: str) -> Lags:
    batch = bench.size(BATCH, minimum=MIN_BATCH)
    one, others = bench.size(ONE), bench.size(OTHERS, minimum=MIN_OTHERS)
    with (
        bench.site() as site,
        site.application(dynbeat_notifier="polling") as dynbeat,
        queue(site) as task_queue,
        _replaced_constants(fairness, FAIR_SHARE_DIVISOR=share),
        _replaced_constants(refused, BATCH_SIZE=batch),
    ):
        _create(dynbeat, one=one, others=others)
        beat, publisher = _beat(dynbeat)
        for _ in bench.track(range((one + others) // batch + 1), title):
            beat.run_pass()
        publisher.close()
        arrived = task_queue.drain()
        lags = _lags(dynbeat.context.database.engine)
    assert len(set(arrived)) == len(arrived) == one + others, f"{len(arrived)} messages"
    counts = {OF_THE_ONE: one, OF_THE_OTHERS: others}
    assert {owner: len(seconds) for owner, seconds in lags.items()} == counts
    return lags


@contextmanager
def _replaced_constants(module: ModuleType, **values: int) -> Iterator[None]:
    """Replace constants of the module for the block."""
    originals = {name: getattr(module, name) for name in values}
    vars(module).update(values)
    try:
        yield
    finally:
        vars(module).update(originals)


def _create(dynbeat: Dynbeat, *, one: int, others: int) -> None:
    clock = dynbeat.context.clock
    trigger = Once(clock.now() + timedelta(seconds=60))
    one_keys = [("one", str(number)) for number in range(one)]
    other_keys = [(f"other:{number}", "only") for number in range(others)]
    dynbeat.schedules.create_many(
        [
            {"owner": owner, "name": name, "task": "noop", "trigger": trigger}
            for owner, name in [*one_keys, *other_keys]
        ]
    )
    now = clock.now()
    with dynbeat.context.database.engine.begin() as connection:
        connection.execute(update(Schedule).values(next_run_at=now, next_fire_at=now))


def _beat(dynbeat: Dynbeat) -> tuple[Dispatcher, Publisher]:
    context = dynbeat.context
    publisher = Publisher(dynbeat.app)
    beat = Dispatcher(
        database=context.database,
        publisher=publisher,
        clock=context.clock,
        settings=context.settings,
    )
    return beat, publisher


def _lags(engine: Engine) -> Lags:
    lags: dict[str, list[float]] = {OF_THE_ONE: [], OF_THE_OTHERS: []}
    for owner, seconds in lags_by_owner(engine):
        lags[OF_THE_ONE if owner == "one" else OF_THE_OTHERS].append(seconds)
    return lags
