"""Find the rows that the database refuses to change, and leave them out.

A trigger, a constraint or a policy for rows may refuse one row. The statements of a batch then fail
for all its rows:

    a batch is refused        -> nothing is written; half as many rows are tried
    one row alone is refused  -> it is quarantined with the error
    that is refused as well   -> this beat leaves the row out, and tries it again after RETRY_AFTER
    a batch is accepted       -> twice as many rows are tried, up to a full batch
    the commit is refused     -> from then on, deferred constraints are checked before the commit

A row also is left out if it needs a newer beat. Rows that are left out are named in the report of
the beat (``broker.outages``). The memory of one beat has at most MAX_LEFT_OUT of them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from celery_dynbeat.beat.duties import NOW, Done
from celery_dynbeat.broker.outages import ERROR_LENGTH, Kind, ReportedOutage
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.engine import Database, reason_of
from celery_dynbeat.db.statements import capabilities_in
from celery_dynbeat.telemetry import emit, events, has_listeners

#: The maximum number of rows that one transaction of a pass changes.
BATCH_SIZE = 500
#: A row that is left out is tried again after this time.
RETRY_AFTER = timedelta(minutes=5)
#: Each of them is a parameter of a statement.
MAX_LEFT_OUT = 1_000
#: The maximum number of transactions that one pass tries for one batch.
MAX_TRIES = 25

T = TypeVar("T")
Id = TypeVar("Id", int, str)


class NamedRow(Protocol):
    """A row of a schedule or of a run."""

    @property
    def id(self) -> Any:
        """The id of the row."""

    @property
    def owner(self) -> str:
        """The owner."""

    @property
    def name(self) -> str:
        """The name of the schedule."""


class RefusedBatchError(Exception):
    """The database refuses a statement for ``rows``. ``error`` is its error."""

    def __init__(self, rows: Sequence[NamedRow], error: DBAPIError) -> None:
        super().__init__(str(error))
        self.rows, self.error = rows, error


class UnknownZone(NamedTuple):
    """A row with a time zone that this process does not know."""

    row: NamedRow
    error: Exception


class LeftToNewerError(Exception):
    """A batch has rows that a newer beat may be able to plan."""

    def __init__(self, unknown: Sequence[UnknownZone]) -> None:
        super().__init__(f"{len(unknown)} rows have a time zone that this process does not know")
        self.unknown = unknown


class Part(NamedTuple):
    """The part of the due rows that one transaction changes."""

    limit: int
    except_ids: frozenset[Any] = frozenset()
    #: False if the database has refused a row of the full batch.
    is_full: bool = True
    #: Whether deferred constraints are checked before the commit.
    checks_deferred: bool = False


FULL_BATCH = Part(BATCH_SIZE)


@contextmanager
def changing(session: Session, rows: Sequence[NamedRow], part: Part) -> Iterator[None]:
    """Raise RefusedBatchError if the database refuses a statement of the block."""
    try:
        yield
        if part.checks_deferred:
            capabilities_in(session).check_deferred(session)
    except DBAPIError as error:
        if capabilities_in(session).is_refusal(error):
            raise RefusedBatchError(rows, error) from error
        raise


@dataclass(frozen=True, slots=True)
class _RefusedRow:
    """A row that is left out since ``since``, and tried again at ``retry_at``."""

    name: str
    error: str
    since: datetime
    retry_at: datetime


class LeftOut(Generic[Id]):
    """The rows of one table that this beat leaves out. ``kind`` is "schedule" or "run"."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._rows: dict[Id, _RefusedRow] = {}

    def ids(self, now: datetime) -> frozenset[Id]:
        """Return the ids of the rows that are left out now."""
        if not self._rows:
            return frozenset()
        # An instant beyond RETRY_AFTER means that the clock was set back.
        return frozenset(
            key for key, row in self._copied() if now < row.retry_at <= now + RETRY_AFTER
        )

    def add(self, row: NamedRow, error: Exception, *, now: datetime) -> bool:
        """Leave out a row, and report it the first time. Return False if there are too many."""
        before = self._rows.get(row.id)
        if before is None and len(self._rows) >= MAX_LEFT_OUT:
            self._forget_old(now)
            if len(self._rows) >= MAX_LEFT_OUT:
                return False
        reason = reason_of(error) if isinstance(error, DBAPIError) else str(error)
        self._rows[row.id] = _RefusedRow(
            name=f"{self._kind} {row.id} ({row.name!r} of {row.owner!r})",
            error=reason[:ERROR_LENGTH],
            since=now if before is None else before.since,
            retry_at=now + RETRY_AFTER,
        )
        if before is None and has_listeners(events.RowLeftOut):
            event = events.RowLeftOut(
                kind=self._kind,
                id=str(row.id),
                owner=row.owner,
                schedule=row.name,
                reason=reason,
                exception=error,
            )
            emit(event)
        return True

    def _forget_old(self, now: datetime) -> None:
        self._rows = {key: row for key, row in self._copied() if now < row.retry_at + RETRY_AFTER}

    def _copied(self) -> Sequence[tuple[Id, _RefusedRow]]:
        # Another thread may add a row.
        return list(self._rows.items())

    def report(self, now: datetime) -> list[ReportedOutage]:
        """Return the rows for the row of this node. A row that was accepted since is forgotten."""
        if not self._rows:
            return []
        self._forget_old(now)
        return [
            ReportedOutage(
                str(Kind.ROW), row.name, row.since.isoformat(timespec="seconds"), row.error
            )
            for _, row in self._copied()
        ]


