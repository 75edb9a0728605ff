"""Write millions of schedules with SQL in the database, faster than through the API."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.pool import NullPool

#: A mix as users have it: a fixed cron, a wildcard cron and two intervals.
_INSERT = """
INSERT INTO dynbeat_schedule
  (owner, name, task, trigger_kind, trigger_spec, next_fire_at, next_run_at)
SELECT 'user:' || n % CAST(:owners AS bigint), 'schedule ' || n, CAST(:task AS text),
       (ARRAY['cron', 'cron', 'every', 'every'])[n % 4 + 1],
       (ARRAY['0 9 * * mon-fri', '*/5 * * * *', 'PT5M', 'P1D'])[n % 4 + 1],
       due.at, due.at
FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS n,
     LATERAL (
       SELECT now() + make_interval(secs => CAST(:delay AS float) + n % 3600) AS at
     ) AS due
"""


def fill(
    engine: Engine,
    count: int,
    *,
    owners: int = 10_000,
    delay: float = 86_400,
    task: str = "noop",
    first: int = 1,
) -> None:
    """Write ``count`` schedules that come due within one hour, after ``delay`` seconds.

    PostgreSQL only. Then analyse the table, as autovacuum would do.
    """
    with connect_without_timeout(engine) as connection:
        values = {"owners": owners, "delay": delay, "task": task}
        bounds = {"first": first, "last": first + count - 1}
        connection.execute(text(_INSERT), {**values, **bounds})
        connection.execute(text("VACUUM ANALYZE dynbeat_schedule"))


@contextmanager
def connect_without_timeout(engine: Engine) -> Iterator[Connection]:
    """Yield a new connection in autocommit mode without a statement timeout.

    The connections of an application cancel a statement after 30 seconds.
    """
    unlimited = create_engine(engine.url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with unlimited.connect() as connection:
        yield connection
