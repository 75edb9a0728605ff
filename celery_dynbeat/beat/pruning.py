"""The duties that delete old history, one batch at a time, while there is no backlog.

Runs go after dynbeat_history_retention, changes after dynbeat_audit_retention. Run ids are ordered
by time. A scan of the primary key therefore meets the oldest runs first and needs no additional
index. A scan starts every SCAN_INTERVAL. Each batch reads and deletes at most BATCH_SIZE rows in a
separate transaction, followed by a pause. A batch therefore delays due schedules only briefly. If
the database refuses to delete a row, the others are deleted, and the duty fails at the end of the
scan. These rows stay, at any age:

- runs that have not ended, or that the rollup has not counted;
- while the schedule is not finished, the run of its last fire time and newer ones: after the clock
  is set back, beat must find the fire times that already had their run.

A batch of changes reads the start of the index on ``changed_at``.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from sqlalchemy import Row
from sqlalchemy.orm import Session

from celery_dynbeat.beat.duties import Done
from celery_dynbeat.common.run_ids import first_run_id
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.models import REQUESTED_ORIGINS
from celery_dynbeat.store import changes, rollups, runs
from celery_dynbeat.telemetry import emit, events, has_listeners

BATCH_SIZE = 500
#: After a scan, the next one waits for at least this multiple of the scan's duration, but at most
#: MAX_IDLE: the clock may have been set forward during the scan.
IDLE_FACTOR, MAX_IDLE = 20, timedelta(days=1)
BATCH_PAUSE = timedelta(milliseconds=100)
SCAN_INTERVAL = timedelta(minutes=10)
#: After the start of beat, the first scan waits this long, because due schedules come first.
FIRST_DELAY = timedelta(minutes=1)
#: This is less than every run id.
LOWEST_ID = "00000000-0000-0000-0000-000000000000"
#: The ``changed_at`` and the id of a change.
ChangeKey: TypeAlias = tuple[datetime, int]
Position = TypeVar("Position")


class Prunable(NamedTuple, Generic[Position]):
    """The old rows of one batch. The next one starts after ``last``, or None at the end."""

    ids: Sequence[Any]
    last: Position | None


class Pruned(NamedTuple, Generic[Position]):
    """The result of one batch. ``refused`` is the error if the database refuses to delete a row."""

    deleted: int
    last: Position | None
    refused: Exception | None


def prune_runs(
    database: Database, *, now: datetime, older_than: timedelta, after: str | None = None
) -> Pruned[str]:
    """Delete the prunable runs among the next BATCH_SIZE runs after the id ``after``."""
    found = prunable_runs(database, now=now, older_than=older_than, after=after)
    return _prune(database, found, runs.delete_finished)


def prune_changes(
    database: Database, *, now: datetime, older_than: timedelta, after: ChangeKey | None = None
) -> Pruned[ChangeKey]:
    """Delete the next BATCH_SIZE old changes after the key ``after``."""
    read = partial(changes.keys_before, before=now - older_than, after=after, limit=BATCH_SIZE)
    keys = database.read_in_transaction(read)
    last = keys[-1] if len(keys) == BATCH_SIZE else None
    found = Prunable([change_id for _, change_id in keys], last)
    return _prune(database, found, changes.delete)


def _prune(
    database: Database,
    found: Prunable[Position],
    delete: Callable[[Session, Sequence[Any]], int],
) -> Pruned[Position]:
    counts, refused = database.run_in_parts(delete, found.ids, in_transaction=True)
    return Pruned(sum(counts), found.last, next(iter(refused.values()), None))


def prunable_runs(
    database: Database, *, now: datetime, older_than: timedelta, after: str | None = None
) -> Prunable[str]:
    """Return the prunable runs among the next BATCH_SIZE runs after the id ``after``."""
    limit = now - older_than
    counted = database.read(rollups.counted_until)
    if counted is not None:
        limit = min(limit, counted)
    read = partial(
        runs.prune_page,
        after=after or LOWEST_ID,
        before=first_run_id(limit),
        limit=BATCH_SIZE,
    )
    rows = database.read_in_transaction(read)
    run_ids = [row.id for row in rows if _is_prunable(row, limit)]
    return Prunable(run_ids, rows[-1].id if len(rows) == BATCH_SIZE else None)


def _is_prunable(row: Row[Any], limit: datetime) -> bool:
    if row.finished_at is None or row.finished_at >= limit:
        return False
    if row.schedule_id is None or row.over_at is not None or row.origin in REQUESTED_ORIGINS:
        # No trigger yields the instant of such a run. A finished schedule yields no instants at
        # all.
        return True
    last = row.last_run_at or row.next_fire_at
    return last is not None and row.fire_at < last


class Pruning(Generic[Position]):
    """The duty that prunes one table, whose rows are called ``row``."""

    def __init__(
        self,
        database: Database,
        row: str,
        batch: Callable[..., Pruned[Position]],
        *,
        older_than: timedelta,
    ) -> None:
        self._database = database
        self._row, self._batch, self._older_than = row, batch, older_than
        #: The position after the last batch, and when its scan began; None between two scans.
        self._after: Position | None = None
        self._began_at: datetime | None = None
        #: The error of a row that the database has refused to delete in this scan.
        self._refused: Exception | None = None

    def run(self, now: datetime) -> Done:
        """Delete a batch."""
        self._began_at = self._began_at or now
        pruned = self._batch(
            self._database, now=now, older_than=self._older_than, after=self._after
        )
        self._after, self._refused = pruned.last, pruned.refused or self._refused
        if pruned.deleted and has_listeners(events.HistoryPruned):
            event = events.HistoryPruned(
                table=self._row, count=pruned.deleted, older_than=self._older_than
            )
            emit(event)
        if pruned.last is not None:
            return Done(again_after=BATCH_PAUSE)
        # A scan also reads the rows that stay, so after a long scan, the next one starts later.
        idle = min(IDLE_FACTOR * (now - self._began_at), MAX_IDLE)
        ended = Done(again_after=max(SCAN_INTERVAL, idle), error=self._refused)
        self._began_at = self._refused = None
        return ended
