"""Find the rows that the database refuses to change, and leave them out.

A trigger, a constraint or a policy for rows may refuse one row. The statements of a batch then fail
for all its rows:

    a batch is refused        -> nothing is written; half as many rows are tried
    one row alone is refused  -> it is quarantined with the error
    that is refused as well   -> this beat leaves the row out, and tries it again later
    a batch is accepted       -> twice as many rows are tried, up to a full batch
    the commit is refused     -> from then on, deferred constraints are checked before the commit

A row also is left out if it needs a newer beat (``process.left_out``).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from celery_dynbeat.beat.duties import NOW, Done
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.statements import capabilities_in
from celery_dynbeat.process.left_out import Id, LeftOut, NamedRow

#: The maximum number of rows that one transaction of a pass changes.
BATCH_SIZE = 500
#: The maximum number of transactions that one pass tries for one batch.
MAX_TRIES = 25

T = TypeVar("T")


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
