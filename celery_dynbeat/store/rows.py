"""Rows that the database holds and Python cannot read: dates beyond its calendar, monstrous JSON.

Nobody but a hand at the database's prompt writes them. A driver gives all rows of an answer or
none, so one such row would hide the others; here it is told apart from them. The failure is the
client's alone: the server has answered, its transaction is sound, and the locks are held.
"""

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Result, Select, select
from sqlalchemy.exc import DataError, DBAPIError
from sqlalchemy.orm import Session, defer
from sqlalchemy.orm.attributes import flag_modified, set_committed_value

from celery_dynbeat.db.models import Schedule

#: What the reading of an answer raises when a value cannot be understood.
UNREADABLE = (
    ArithmeticError,
    AttributeError,
    DataError,
    RecursionError,
    TypeError,
    ValueError,
)
#: What is beat's to decide, not the user's.
_PLANNED = ("next_fire_at", "next_run_at", "finished_at")
#: So many rows of an answer are taken over at once.
ROWS_PER_PARTITION = 100
#: Of the text of an error, what is kept.
MAX_ERROR_LENGTH = 500


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """Why the row ``id`` cannot be read: its ``column``, and what reading that raised."""

    id: Any
    column: str
    error: Exception

    def __str__(self) -> str:
        return format_error(self.error, of=f"column {self.column}: ")


#: A named tuple of the columns that were asked for. SQLAlchemy's own rows take ten times as long to
#: tell one of them, which holds up whoever looks at each of them several times.
Row = Any


class LockedRows(NamedTuple):
    """The rows of an answer, in its order, and what is wrong with those that are missing."""

    rows: Sequence[Row]
    unreadable: Sequence[UnreadableRow]


def format_error(error: Exception, *, of: str = "") -> str:
    """Return ``error`` as it is shown on the row that it concerns: its type and what it says."""
    # Not SQLAlchemy's text: it appends the statement.
    original = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    text = f"{type(original).__name__}: {of}{original}"
    return text if len(text) <= MAX_ERROR_LENGTH else f"{text[:MAX_ERROR_LENGTH]}..."


def read(
    session: Session,
    statement: Select[Any],
    *,
    key: Any,
    values: Mapping[str, Any] | None = None,
) -> LockedRows:
    """Return what ``statement`` finds; ``key`` is the column that tells its rows apart.

    ``values`` are those of its parameters. Locks are those of the statement. Where all rows can be
    read, this is one query.
    """
    # Not within the try: what this raises is the server's.
    answer = session.execute(statement, values)
    try:
        return LockedRows(_as_named_tuples(answer), [])
    except UNREADABLE:
        statement = statement.params(values or {})
        ids = session.scalars(statement.with_only_columns(key, maintain_column_froms=True)).all()
    return _read_by_halves(session, statement, key, ids)


def _as_named_tuples(answer: Result[Any]) -> Sequence[Row]:
    make = _row_of(tuple(answer.keys()))
    # Part by part: the driver's rows, SQLAlchemy's and these are not all in memory at once.
    return [make(row) for part in answer.partitions(ROWS_PER_PARTITION) for row in part]


@cache
def _row_of(columns: tuple[str, ...]) -> Callable[[Iterable[Any]], Row]:
    # Not a NamedTuple: the columns are known at run time only.
    named: Any = namedtuple("Row", list(columns))  # type: ignore[misc]  # noqa: PYI024
    make: Callable[[Iterable[Any]], Row] = named._make
    return make


def _read_by_halves(
    session: Session, statement: Select[Any], key: Any, ids: Sequence[Any]
) -> LockedRows:
    """Read the rows by halves, until those that cannot be read stand alone."""
    answer = session.execute(statement.where(key.in_(ids)))
    try:
        return LockedRows(_as_named_tuples(answer), [])
    except UNREADABLE as error:
        if len(ids) == 1:
            return LockedRows([], [_unreadable_row(session, statement, key, ids[0], error)])
    middle = len(ids) // 2
    older = _read_by_halves(session, statement, key, ids[:middle])
    newer = _read_by_halves(session, statement, key, ids[middle:])
    return LockedRows([*older.rows, *newer.rows], [*older.unreadable, *newer.unreadable])


def _unreadable_row(
    session: Session, statement: Select[Any], key: Any, row_id: Any, error: Exception
) -> UnreadableRow:
    for column in statement.selected_columns:
        single = statement.with_only_columns(column, maintain_column_froms=True)
        answer = session.execute(single.where(key == row_id))
        try:
            answer.all()
        except UNREADABLE as its_own:
            return UnreadableRow(row_id, str(column), its_own)
    return UnreadableRow(row_id, "?", error)


def load_or_null(
    session: Session, statement: Select[Schedule], *, edited: bool = False
) -> Sequence[Schedule]:
    """Return the schedules that ``statement`` finds, also those that cannot be read load_or_null.

    There what cannot be read is None, and ``error`` says what that is, save where it says already
    why the schedule was set aside. Nothing of that is written, save that with ``edited`` the next
    flush takes away what beat had planned, where it is what cannot be read.
    """
    answer = session.scalars(statement)
    try:
        return answer.all()
    except UNREADABLE:
        ids = session.scalars(statement.with_only_columns(Schedule.id)).all()
    return [_load_one_or_null(session, statement, row_id, edited=edited) for row_id in ids]


def _load_one_or_null(
    session: Session, statement: Select[Schedule], row_id: int, *, edited: bool
) -> Schedule:
    statement = statement.where(Schedule.id == row_id)
    answer = session.scalars(statement)
    try:
        return answer.one()
    except UNREADABLE:
        unreadable = _unreadable_columns(session, row_id)
    left_out = [defer(getattr(Schedule, name)) for name in unreadable]
    row = session.scalars(statement.options(*left_out)).one()
    for name in unreadable:
        set_committed_value(row, name, None)
        if edited and name in _PLANNED:
            flag_modified(row, name)
    if row.error is None and unreadable:
        set_committed_value(row, "error", "; ".join(str(each) for each in unreadable.values()))
    return row


def _unreadable_columns(session: Session, schedule_id: int) -> dict[str, UnreadableRow]:
    found: dict[str, UnreadableRow] = {}
    for column in Schedule.__table__.columns:
        answer = session.execute(select(column).where(Schedule.id == schedule_id))
        try:
            answer.all()
        except UNREADABLE as error:
            found[column.name] = UnreadableRow(schedule_id, str(column), error)
    return found