class Batches(Generic[Id]):
    """The batches of one step of a pass, which become smaller around a row that is refused.

    ``set_aside`` quarantines the row, and returns False if this is not possible.
    """

    def __init__(
        self,
        *,
        database: Database,
        left_out: LeftOut[Id],
        set_aside: Callable[[Any, DBAPIError], bool] | None = None,
    ) -> None:
        self._database = database
        self._size = self._limit = BATCH_SIZE
        self._checks_deferred = False
        self._left_out: LeftOut[Id] = left_out
        self._set_aside = set_aside

    def run(self, work: Callable[[Part], T], *, now: datetime) -> T | None:
        """Return ``work(part)`` of the first part that the database accepts.

        ``work`` makes one transaction, and raises RefusedBatchError with its rows. The result is
        None if too many parts were refused. The next pass continues.
        """
        for _ in range(MAX_TRIES):
            is_full = self._limit == self._size
            try:
                left_out = self._left_out.ids(now)
                result = work(Part(self._limit, left_out, is_full, self._checks_deferred))
            except LeftToNewerError as left:
                for row, error in left.unknown:
                    self._left_out.add(row, error, now=now)
            except RefusedBatchError as refused:
                if len(refused.rows) > 1:
                    self._limit = len(refused.rows) // 2
                    continue
                self._leave_out(refused, now)
            except DBAPIError as error:
                # A deferred constraint refuses at the commit, which names no row.
                if self._checks_deferred or not self._database.capabilities.is_refusal(error):
                    raise
                self._checks_deferred = True
            else:
                self._limit = min(2 * self._limit, self._size)
                return result
        return None

    def change(self, change: Callable[..., int], *, now: datetime, settings: Settings) -> Done:
        """Change a batch with ``change``, which returns the number of rows, in a transaction.

        A full batch, and one of which too many parts were refused, is followed by another at once.
        """

        def work(part: Part) -> Done:
            in_part = partial(change, now=now, settings=settings, part=part)
            changed = self._database.run(in_part)
            return Done(changed, NOW if changed >= part.limit else None)

        return self.run(work, now=now) or Done(again_after=NOW)

    def _leave_out(self, refused: RefusedBatchError, now: datetime) -> None:
        for row in refused.rows:
            if self._set_aside is not None and self._set_aside(row, refused.error):
                continue
            self._left_out.add(row, refused.error, now=now)
