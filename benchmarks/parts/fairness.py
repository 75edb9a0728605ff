"""Fair dispatch between owners: what a hundred owners wait for when one has 20,000 runs due.

One beat in this process, with the real publisher, everything due at one instant. The same burst
twice, with and without the rule of celery_dynbeat.claim; the order of rows is the worst for the
others, who stand behind all of the one owner's.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta

from sqlalchemy import Engine, update

from benchmarks.bench import Bench
from benchmarks.lags import by_owner, percentile
from benchmarks.queues import queue
from celery_dynbeat import Dynbeat, Once, claim
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.dispatch import Dispatcher
from celery_dynbeat.publish import Publisher

ONE, OTHERS, LEAST_OTHERS = 20_000, 100, 5
BATCH, LEAST_BATCH = 1_000, 20
#: Nobody has more than all of a batch.
NOBODY_IS_HEAVY = 1
OF_THE_ONE, OF_THE_OTHERS = "the one owner", "the others"
FIGURES = {"median": 0.5, "p99": 0.99, "last": 1.0}

#: Seconds by owner: of the one, and of the others.
Lags = Mapping[str, Sequence[float]]


def run(bench: Bench) -> None:
    """Measure both, and report the lags with the rule beside those without it."""
    without = _burst(bench, share=NOBODY_IS_HEAVY, title="without fairness")
    fair = _burst(bench, share=claim.HEAVY_SHARE, title="with fairness")
    for owner, lags in fair.items():
        for what, share in FIGURES.items():
            ours, floor = percentile(lags, share), percentile(without[owner], share)
            bench.report(
                "fairness",
                f"lag of {owner}, {what}",
                ours=ours,
                unit="s",
                floor=floor,
                against="without the rule",
                compared=ours / floor,
            )
    bench.series("fairness", {"with": fair, "without": without})


def _burst(bench: Bench, *, share: int, title: str) -> Lags:
    batch = bench.size(BATCH, least=LEAST_BATCH)
    one, others = bench.size(ONE), bench.size(OTHERS, least=LEAST_OTHERS)
    settings = {"dynbeat_notifier": "polling", "dynbeat_batch_size": batch}
    with (
        bench.site() as site,
        site.application(**settings) as dynbeat,
        queue(site) as waiting,
        _heavy_share(share),
    ):
        _create(dynbeat, one=one, others=others)
        beat, publisher = _beat(dynbeat)
        for _ in bench.track(range((one + others) // batch + 1), title):
            beat.run_pass()
        publisher.close()
        arrived = waiting.drain()
        lags = _lags(dynbeat.context.database.engine)
    assert len(set(arrived)) == len(arrived) == one + others, f"{len(arrived)} messages"
    counts = {OF_THE_ONE: one, OF_THE_OTHERS: others}
    assert {owner: len(seconds) for owner, seconds in lags.items()} == counts
    return lags


@contextmanager
def _heavy_share(share: int) -> Iterator[None]:
    usual, claim.HEAVY_SHARE = claim.HEAVY_SHARE, share
    try:
        yield
    finally:
        claim.HEAVY_SHARE = usual


def _create(dynbeat: Dynbeat, *, one: int, others: int) -> None:
    clock = dynbeat.context.clock
    trigger = Once(clock.now() + timedelta(seconds=60))
    theirs = [("one", str(number)) for number in range(one)]
    rest = [(f"other:{number}", "only") for number in range(others)]
    dynbeat.schedules.create_many(
        [
            {"owner": owner, "name": name, "task": "noop", "trigger": trigger}
            for owner, name in [*theirs, *rest]
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
    for owner, seconds in by_owner(engine):
        lags[OF_THE_ONE if owner == "one" else OF_THE_OTHERS].append(seconds)
    return lags
