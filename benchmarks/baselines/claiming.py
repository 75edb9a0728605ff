"""F2: claim, advance and record rows with hand-written statements of psycopg, without planning.

Each batch of 1,000 is one transaction on celery_dynbeat's tables. The result is the same as for
beat: the schedule has its next fire time, and its run is pending.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, cast

import psycopg
from sqlalchemy import make_url

from benchmarks import workloads
from benchmarks.baselines.publishing import Message
from benchmarks.services import Site
from celery_dynbeat.common.run_ids import new_run_id

NAME = "hand-written psycopg"
BATCH = 1_000
DISPATCH_TIMEOUT = timedelta(seconds=30)

_EARLIEST = """
SELECT next_run_at FROM dynbeat_schedule WHERE next_run_at IS NOT NULL
ORDER BY next_run_at, id LIMIT 1
"""
_CLAIM = """
SELECT id, owner, name, task, args, kwargs, options, trigger_kind, trigger_spec, timezone,
       next_fire_at
FROM dynbeat_schedule
WHERE next_run_at IS NOT NULL AND next_run_at <= %s
ORDER BY next_run_at, id LIMIT %s
FOR UPDATE SKIP LOCKED
"""
_ADVANCE = """
UPDATE dynbeat_schedule AS schedule
SET next_fire_at = change.at, next_run_at = change.at, last_run_at = schedule.next_fire_at,
    run_count = schedule.run_count + 1,
    finished_at = CASE WHEN change.at IS NULL THEN %s::timestamptz END
FROM unnest(%s::bigint[], %s::timestamptz[]) AS change (id, at)
WHERE schedule.id = change.id
"""
_RECORD = """
INSERT INTO dynbeat_run
  (id, schedule_id, owner, name, task, fire_at, status, created_at, overdue_at)
SELECT run.*, 'pending', %s::timestamptz, %s::timestamptz
FROM unnest(%s::uuid[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::timestamptz[]) AS run
"""


class DueRow(NamedTuple):
    """A row of ``_CLAIM``."""

    id: int
    owner: str
    name: str
    task: str
    args: Any
    kwargs: Any
    options: Any
    trigger_kind: str
    trigger_spec: str
    timezone: str
    next_fire_at: datetime


#: Returns the next fire time of a schedule; None: it is finished.
NextFire = Callable[[DueRow], datetime | None]


class ClaimedRun(NamedTuple):
    """A claimed run and its message."""

    message: Message
    fire_at: datetime


class Claimer:
    """Claims batches on one connection."""

    def __init__(self, connection: "psycopg.Connection[Any]", next_fire: NextFire) -> None:
        self._connection = connection
        self._next_fire = next_fire

    def earliest(self) -> datetime | None:
        """Return the earliest ``next_run_at``; None: no schedule has one."""
        row = self._connection.execute(_EARLIEST).fetchone()
        self._connection.commit()
        return None if row is None else row[0]

    def claim(self, now: datetime) -> Sequence[ClaimedRun]:
        """Claim, advance and record one batch of due rows, and commit."""
        rows = self._connection.execute(_CLAIM, (now, BATCH)).fetchall()
        due = [DueRow(*row) for row in rows]
        run_ids = [new_run_id(now) for _ in due]
        if due:
            fires = [self._next_fire(row) for row in due]
            self._connection.execute(_ADVANCE, (now, [row.id for row in due], fires))
            self._record(due, run_ids, now)
        self._connection.commit()
        return [
            ClaimedRun(Message(run_id, row.task, row.kwargs), row.next_fire_at)
            for run_id, row in zip(run_ids, due, strict=True)
        ]

    def _record(self, due: Sequence[DueRow], run_ids: Sequence[str], now: datetime) -> None:
        columns = (
            run_ids,
            [row.id for row in due],
            [row.owner for row in due],
            [row.name for row in due],
            [row.task for row in due],
            [row.next_fire_at for row in due],
        )
        self._connection.execute(_RECORD, (now, now + DISPATCH_TIMEOUT, *columns))


@contextmanager
def claimer(database_url: str, next_fire: NextFire) -> Iterator[Claimer]:
    """Yield a claimer with a new connection. PostgreSQL only."""
    url = make_url(database_url).set(drivername="postgresql")
    with psycopg.connect(url.render_as_string(hide_password=False)) as connection:
        # UTC, as in celery_dynbeat: psycopg looks up the zone of each value.
        connection.execute("SET timezone = 'UTC'")
        connection.commit()
        yield Claimer(connection, next_fire)


def measure(site: Site, *, count: int) -> float:
    """Return the rows claimed a second, with ``count`` rows due at one instant."""
    due_at = datetime.now(UTC) - timedelta(seconds=1)
    with site.application() as dynbeat:
        workloads.write(dynbeat, workloads.burst(count, due_at=due_at))
        with claimer(site.database_url, tomorrow) as bare:
            started = time.perf_counter()
            claimed = 0
            while runs := bare.claim(datetime.now(UTC)):
                claimed += len(runs)
            seconds = time.perf_counter() - started
        with dynbeat.context.database.engine.connect() as connection:
            recorded = connection.exec_driver_sql("SELECT count(*) FROM dynbeat_run").scalar_one()
    assert claimed == cast("int", recorded) == count, "the baseline lost rows"
    return count / seconds


def tomorrow(row: DueRow) -> datetime:
    """Return the fire time of the schedule one day later."""
    return row.next_fire_at + timedelta(days=1)
