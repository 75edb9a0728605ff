"""Queries of the rollup: the figures of the ended runs, for each minute and queue.

Beat counts each minute once, in the order of time, and in one transaction: its rows, the sums of
all minutes, and the end of the counted minutes in ``dynbeat_lock``. A crash undoes all of it, and
the lock on that row keeps two beats apart. After the clock was set back, minutes are counted again,
and the sums grow by what is new. A minute is counted SETTLED_AFTER its end, so an end
that is committed later by at most this time is counted too. Newer minutes are read from the runs.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple

from sqlalchemy import Row, and_, bindparam, case, delete, func, or_, select, update
from sqlalchemy.orm import Session

from celery_dynbeat.common.states import Origin, Status
from celery_dynbeat.db import statements
from celery_dynbeat.db.models import LOCKS, ROLLUPS, Rollup, Run
from celery_dynbeat.db.types import RunInstant, in_calendar, seconds_between
from celery_dynbeat.store import lock_row
from celery_dynbeat.store.span_reads import Span, read_spans, within_span

#: The upper bounds in seconds. A last bucket has the greater values.
LAG_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800, 7_200)
RUN_TIME_BOUNDS = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3_600, 14_400)


def names_of(bounds: Sequence[float]) -> Sequence[str]:
    """Return the names of the buckets with these upper bounds."""
    return [*(f"{bound:g}" for bound in bounds), "inf"]


MINUTE = timedelta(minutes=1)
SETTLED_AFTER = timedelta(minutes=2)
#: The minute of the rows with the sums of all minutes.
TOTALS = datetime(1970, 1, 1, tzinfo=UTC)
#: Rows that one transaction counts. It ends with the minute that reaches this number.
MAX_ROWS = 50_000
#: Minutes with ended runs that one transaction counts.
MAX_MINUTES = 60
#: The newest minutes are read from the runs: those that end within SETTLED_AFTER, the present one,
#: and one that is not counted yet.
MAX_LIVE_MINUTES = 4
#: Runs of one of these minutes that are read.
MAX_LIVE_RUNS = 5_000
#: A prune deletes the minutes of at most this time.
_PRUNED = timedelta(days=1)
_LOCK = "rollup"
#: More runs than can end in a minute. The limit also makes PostgreSQL compute each time only once.
_ALL = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of some ended runs, as the columns of a row have them."""

    sent: int = 0
    succeeded: int = 0
    failed: int = 0
    lost: int = 0
    other: int = 0
    lag_seconds: float = 0.0
    lag_max: float = 0.0
    lags: Mapping[str, int] = field(default_factory=dict)
    run_seconds: float = 0.0
    run_times: Mapping[str, int] = field(default_factory=dict)

    @property
    def ended(self) -> int:
        """The number of runs."""
        return self.succeeded + self.failed + self.lost + self.other

    @property
    def unsuccessful(self) -> int:
        """The number of failed and lost runs."""
        return self.failed + self.lost

    def __add__(self, other: "Figures") -> "Figures":
        sums = {name: getattr(self, name) + getattr(other, name) for name in _SUMS}
        return Figures(
            **sums,
            lag_max=max(self.lag_max, other.lag_max),
            lags=Counter(self.lags) + Counter(other.lags),
            run_times=Counter(self.run_times) + Counter(other.run_times),
        )

    def __sub__(self, other: "Figures") -> "Figures":
        """Return the increase of each sum, which is never negative."""
        increases = {name: max(getattr(self, name) - getattr(other, name), 0) for name in _SUMS}
        return Figures(
            **increases,
            lag_max=self.lag_max,
            lags=Counter(self.lags) - Counter(other.lags),
            run_times=Counter(self.run_times) - Counter(other.run_times),
        )


_SUMS = ("sent", "succeeded", "failed", "lost", "other", "lag_seconds", "run_seconds")
NOTHING = Figures()


@dataclass(frozen=True, slots=True)
class Minute:
    """The runs that ended in the minute from ``at``."""

    at: datetime
    figures: Figures


