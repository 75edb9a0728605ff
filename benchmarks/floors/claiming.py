"""F2: claim, advance and record rows by hand-written psycopg statements, without planning.

One transaction for each batch of 1,000, on our own tables. The result is the same as ours: the
schedule is advanced, and its run is pending.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, cast

import psycopg
from sqlalchemy import make_url

from benchmarks import loads
from benchmarks.floors.publishing import Message
from benchmarks.services import Site
from celery_dynbeat.common.run_ids import new_run_id

AGAINST = "psycopg by hand"
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
  (id, schedule_id, owner, name, task, scheduled_for, status, created_at, overdue_at)
SELECT run.*, 'pending', %s::timestamptz, %s::timestamptz
FROM unnest(%s::uuid[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::timestamptz[]) AS run
"""


class Due(NamedTuple):
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


#: Returns the next fire time of a schedule, or None if there is none.
NextFire = Callable[[Due], datetime | None]


class Taken(NamedTuple):
    """A run to send."""

    message: Message
    scheduled_for: datetime


class Claimer:
    """Claims batches over one connection."""

    def __init__(self, connection: "psycopg.Connection[Any]", next_fire: NextFire) -> None:
        self._connection = connection
        self._next_fire = next_fire

    def earliest(self) -> datetime | None:
        """Return the earliest instant at which a schedule is due."""
        row = self._connection.execute(_EARLIEST).fetchone()
        self._connection.commit()
        return None if row is None else row[0]

    def claim(self, now: datetime) -> Sequence[Taken]:
        """Claim, advance and record due schedules, and commit."""
        rows = self._connection.execute(_CLAIM, (now, BATCH)).fetchall()
        due = [Due(*row) for row in rows]
        run_ids = [new_run_id(now) for _ in due]
        if due:
            fires = [self._next_fire(row) for row in due]
            self._connection.execute(_ADVANCE, (now, [row.id for row in due], fires))
            self._record(due, run_ids, now)
        self._connection.commit()
        return [
            Taken(Message(run_id, row.task, row.kwargs), row.next_fire_at)
            for run_id, row in zip(run_ids, due, strict=True)
        ]

    def _record(self, due: Sequence[Due], run_ids: Sequence[str], now: datetime) -> None:
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
    """Yield a claimer with its own connection. PostgreSQL only."""
    url = make_url(database_url).set(drivername="postgresql")
    with psycopg.connect(url.render_as_string(hide_password=False)) as connection:
        # In UTC, like ours: another time zone costs a lookup for each instant.
        connection.execute("SET timezone = 'UTC'")
        connection.commit()
        yield Claimer(connection, next_fire)


def measure(site: Site, *, count: int) -> float:
    """Return rows per second, of ``count`` rows that are due at one instant."""
    due_at = datetime.now(UTC) - timedelta(seconds=1)
    with site.application() as dynbeat:
        loads.write(dynbeat, loads.burst(count, due_at=due_at))
        with claimer(site.database_url, _tomorrow) as bare:
            started = time.perf_counter()
            claimed = 0
            while taken := bare.claim(datetime.now(UTC)):
                claimed += len(taken)
            seconds = time.perf_counter() - started
        with dynbeat.context.database.engine.connect() as connection:
            recorded = connection.exec_driver_sql("SELECT count(*) FROM dynbeat_run").scalar_one()
    assert claimed == cast("int", recorded) == count, "the floor lost rows"
    return count / seconds


def _tomorrow(row: Due) -> datetime:
    return row.next_fire_at + timedelta(days=1)
