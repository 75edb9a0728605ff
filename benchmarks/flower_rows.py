"""Write an installation for the pages of Flower, with SQL in the database. PostgreSQL only.

Its schedules come due within the next day, in every state. Its runs lie in the last four weeks,
with the durations, lags and statuses of a real history. One owner has many schedules, and one
schedule runs each minute.
"""

from dataclasses import dataclass

from sqlalchemy import Connection, Engine, text

from benchmarks.bulk_runs import ROWS_PER_TRANSACTION, Track
from benchmarks.bulk_schedules import connect_without_timeout

OWNERS = 10_000
#: This owner has a twentieth of the schedules.
BIG_OWNER = "user:0"
OWNER = "user:42"
TAG, TASK = "vip", "tasks.report 7"
RARE_TAG, RARE_TASK = "rare", "tasks.rare"
HELD_OWNER = "user:77"
#: The schedule of the owner BIG_OWNER that runs each minute.
BUSY = "busy"
BUSY_RUNS = 28 * 24 * 60

_OWNER = f"CASE WHEN n % 20 = 0 THEN '{BIG_OWNER}' ELSE 'user:' || n % {OWNERS} END"
_SCHEDULES = f"""
INSERT INTO dynbeat_schedule
  (owner, name, task, kwargs, tags, trigger_kind, trigger_spec, timezone, description, enabled,
   next_fire_at, next_run_at, last_run_at, failing_since, finished_at, error)
SELECT {_OWNER}, 'schedule ' || n,
       CASE WHEN n % 100000 = 77 THEN '{RARE_TASK}' ELSE 'tasks.report ' || n % 20 END,
       json_build_object('user_id', n),
       CASE WHEN n % 100000 = 78 THEN '["{RARE_TAG}"]'
            WHEN n % 10 = 1 THEN '["{TAG}", "mail"]' ELSE '[]' END::jsonb,
       (ARRAY['cron', 'cron', 'every', 'every'])[n % 4 + 1],
       (ARRAY['0 9 * * mon-fri', '*/5 * * * *', 'PT5M', 'P1D'])[n % 4 + 1],
       (ARRAY['UTC', 'Asia/Seoul', 'Europe/Berlin'])[n % 3 + 1],
       'The report of user ' || n, state.name <> 'paused',
       CASE WHEN state.name IN ('', 'failing') THEN due.at END,
       CASE WHEN state.name IN ('', 'failing') THEN due.at END,
       now() - interval '1 hour' - n % 86400 * interval '1 second',
       CASE WHEN state.name = 'failing' THEN now() - interval '1 day' END,
       CASE WHEN state.name = 'finished' THEN now() - interval '2 days' END,
       CASE WHEN state.name = 'quarantined' THEN 'ValueError: no such hour: 25' END
FROM generate_series(1, CAST(:count AS bigint)) AS n,
     -- Primes, so that each state is spread over owners, tags and tasks.
     LATERAL (
       SELECT CASE WHEN n % 101 = 1 THEN 'paused' WHEN n % 103 = 1 THEN 'failing'
                   WHEN n % 97 = 1 THEN 'finished' WHEN n % 1009 = 1 THEN 'quarantined'
                   ELSE '' END AS name
     ) AS state,
     LATERAL (
       SELECT CASE WHEN n % 1013 = 5 THEN now() - interval '10 minutes'
                   ELSE now() + n * 7919 % 86400 * interval '1 second' + interval '2 minutes'
              END AS at
     ) AS due
"""
_BUSY_SCHEDULE = f"""
INSERT INTO dynbeat_schedule
  (owner, name, task, trigger_kind, trigger_spec, next_fire_at, next_run_at, last_run_at)
SELECT '{BIG_OWNER}', '{BUSY}', '{TASK}', 'cron', '* * * * *', at, at, now()
FROM (SELECT date_trunc('minute', now()) + interval '1 hour' AS at) AS due
"""
_RUN_COLUMNS = """
INSERT INTO dynbeat_run
  (id, schedule_id, owner, name, task, fire_at, status, attempt, created_at, overdue_at,
   sent_at, started_at, finished_at, worker, worker_pid, error, traceback)
"""
#: Needs ``fired`` (seed, schedule_id, at) and :unfinished_from, the seed of the first run in work.
#: Materialized: PostgreSQL would otherwise evaluate each expression once for each use.
_RUN_VALUES = """
drawn AS MATERIALIZED (
  SELECT fired.*,
         lpad(to_hex(CAST(floor(extract(epoch FROM at) * 1000) AS bigint)), 12, '0') AS hex,
         md5(schedule_id || ' ' || seed) AS random,
         seed * 2654435761 % 1000003 AS number
  FROM fired
), chosen AS MATERIALIZED (
  SELECT drawn.*,
         CASE WHEN seed >= CAST(:unfinished_from AS bigint)
                THEN CASE WHEN number % 2 = 0 THEN 'running' ELSE 'sent' END
              WHEN number % 1000 < 30 THEN 'failed'
              WHEN number % 1000 < 35 THEN 'lost'
              WHEN number % 1000 < 55 THEN 'skipped'
              WHEN number % 1000 < 60 THEN 'revoked'
              ELSE 'succeeded' END AS status
  FROM drawn
), made AS MATERIALIZED (
  SELECT chosen.*,
         status NOT IN ('sent', 'skipped', 'revoked') AS is_started,
         at + number % 50 * interval '1 millisecond' AS sent_at,
         at + number % 250 * interval '1 millisecond' AS started_at
  FROM chosen
)
SELECT CAST(
         substr(hex, 1, 8) || '-' || substr(hex, 9, 4)
         || '-7' || substr(random, 1, 3) || '-8' || substr(random, 4, 3)
         || '-' || substr(random, 7, 12) AS uuid),
       schedule.id, schedule.owner, schedule.name, schedule.task, at, status,
       CASE WHEN is_started THEN 1 ELSE 0 END, at,
       CASE WHEN status = 'sent' THEN now() + interval '1 hour' END,
       CASE WHEN status <> 'skipped' THEN sent_at END,
       CASE WHEN is_started THEN started_at END,
       CASE WHEN status = 'skipped' THEN at
            WHEN status NOT IN ('sent', 'running')
            THEN started_at + number % 5000 * interval '1 millisecond' END,
       CASE WHEN is_started THEN 'worker' || number % 8 || '@benchmark' END,
       CASE WHEN is_started THEN 100 END,
       CASE WHEN status IN ('failed', 'lost') THEN 'ValueError: no report' END,
       CASE WHEN status = 'failed' THEN repeat('  File "tasks.py", line 7 ', 20) END
FROM made JOIN dynbeat_schedule AS schedule ON schedule.id = made.schedule_id
"""
#: One run after the other through all schedules, evenly over four weeks.
_RUNS = f"""
{_RUN_COLUMNS}
WITH fired AS MATERIALIZED (
  SELECT n AS seed, n % CAST(:schedules AS bigint) + 1 AS schedule_id,
         CAST(:newest AS timestamptz)
           - interval '28 days' * ((CAST(:rows AS float) - n) / CAST(:rows AS float)) AS at
  FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS n
), {_RUN_VALUES}
"""
_BUSY_RUNS = f"""
{_RUN_COLUMNS}
WITH fired AS MATERIALIZED (
  SELECT n AS seed, busy.id AS schedule_id,
         date_trunc('minute', CAST(:newest AS timestamptz)) - n * interval '1 minute' AS at
  FROM generate_series(1, CAST(:rows AS bigint)) AS n,
       (SELECT id FROM dynbeat_schedule WHERE owner = '{BIG_OWNER}' AND name = '{BUSY}') AS busy
), {_RUN_VALUES}
"""
_HOLD = f"""
INSERT INTO dynbeat_hold (owner, actor, reason)
VALUES ('{HELD_OWNER}', 'alice@example.com', 'The mail server is down')
"""
_NODES = """
INSERT INTO dynbeat_node (kind, name, pid, started_at, seen_at, progressed_at, notifier)
SELECT CASE WHEN n < 2 THEN 'beat' ELSE 'worker' END, 'node' || n || '@benchmark', 100,
       now() - interval '1 day', now(), now(), CASE WHEN n < 2 THEN 'postgresql' END
FROM generate_series(0, 9) AS n
"""
_CHANGES = """
INSERT INTO dynbeat_change (changed_at, owner, name, action, actor, old_values, new_values)
SELECT now() - (1 + round) * interval '1 hour', owner, name, 'update', 'alice@example.com',
       '{"trigger": "0 8 * * *"}', '{"trigger": "0 9 * * *"}'
FROM generate_series(1, CASE WHEN :name = '' THEN 1 ELSE 100 END) AS round,
     dynbeat_schedule
WHERE (:name = '' AND id % 5 = 0) OR name = :name
"""
_INDEXES = """
SELECT indexname, indexdef FROM pg_indexes
WHERE tablename = 'dynbeat_run' AND indexdef NOT LIKE 'CREATE UNIQUE%'
"""
_TABLES = ("schedule", "run", "hold", "node", "change")