class CountedRuns(NamedTuple):
    """The figures of a span by queue. ``is_cut``: the limit was reached, so runs are missing."""

    by_queue: Mapping[str, Figures]
    is_cut: bool

    def total(self) -> Figures:
        """Return the figures of all queues."""
        return sum(self.by_queue.values(), NOTHING)


def _instant(column: Any) -> Any:
    # An instant outside the calendar, which only manual SQL can store, has no difference.
    return in_calendar(column, type_=RunInstant())


def _seconds(begin: Any, end: Any) -> Any:
    seconds = seconds_between(_instant(begin), _instant(end))
    return case((seconds > 0, seconds), else_=0.0)


_HAS_LAG = and_(Run.origin == Origin.SCHEDULE, Run.sent_at.is_not(None))
_HAS_RUN_TIME = and_(
    Run.status.in_((Status.SUCCEEDED, Status.FAILED)),
    Run.started_at.is_not(None),
)
#: What is read of a run. ``states.lag_of`` defines the lag.
_READ = (
    func.coalesce(Run.queue, "").label("queue"),
    Run.status,
    case((Run.sent_at.is_not(None), 1), else_=0).label("sent"),
    case((_HAS_LAG, _seconds(func.coalesce(Run.ready_at, Run.fire_at), Run.sent_at))).label("lag"),
    case((_HAS_RUN_TIME, _seconds(Run.started_at, Run.finished_at))).label("run_time"),
)
IS_RUN = or_(Run.status != Status.SKIPPED, Run.attempt > 0)


def count(session: Session, *, since: datetime, until: datetime, limit: int = _ALL) -> CountedRuns:
    """Return the figures of the runs that ended in [since, until), from at most ``limit`` rows."""
    has_ended = (Run.finished_at >= since, Run.finished_at < until)
    rows = select(*_READ, IS_RUN.label("is_run")).where(*has_ended).limit(limit)
    read = rows.subquery()

    def number(condition: Any) -> Any:
        return func.coalesce(func.sum(case((and_(read.c.is_run, condition), 1), else_=0)), 0)

    statuses = {
        status: number(read.c.status == status)
        for status in (Status.SUCCEEDED, Status.FAILED, Status.LOST)
    }
    lag_columns = _bucket_columns(read.c.lag, "lag", LAG_BOUNDS, number)
    time_columns = _bucket_columns(read.c.run_time, "run_time", RUN_TIME_BOUNDS, number)
    statement = select(
        read.c.queue,
        func.count().label("rows_read"),
        number(read.c.queue.is_not(None)).label("runs"),
        number(read.c.sent == 1).label("sent"),
        *(each.label(str(status)) for status, each in statuses.items()),
        func.sum(read.c.lag).label("lag_seconds"),
        func.max(read.c.lag).label("lag_max"),
        *lag_columns,
        func.sum(read.c.run_time).label("run_seconds"),
        *time_columns,
    ).group_by(read.c.queue)
    found = session.execute(statement).all()
    by_queue = {row.queue: _figures(row) for row in found if row.runs}
    return CountedRuns(by_queue, is_cut=sum(row.rows_read for row in found) >= limit)


def _bucket_columns(value: Any, name: str, bounds: Sequence[float], number: Any) -> Iterable[Any]:
    for position, bound in enumerate(bounds):
        yield number(value <= bound).label(f"{name}_{position}")
    yield number(value.is_not(None)).label(f"{name}_{len(bounds)}")


def _figures(row: Row[Any]) -> Figures:
    succeeded, failed, lost = int(row.succeeded), int(row.failed), int(row.lost)
    return Figures(
        sent=int(row.sent),
        succeeded=succeeded,
        failed=failed,
        lost=lost,
        other=int(row.runs) - succeeded - failed - lost,
        lag_seconds=float(row.lag_seconds or 0),
        lag_max=float(row.lag_max or 0),
        lags=_buckets(row, "lag", LAG_BOUNDS),
        run_seconds=float(row.run_seconds or 0),
        run_times=_buckets(row, "run_time", RUN_TIME_BOUNDS),
    )


