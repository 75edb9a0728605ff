"""The rows of schedules and runs that a beat leaves out, because it cannot change them.

They are named in the report of the beat (``broker.outages``). The memory of one beat has at most
MAX_LEFT_OUT of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, Protocol, TypeVar

from sqlalchemy.exc import DBAPIError

from celery_dynbeat.broker.outages import ERROR_LENGTH, Kind, ReportedOutage
from celery_dynbeat.db.engine import reason_of
from celery_dynbeat.telemetry import emit, events, has_listeners

#: A row that is left out is tried again after this time.
RETRY_AFTER = timedelta(minutes=5)
#: Each of them is a parameter of a statement.
MAX_LEFT_OUT = 1_000

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
