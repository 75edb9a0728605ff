"""Read rows when Python cannot convert some of them: dates beyond its calendar, huge JSON numbers.

Only an INSERT or UPDATE by hand writes such values. A driver returns all rows of a result or none,
so one unreadable row would hide the others. The functions here separate it from them:

    read           the readable rows as named tuples, and the id, column and error of the others
    load_or_null   schedules as entities; each unreadable column is None

The error occurs in the client. The server has answered, its transaction is intact, and the locks
are held.
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

#: What a driver or a column type raises for a value that it cannot convert.
UNREADABLE = (
    ArithmeticError,
    AttributeError,
    DataError,
    RecursionError,
    TypeError,
    ValueError,
)
#: Columns that beat computes. A user does not set them.
_PLANNED_COLUMNS = ("next_fire_at", "next_run_at", "held_at", "skipped_until", "finished_at")
#: Rows of a result that are converted together.
ROWS_PER_PARTITION = 100
#: Characters of an error's text that are stored.
MAX_ERROR_LENGTH = 500


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """The row ``id``, its unreadable ``column``, and the error that reading the column raised."""

    id: Any
    column: str
    error: Exception

    def __str__(self) -> str:
        return format_error(self.error, prefix=f"column {self.column}: ")


class RowLockedError(Exception):
    """Another transaction has locked a row that this one needs. Nothing waits: try again later."""


#: A named tuple of the selected columns. Its attribute access is ten times as fast as that of
#: SQLAlchemy's rows, and beat reads each attribute several times.
Row = Any
Make = Callable[[Iterable[Any]], Row]


class LockedRows(NamedTuple):
    """The readable rows in the order of the statement, and the unreadable ones."""

    rows: Sequence[Row]
    unreadable: Sequence[UnreadableRow]


def format_error(error: Exception, *, prefix: str = "") -> str:
    """Return the text of ``error`` for its row: the type, ``prefix`` and the message."""
    # Not the text of SQLAlchemy's error: it contains the statement.
    original = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    text = f"{type(original).__name__}: {prefix}{original}"
    return text if len(text) <= MAX_ERROR_LENGTH else f"{text[:MAX_ERROR_LENGTH]}..."


def read(
    session: Session,
    statement: Select[Any],
    *,
    key: Any,
    values: Mapping[str, Any] | None = None,
    make: Make | None = None,
) -> LockedRows:
    """Return the rows of ``statement``; ``key`` is the column that identifies a row.

    ``values`` are the parameters of the statement. The statement decides which rows are locked. If
    all rows are readable, this is one query. ``make`` makes a row from its values; None makes a
    named tuple of the columns.
    """
    # Outside the try block: an error here comes from the server.
    result = session.execute(statement, values)
    try:
        return LockedRows(_as_named_tuples(result, make), [])
    except UNREADABLE:
        statement = statement.params(values or {})
        ids = session.scalars(statement.with_only_columns(key, maintain_column_froms=True)).all()
    return _read_by_halves(session, statement, key, ids, make)


def _as_named_tuples(result: Result[Any], make: Make | None) -> Sequence[Row]:
    make = make or _row_maker(tuple(result.keys()))
    # In partitions, so that memory holds no second and third copy of all rows.
    return [make(row) for part in result.partitions(ROWS_PER_PARTITION) for row in part]


@cache
def _row_maker(columns: tuple[str, ...]) -> Make:
    # Not a NamedTuple: the columns are known only at run time.
    row_type: Any = namedtuple("Row", list(columns))  # type: ignore[misc]  # noqa: PYI024
    make: Make = row_type._make
    return make


def _read_by_halves(
    session: Session, statement: Select[Any], key: Any, ids: Sequence[Any], make: Make | None
) -> LockedRows:
    """Return the rows with these ids, and bisect them until each unreadable row is alone."""
    result = session.execute(statement.where(key.in_(ids)))
    try:
        return LockedRows(_as_named_tuples(result, make), [])
    except UNREADABLE as error:
        if len(ids) == 1:
            return LockedRows([], [_unreadable_row(session, statement, key, ids[0], error)])
    middle = len(ids) // 2
    older = _read_by_halves(session, statement, key, ids[:middle], make)
    newer = _read_by_halves(session, statement, key, ids[middle:], make)
    return LockedRows([*older.rows, *newer.rows], [*older.unreadable, *newer.unreadable])


def _unreadable_row(
    session: Session, statement: Select[Any], key: Any, row_id: Any, error: Exception
) -> UnreadableRow:
    for column in statement.selected_columns:
        single = statement.with_only_columns(column, maintain_column_froms=True)
        column_error = _error_of_reading(session, single.where(key == row_id))
        if column_error is not None:
            return UnreadableRow(row_id, str(column), column_error)
    return UnreadableRow(row_id, "?", error)


def _error_of_reading(session: Session, statement: Select[Any]) -> Exception | None:
    result = session.execute(statement)
    try:
        result.all()
    except UNREADABLE as error:
        return error
    return None


class RowNames(NamedTuple):
    """The owner and the schedule's name in a row; None if they cannot be read."""

    owner: str | None = None
    name: str | None = None


def names_of(session: Session, model: Any, ids: Sequence[Any]) -> Mapping[Any, RowNames]:
    """Return owner and name of each row of ``model`` with one of these ids, for log records."""
    if not ids:
        return {}
    statement = select(model.id, model.owner, model.name).where(model.id.in_(ids))
    found = read(session, statement, key=model.id).rows
    return {key: RowNames() for key in ids} | {row.id: RowNames(*row[1:]) for row in found}


def load_or_null(
    session: Session, statement: Select[Schedule], *, for_edit: bool = False
) -> Sequence[Schedule]:
    """Return the schedules of ``statement``, with None in each column that cannot be read.

    ``error`` of such a schedule names these columns, unless the schedule is quarantined already.
    The None values are not written to the database. With ``for_edit`` there is one exception: the
    next flush writes NULL to unreadable columns that beat computes.
    """
    result = session.scalars(statement)
    try:
        return result.all()
    except UNREADABLE:
        ids = session.scalars(statement.with_only_columns(Schedule.id)).all()
    return [_load_one_or_null(session, statement, row_id, for_edit=for_edit) for row_id in ids]


def _load_one_or_null(
    session: Session, statement: Select[Schedule], row_id: int, *, for_edit: bool
) -> Schedule:
    statement = statement.where(Schedule.id == row_id)
    result = session.scalars(statement)
    try:
        return result.one()
    except UNREADABLE:
        unreadable = _unreadable_columns(session, row_id)
    deferred = [defer(getattr(Schedule, name)) for name in unreadable]
    schedule = session.scalars(statement.options(*deferred)).one()
    _set_null(schedule, unreadable, for_edit=for_edit)
    return schedule


def _set_null(
    schedule: Schedule, unreadable: Mapping[str, UnreadableRow], *, for_edit: bool
) -> None:
    for name in unreadable:
        set_committed_value(schedule, name, None)
        if for_edit and name in _PLANNED_COLUMNS:
            flag_modified(schedule, name)
    if schedule.error is None and unreadable:
        set_committed_value(schedule, "error", "; ".join(map(str, unreadable.values())))


def _unreadable_columns(session: Session, schedule_id: int) -> dict[str, UnreadableRow]:
    unreadable: dict[str, UnreadableRow] = {}
    for column in Schedule.__table__.columns:
        error = _error_of_reading(session, select(column).where(Schedule.id == schedule_id))
        if error is not None:
            unreadable[column.name] = UnreadableRow(schedule_id, str(column), error)
    return unreadable