def _buckets(row: Row[Any], name: str, bounds: Sequence[float]) -> Mapping[str, int]:
    """Return the number of values in each bucket that has some."""
    up_to = [0, *(int(getattr(row, f"{name}_{number}")) for number in range(len(bounds) + 1))]
    numbers = [upper - lower for lower, upper in pairwise(up_to)]
    return {name: each for name, each in zip(names_of(bounds), numbers, strict=True) if each}


def counted_until(session: Session) -> datetime | None:
    """Return the end of the counted minutes. None before the first count."""
    return session.scalar(select(LOCKS.c.done_until).where(LOCKS.c.name == _LOCK))


def floor(instant: datetime) -> datetime:
    """Return the start of the minute."""
    return instant.replace(second=0, microsecond=0)


def count_minutes(session: Session, *, now: datetime, retention: timedelta) -> bool:
    """Count the next minutes, and return whether there are more. Delete rows after ``retention``.

    Does nothing while another beat counts.
    """
    until = floor(now - SETTLED_AFTER)
    if not lock_row(session, _LOCK):
        return False
    # If the clock was set back, minutes are counted again: runs with new instants end in them.
    at = min(counted_until(session) or floor(now - retention), until)
    totals: dict[str, Figures] = {}
    rows = 0
    for _ in range(MAX_MINUTES):
        minute = None if rows >= MAX_ROWS else _next_minute(session, since=at, until=until)
        if minute is None:
            break
        counted = count(session, since=minute, until=minute + MINUTE)
        before = _replace(session, minute, counted.by_queue)
        for queue, figures in counted.by_queue.items():
            more = figures - before.get(queue, NOTHING)
            totals[queue] = totals.get(queue, NOTHING) + more
        rows, at = rows + counted.total().ended, minute + MINUTE
    has_more = _next_minute(session, since=at, until=until) is not None
    _add_to_totals(session, totals)
    mark = {"done_until": at if has_more else max(at, until)}
    session.execute(update(LOCKS).where(LOCKS.c.name == _LOCK).values(mark))
    _prune(session, before=now - retention)
    return has_more


def _next_minute(session: Session, *, since: datetime, until: datetime) -> datetime | None:
    """Return the first minute from ``since`` to before ``until`` in which a run ended."""
    first = select(Run.finished_at).order_by(Run.finished_at).limit(1)
    found = session.scalar(first.where(Run.finished_at >= since, Run.finished_at < until))
    return None if found is None else floor(found)


def _replace(
    session: Session, minute: datetime, by_queue: Mapping[str, Figures]
) -> Mapping[str, Figures]:
    """Store the figures of a minute, and return those that were stored before."""
    before = _stored(session, minute, by_queue)
    if before:
        old = and_(ROLLUPS.c.minute == minute, ROLLUPS.c.queue.in_(before))
        session.execute(delete(ROLLUPS).where(old))
    _insert(session, minute, by_queue)
    return before


def _stored(session: Session, minute: datetime, queues: Collection[str]) -> Mapping[str, Figures]:
    stored = select(ROLLUPS).where(ROLLUPS.c.minute == minute, ROLLUPS.c.queue.in_(queues))
    return {row.queue: _of(row) for row in session.execute(stored)} if queues else {}


def _insert(session: Session, minute: datetime, by_queue: Mapping[str, Figures]) -> None:
    rows = [
        {"minute": minute, "queue": queue, **_values(figures)}
        for queue, figures in by_queue.items()
    ]
    if rows:
        statements.insert(session, ROLLUPS, rows)


def _values(figures: Figures) -> dict[str, Any]:
    return {name: getattr(figures, name) for name in Figures.__dataclass_fields__}


def _add_to_totals(session: Session, new: Mapping[str, Figures]) -> None:
    found = _stored(session, TOTALS, new)
    _insert(session, TOTALS, {queue: each for queue, each in new.items() if queue not in found})
    rows = [
        {"of_queue": queue, **_values(figures + new[queue])} for queue, figures in found.items()
    ]
    if rows:
        is_total = and_(ROLLUPS.c.minute == TOTALS, ROLLUPS.c.queue == bindparam("of_queue"))
        # One call of the driver for all rows.
        session.connection().execute(update(ROLLUPS).where(is_total), rows)


