"""Fair dispatch between owners: what a hundred owners wait for when one has 20,000 runs due.

    python -m benchmarks.fairness

One beat, the real publisher, PostgreSQL and Redis of its own, everything due at one instant. The
same burst twice in one run, with and without the rule of celery_dynbeat.claim; the order of rows is
the worst for the others, who stand behind all of the one owner's.
"""

import statistics
from datetime import timedelta

from celery import Celery
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sqlalchemy import select

from celery_dynbeat import Dynbeat, Once, claim
from celery_dynbeat.db.models import Run
from celery_dynbeat.dispatch import Dispatcher
from celery_dynbeat.publish import Publisher
from tests.support.servers import PostgreSQLServer, RedisServer

ONE, OTHERS = 20_000, 100
BATCH = 1_000
NOBODY_IS_HEAVY = 1


def burst(database_url: str, broker_url: str, *, share: int, title: str) -> dict[str, list[float]]:
    """Return the lags in seconds, of the one owner and of the others."""
    claim.HEAVY_SHARE = share
    app = Celery("fairness", broker=broker_url, set_as_current=False)
    app.conf.update(
        dynbeat_database_url=database_url,
        dynbeat_create_tables=True,
        dynbeat_notifier="polling",
        dynbeat_batch_size=BATCH,
    )
    dynbeat = Dynbeat(app)
    dynbeat.context.prepare()
    due_at = dynbeat.context.clock.now() + timedelta(seconds=60)
    rule = {"task": "noop", "trigger": Once(due_at)}
    one = [{"owner": "one", "name": str(number), **rule} for number in range(ONE)]
    others = [{"owner": f"other:{number}", "name": "only", **rule} for number in range(OTHERS)]
    dynbeat.schedules.create_many([*one, *others])
    return _dispatch(dynbeat, title=title)


def _dispatch(dynbeat: Dynbeat, *, title: str) -> dict[str, list[float]]:
    context = dynbeat.context
    with context.database.engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE dynbeat_schedule SET next_run_at = now(), next_fire_at = now()"
        )
    beat = Dispatcher(
        database=context.database,
        publisher=Publisher(dynbeat.app),
        clock=context.clock,
        settings=context.settings,
    )
    for _ in track(range((ONE + OTHERS) // BATCH + 1), description=title):
        beat.run_pass()
    with context.database.engine.connect() as connection:
        rows = connection.execute(select(Run.owner, Run.sent_at, Run.scheduled_for)).all()
    lags: dict[str, list[float]] = {"one": [], "others": []}
    for owner, sent_at, scheduled_for in rows:
        lags["one" if owner == "one" else "others"].append(
            (sent_at - scheduled_for).total_seconds()
        )
    assert len(lags["one"]) == ONE
    assert len(lags["others"]) == OTHERS
    context.database.dispose()
    return lags


def main() -> None:
    """Run both and print them side by side."""
    table = Table(title=f"lag in seconds: one owner with {ONE:,} due, {OTHERS} with one each")
    for column in ("", "owner", "median", "p99", "last"):
        table.add_column(column, justify="right")
    with RedisServer() as redis:
        for title, share in (("without", NOBODY_IS_HEAVY), ("with", claim.HEAVY_SHARE)):
            with PostgreSQLServer() as postgresql:
                lags = burst(postgresql.url, redis.url, share=share, title=title)
            for owner, seconds in lags.items():
                ordered = sorted(seconds)
                p99 = ordered[int(len(ordered) * 0.99) - 1]
                figures = (statistics.median(ordered), p99, ordered[-1])
                table.add_row(title, owner, *(f"{figure:.2f}" for figure in figures))
    Console().print(table)


if __name__ == "__main__":
    main()
