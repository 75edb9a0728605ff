"""Millions of old runs, written by statements in the database. PostgreSQL only."""

from collections.abc import Callable, Iterable
from datetime import timedelta

from sqlalchemy import Engine, text

from benchmarks.loading import patient

#: Rows in one transaction.
ROWS_PER_TRANSACTION = 500_000
#: The schedules of the runs: those of all owners except the application.
_FROM_OWNERS = "FROM dynbeat_schedule WHERE owner <> ''"
#: One round is one run of each schedule. The ids are UUIDs of version 7, like ours.
_ROUNDS = f"""
INSERT INTO dynbeat_run
  (id, schedule_id, owner, name, task, scheduled_for, status, attempt,
   created_at, sent_at, started_at, finished_at, worker, worker_pid)
SELECT CAST(
         substr(made.hex, 1, 8) || '-' || substr(made.hex, 9, 4)
         || '-7' || substr(made.random, 1, 3) || '-8' || substr(made.random, 4, 3)
         || '-' || substr(made.random, 7, 12) AS uuid),
       schedule.id, schedule.owner, schedule.name, schedule.task, fired.at, 'succeeded', 1,
       fired.at, fired.at, fired.at, fired.at, 'w1@benchmark', 1
FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS round,
     LATERAL (SELECT CAST(:oldest AS timestamptz) + round * CAST(:step AS interval) AS at) AS fired,
     (SELECT id, owner, name, task {_FROM_OWNERS}) AS schedule,
     LATERAL (
       SELECT lpad(to_hex(CAST(floor(extract(epoch FROM fired.at) * 1000) AS bigint)), 12, '0')
                AS hex,
              md5(schedule.id || ' ' || round) AS random
     ) AS made
"""
_PAST = """
INSERT INTO dynbeat_schedule
  (owner, name, task, trigger_kind, trigger_spec, last_run_at, finished_at)
SELECT 'past', 'finished ' || n, 'noop', 'once', to_char(now(), 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
       now() - interval '1 day', now() - interval '1 day'
FROM generate_series(1, CAST(:count AS bigint)) AS n
"""

#: Shows the progress.
Track = Callable[[Iterable[int], str], Iterable[int]]


def finished_schedules(engine: Engine, count: int) -> None:
    """Write finished schedules, for a history that may be deleted."""
    with engine.begin() as connection:
        connection.execute(text(_PAST), {"count": count})


def write(engine: Engine, rows: int, *, oldest: timedelta, newest: timedelta, track: Track) -> int:
    """Write about ``rows`` ended runs of the existing schedules; return the exact number.

    They are spread evenly from ``oldest`` ago to ``newest`` ago. Each schedule has the same number.
    """
    with patient(engine) as connection:
        schedules = connection.execute(text(f"SELECT count(*) {_FROM_OWNERS}")).scalar_one()
        since = connection.execute(text("SELECT now() - :oldest"), {"oldest": oldest}).scalar_one()
        rounds = max(1, round(rows / schedules))
        step = (oldest - newest) / rounds
        rounds_per_transaction = max(1, ROWS_PER_TRANSACTION // schedules)
        for first in track(range(0, rounds, rounds_per_transaction), "history"):
            last = min(first + rounds_per_transaction, rounds) - 1
            values = {"first": first, "last": last, "oldest": since, "step": step}
            connection.execute(text(_ROUNDS), values)
        connection.execute(text("VACUUM ANALYZE dynbeat_run"))
        return int(connection.execute(text("SELECT count(*) FROM dynbeat_run")).scalar_one())
