"""Write millions of old runs with SQL in the database. PostgreSQL only."""

from collections.abc import Callable, Iterable
from datetime import timedelta

from sqlalchemy import Engine, text

from benchmarks.bulk_schedules import connect_without_timeout

#: Rows in one transaction.
ROWS_PER_TRANSACTION = 500_000
#: The runs belong to the schedules of all owners except the application.
_SCHEDULES = "FROM dynbeat_schedule WHERE owner <> ''"
#: A round is one run of each schedule. Ids are UUIDs of version 7, as in celery_dynbeat.
_INSERT_ROUNDS = f"""
INSERT INTO dynbeat_run
  (id, schedule_id, owner, name, task, fire_at, status, attempt,
   created_at, sent_at, started_at, finished_at, worker, worker_pid)
SELECT CAST(
         substr(made.hex, 1, 8) || '-' || substr(made.hex, 9, 4)
         || '-7' || substr(made.random, 1, 3) || '-8' || substr(made.random, 4, 3)
         || '-' || substr(made.random, 7, 12) AS uuid),
       schedule.id, schedule.owner, schedule.name, schedule.task, fired.at, 'succeeded', 1,
       fired.at, fired.at, fired.at, fired.at, 'w1@benchmark', 1
FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS round,
     LATERAL (SELECT CAST(:oldest AS timestamptz) + round * CAST(:step AS interval) AS at) AS fired,
     (SELECT id, owner, name, task {_SCHEDULES}) AS schedule,
     LATERAL (
       SELECT lpad(to_hex(CAST(floor(extract(epoch FROM fired.at) * 1000) AS bigint)), 12, '0')
                AS hex,
              md5(schedule.id || ' ' || round) AS random
     ) AS made
"""
_INSERT_FINISHED = """
INSERT INTO dynbeat_schedule
  (owner, name, task, trigger_kind, trigger_spec, last_run_at, finished_at)
SELECT 'past', 'finished ' || n, 'noop', 'once', to_char(now(), 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
       now() - interval '1 day', now() - interval '1 day'
FROM generate_series(1, CAST(:count AS bigint)) AS n
"""

#: Wraps an iterable in a progress bar with a title.
Track = Callable[[Iterable[int], str], Iterable[int]]


def write_finished_schedules(engine: Engine, count: int) -> None:
    """Write ``count`` finished schedules; beat may delete their runs."""
    with engine.begin() as connection:
        connection.execute(text(_INSERT_FINISHED), {"count": count})


def write(engine: Engine, rows: int, *, oldest: timedelta, newest: timedelta, track: Track) -> int:
    """Write about ``rows`` finished runs of the existing schedules; return the exact number.

    The fire times are spread evenly from ``oldest`` ago to ``newest`` ago. Every schedule gets the
    same number of runs.
    """
    with connect_without_timeout(engine) as connection:
        schedules = connection.execute(text(f"SELECT count(*) {_SCHEDULES}")).scalar_one()
        since = connection.execute(text("SELECT now() - :oldest"), {"oldest": oldest}).scalar_one()
        rounds = max(1, round(rows / schedules))
        step = (oldest - newest) / rounds
        rounds_per_transaction = max(1, ROWS_PER_TRANSACTION // schedules)
        for first in track(range(0, rounds, rounds_per_transaction), "history"):
            last = min(first + rounds_per_transaction, rounds) - 1
            values = {"first": first, "last": last, "oldest": since, "step": step}
            connection.execute(text(_INSERT_ROUNDS), values)
        connection.execute(text("VACUUM ANALYZE dynbeat_run"))
        return int(connection.execute(text("SELECT count(*) FROM dynbeat_run")).scalar_one())