@dataclass(frozen=True, slots=True)
class Size:
    """The numbers of rows."""

    schedules: int
    runs: int
    busy_runs: int


def write(engine: Engine, size: Size, *, track: Track) -> None:
    """Write the rows to an empty database and analyse the tables, as autovacuum would do."""
    with connect_without_timeout(engine) as connection:
        connection.execute(text(_SCHEDULES), {"count": size.schedules})
        connection.execute(text("ANALYZE dynbeat_schedule"))
        _write_runs(connection, size, track)
        for statement in (_BUSY_SCHEDULE, _HOLD, _NODES):
            connection.execute(text(statement))
        newest = connection.execute(text("SELECT now() - interval '1 minute'")).scalar_one()
        finished = {"unfinished_from": size.busy_runs + 1}
        busy = {"rows": size.busy_runs, "newest": newest, **finished}
        connection.execute(text(_BUSY_RUNS), busy)
        for name in ("", BUSY):
            connection.execute(text(_CHANGES), {"name": name})
        for table in _TABLES:
            connection.execute(text(f"VACUUM ANALYZE dynbeat_{table}"))


def _write_runs(connection: Connection, size: Size, track: Track) -> None:
    newest = connection.execute(text("SELECT now()")).scalar_one()
    # Without indexes and the checks of the foreign key, the rows take a third of the time.
    indexes = connection.execute(text(_INDEXES)).all()
    for name, _ in indexes:
        connection.execute(text(f"DROP INDEX {name}"))
    connection.execute(text("SET session_replication_role = replica"))
    values = {"rows": size.runs, "schedules": size.schedules, "newest": newest}
    unfinished = {"unfinished_from": size.runs - size.runs // 5_000}
    for first in track(range(1, size.runs + 1, ROWS_PER_TRANSACTION), "runs"):
        last = min(first + ROWS_PER_TRANSACTION - 1, size.runs)
        bounds = {"first": first, "last": last}
        connection.execute(text(_RUNS), {**values, **unfinished, **bounds})
    connection.execute(text("SET session_replication_role = DEFAULT"))
    connection.execute(text("SET maintenance_work_mem = '1GB'"))
    for _, definition in indexes:
        connection.exec_driver_sql(definition)