def totals(session: Session, *, limit: int | None = None) -> Sequence[tuple[str, Figures]]:
    """Return up to ``limit`` queues with the sums of all their minutes, by name."""
    statement = select(Rollup).where(Rollup.minute == TOTALS).order_by(Rollup.queue).limit(limit)
    return [(row.queue, _of(row)) for row in session.scalars(statement)]


def by_minute(session: Session, *, since: datetime, until: datetime) -> Mapping[datetime, Figures]:
    """Return the figures of the counted minutes from ``since`` to before ``until``."""
    found: dict[datetime, Figures] = {}
    for row in session.scalars(select(Rollup).where(*_in_span(since, until))):
        found[row.minute] = found.get(row.minute, NOTHING) + _of(row)
    return found


def last_minutes(session: Session, *, now: datetime, number: int) -> Sequence[Minute]:
    """Return the last ``number`` minutes, oldest first. The last is the present minute.

    With more than MAX_LIVE_RUNS in a minute that is not counted yet, the last is the one before it.
    """
    newest, end = live_minutes(session, now=now)
    start = end - number * MINUTE
    figures = {**by_minute(session, since=start, until=end), **newest}
    minutes = [start + each * MINUTE for each in range(number)]
    return [Minute(at, figures.get(at, NOTHING)) for at in minutes]


def live_minutes(session: Session, *, now: datetime) -> tuple[Mapping[datetime, Figures], datetime]:
    """Return the figures of the minutes that are not counted yet, and the end of the known ones."""
    at = end = floor(now) + MINUTE
    at -= MAX_LIVE_MINUTES * MINUTE
    counted = counted_until(session)
    if counted is not None:
        at = max(at, counted)
    found: dict[datetime, Figures] = {}
    while at < end:
        counts = count(session, since=at, until=at + MINUTE, limit=MAX_LIVE_RUNS)
        if counts.is_cut:
            return found, at
        found[at] = counts.total()
        at += MINUTE
    return found, end


def _of(row: Any) -> Figures:
    return Figures(**{name: getattr(row, name) for name in Figures.__dataclass_fields__})


def _in_span(since: Any, until: Any) -> Sequence[Any]:
    return [Rollup.minute > TOTALS, Rollup.minute >= since, Rollup.minute < until]


def count_spans(session: Session, spans: Sequence[Span]) -> Sequence[tuple[int, int]]:
    """Return the number of ended runs, and of failed or lost ones, in each span of minutes."""
    # If the clock was set back, there are rows of minutes that are not counted again yet.
    counted = counted_until(session) or TOTALS
    spans = [Span(min(each.start, counted), min(each.end, counted)) for each in spans]
    rows = read_spans(session, _sums_of_span, spans, key=Rollup.minute, values={})
    found = {row.number: (int(row.ended or 0), int(row.unsuccessful or 0)) for row in rows}
    return [found.get(number, (0, 0)) for number in range(len(spans))]


def _sums_of_span(number: Any, start: Any, end: Any) -> Any:
    unsuccessful = Rollup.failed + Rollup.lost
    ended = Rollup.succeeded + Rollup.other + unsuccessful
    read: Any = select(ended.label("ended"), unsuccessful.label("unsuccessful"))
    read = read.where(*_in_span(start, end)).limit(_ALL)
    sums = within_span(read, start).subquery()
    return select(
        number.label("number"),
        func.sum(sums.c.ended).label("ended"),
        func.sum(sums.c.unsuccessful).label("unsuccessful"),
    ).select_from(sums)


def _prune(session: Session, *, before: datetime) -> None:
    oldest = select(Rollup.minute).where(Rollup.minute > TOTALS).order_by(Rollup.minute).limit(1)
    first = session.scalar(oldest)
    if first is not None and first < before:
        until = min(before, first + _PRUNED)
        session.execute(delete(ROLLUPS).where(ROLLUPS.c.minute > TOTALS, ROLLUPS.c.minute < until))
