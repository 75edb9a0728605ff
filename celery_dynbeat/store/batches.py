"""Batches: the runs that one call of ``backfill()`` or ``rerun_many()`` records.

    recorded: pending, overdue at its turn -> the sweep asks as for each waiting run -> sent

A run has no place before it is sent. The turns are staggered, so that the runs do not flood the
queue. The ids of the runs and of their batch are made for the same instant: a range of the primary
key contains them.

A backfill also corrects the skipped rows that cover its fire times.

A rerun is a new run for the fire time of an ended run. The unique key on (schedule, fire time) does
not change. A family is an original run and its reruns. ``fire_at`` of a rerun is a free microsecond
after the newest run of its family. Within a family ``fire_at`` thus increases from rerun to rerun.
``nominal_at`` is the fire time itself, and ``rerun_of`` is the original run.

The search for the runs of a rerun reads the history in the order of an index:

    one schedule   (schedule_id, fire_at)
    one owner      (owner, fire_at, id)
    all owners     (id): ids are ordered by time

Most runs do not match, so each query also has a last position, which bounds the number of rows that
it reads.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, and_, delete, exists, func, or_, select, update
from sqlalchemy.orm import Session, aliased

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.filters import RunFilter
from celery_dynbeat.common.run_ids import first_run_id, new_run_id
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.states import Origin, Status, Wait, was_started
from celery_dynbeat.db import statements
from celery_dynbeat.db.models import REQUESTED_ORIGINS, Run
from celery_dynbeat.db.statements import Row, capabilities_in, in_parts, read, reading_latest
from celery_dynbeat.planning import Calendars, spec_from_row, with_search_budget
from celery_dynbeat.planning.backfill_planning import SkippedRemainder, remainder_of
from celery_dynbeat.planning.plan import MICROSECOND, Skip
from celery_dynbeat.store import runs
from celery_dynbeat.store.runs import MAX_IN_LIST, execute_dml
from celery_dynbeat.triggers import Trigger
from celery_dynbeat.triggers.wrappers import nominal


class Batch:
    """Makes the rows of a batch created at ``now``, at most ``per_minute`` of them due per minute.

    Without ``per_minute``, which is the case of a single run, the batch has no ``id``.
    """

    def __init__(
        self,
        origin: Origin,
        *,
        now: datetime,
        ignores_quiet_hours: bool,
        per_minute: int | None = None,
        size: int = 1,
    ) -> None:
        self.id = None if per_minute is None else new_run_id(now)
        self._origin, self._now, self._per_minute = origin, now, per_minute or 1
        self._ignores_quiet_hours = ignores_quiet_hours
        # Their order is the order of the turns, also if another thread makes ids meanwhile.
        self._ids = iter(sorted(new_run_id(now) for _ in range(size)))
        self._made = 0

    def row(self, schedule: Any, fire_at: datetime) -> dict[str, Any]:
        """Return the next row, a run of the schedule."""
        # In whole seconds, so that one sweep sends the runs of a second.
        turn = timedelta(seconds=self._made * 60 // self._per_minute)
        self._made += 1
        return {
            "id": next(self._ids),
            "schedule_id": schedule.id,
            "owner": schedule.owner,
            "name": schedule.name,
            "task": schedule.task,
            "fire_at": fire_at,
            "status": Status.PENDING,
            "origin": self._origin,
            "created_at": self._now,
            "overdue_at": self._now + turn,
            "waited_for": Wait.BATCH,
            "batch_id": self.id,
            "ignores_quiet_hours": self._ignores_quiet_hours,
        }


#: The maximum number of fire times that skip() removed and that a search for the newest other one
#: passes.
_MAX_EARLIER_SKIPS = 100


def add_backfill(
    session: Session,
    schedule: Any,
    missing: Sequence[datetime],
    *,
    batch: Batch,
    trigger: Trigger,
    now: datetime,
    settings: Settings,
) -> int:
    """Insert the runs of the fire times ``missing`` of a locked schedule; return their number.

    They leave the skipped rows that cover them. ``trigger`` has a search budget.
    """
    remainders = _remainders(session, schedule, missing, trigger=trigger) if missing else {}
    shrink_skipped(session, {key: each.newer for key, each in remainders.items()})
    records = [batch.row(schedule, at) for at in missing]
    added = runs.record(session, records, settings=settings)
    older = [each.older for each in remainders.values() if each.older is not None]
    _add_skipped(session, schedule, older, now=now)
    return len(added.ids)


def _remainders(
    session: Session, schedule: Any, missing: Sequence[datetime], *, trigger: Trigger
) -> Mapping[str, SkippedRemainder]:
    """Return what the skipped rows that cover ``missing`` still cover without them, by id.

    A fire time can only be covered by the next row of history after it. A row keeps its count if
    this is too costly to compute.
    """
    first = missing[0]
    rows = rows_covering(session, schedule_id=schedule.id, first=first, last=missing[-1])
    # A backfill runs the fire times that skip() removed like other skipped ones.
    by_call = {row.fire_at for row in rows if row.is_by_call}
    by_call.update(
        skipped_directly_before(
            session, schedule_id=schedule.id, instant=first, limit=_MAX_EARLIER_SKIPS
        )
    )
    removed_at = set(missing)
    remainders: dict[str, SkippedRemainder] = {}
    start = 0
    for row in rows:
        if row.is_by_call:
            # Such a row is about its own fire time only.
            if row.fire_at in removed_at:
                remainders[row.id] = SkippedRemainder(0, None)
            continue
        end = start
        while end < len(missing) and missing[end] <= row.fire_at:
            end += 1
        removed, start = missing[start:end], end
        if not removed or was_started(row.status, row.attempt):
            continue
        # The anchor is set with the trigger. An imported schedule carries an earlier one.
        is_of_trigger = schedule.anchor_at is None or row.created_at > schedule.anchor_at
        try:
            remainder = remainder_of(
                trigger, row, removed, by_call=by_call, is_of_trigger=is_of_trigger
            )
        except InvalidTriggerError:
            break
        if remainder is not None:
            remainders[row.id] = remainder
    return remainders


def _add_skipped(session: Session, schedule: Any, older: Sequence[Skip], *, now: datetime) -> None:
    left = [runs.skipped_row(schedule, skip, now=now) for skip in older]
    while left:
        added = runs.add(session, left)
        # The instant may already have a row if the count came from another trigger. The count must
        # still be recorded.
        left = [
            {**each, "fire_at": each["fire_at"] - MICROSECOND}
            for each in left
            if each["id"] not in added
        ]


def fire_times_with_run(
    session: Session, *, schedule_id: int, instants: Sequence[datetime]
) -> set[datetime]:
    """Return which of the fire times have a run. A skipped fire time has no run."""
    parts = in_parts(instants, MAX_IN_LIST)
    return {at for part in parts for at in _with_run(session, schedule_id, part)}


def _with_run(
    session: Session, schedule_id: int, instants: Sequence[datetime]
) -> Iterable[datetime]:
    is_run = or_(Run.status != Status.SKIPPED, Run.attempt > 0)
    sent = (Run.schedule_id == schedule_id, is_run)
    at = Run.fire_at
    if capabilities_in(session).has_lateral:
        # LIMIT makes it a separate query. Otherwise PostgreSQL merges it into one query of the
        # whole history.
        of_one = select(at).where(*sent).limit(1)
        statement = statements.lateral_for_each(at, instants, lambda each: of_one.where(at == each))
    else:
        statement = select(at).where(*sent, at.in_(instants))
    return session.scalars(statement)


def _is_by_call() -> ColumnElement[bool]:
    """Return the condition that the row is about a fire time that ``skip()`` took out."""
    is_unstarted = and_(Run.status == Status.SKIPPED, Run.attempt == 0)
    return and_(is_unstarted, Run.error.startswith("skipped by "))


#: The columns that say which fire times a row of history represents, of which trigger.
_COVERING: tuple[Any, ...] = (
    Run.id,
    Run.status,
    Run.attempt,
    Run.fire_at,
    Run.fire_count,
    Run.error,
    Run.created_at,
    _is_by_call().label("is_by_call"),
)


def rows_covering(
    session: Session, *, schedule_id: int, first: datetime, last: datetime
) -> Sequence[Row]:
    """Return the rows of history that can cover the fire times in [first, last], oldest first.

    These are the rows in the span and the next one, with the rows of ``skip()`` before it, which
    cover no other fire time. Manual runs and reruns are left out, because their instants are not
    fire times.
    """
    rows = select(*_COVERING).where(
        Run.schedule_id == schedule_id, Run.origin.not_in(REQUESTED_ORIGINS)
    )
    rows = rows.order_by(Run.fire_at)
    at = Run.fire_at
    after = read(session, rows.where(at > last).limit(1))
    if after and after[0].is_by_call:
        after = read(session, rows.where(at > last).limit(MAX_IN_LIST))
    between = list(takewhile(lambda row: row.is_by_call, after))
    following = after[: len(between) + 1]
    return [*read(session, rows.where(at >= first, at <= last)), *following]


def skipped_directly_before(
    session: Session, *, schedule_id: int, instant: datetime, limit: int
) -> Sequence[datetime]:
    """Return up to ``limit`` fire times before ``instant`` that ``skip()`` took out, newest first.

    No other row of history lies between them and ``instant``, except manual runs and reruns.
    """
    columns: Any = select(Run.id, Run.fire_at, Run.origin, _is_by_call().label("is_by_call"))
    found = columns.where(Run.schedule_id == schedule_id, Run.fire_at < instant)
    rows = read(session, found.order_by(Run.fire_at.desc()).limit(limit))
    fire_times = (row for row in rows if row.origin not in REQUESTED_ORIGINS)
    return [row.fire_at for row in takewhile(lambda row: row.is_by_call, fire_times)]


def shrink_skipped(session: Session, counts: Mapping[str, int]) -> None:
    """Set ``fire_count`` of skipped rows, by id; delete the rows whose number is 0."""
    is_skipped = (Run.status == Status.SKIPPED, Run.attempt == 0)
    empty = [run_id for run_id, count in counts.items() if not count]
    for part in in_parts(empty, MAX_IN_LIST):
        execute_dml(session, delete(Run).where(Run.id.in_(part), *is_skipped))
    for run_id, count in counts.items():
        if count:
            changed = update(Run).where(Run.id == run_id, *is_skipped)
            execute_dml(session, changed.values(fire_count=count))


#: A row of ``dynbeat_run`` to insert.
Record = Mapping[str, Any]


def rerun_record(batch: Batch, schedule: Any, original: Any, *, after: datetime) -> dict[str, Any]:
    """Return the row of a rerun of ``original``, the first microsecond after ``after``."""
    return {
        **batch.row(schedule, after + MICROSECOND),
        "rerun_of": original.rerun_of or original.id,
        "nominal_at": original.nominal_at or original.fire_at,
    }


def add_reruns(
    session: Session,
    records: Sequence[Record],
    *,
    is_reserved: Callable[[Record], bool],
    settings: Settings,
) -> set[str]:
    """Insert the rows, each at its ``fire_at`` or the next free microsecond.

    The microsecond of a future fire time is reserved for the run of that fire time. Return the ids
    of the rows that were not inserted, because their run already has a newer rerun. Only a MySQL
    transaction whose snapshot is older than that rerun gives such a row.
    """
    left, repeated = records, set[str]()
    while left:
        left = [_moved(each, is_reserved) for each in left]
        added = runs.record(session, left, settings=settings).ids
        taken = [each for each in left if each["id"] not in added]
        repeated |= {each["id"] for each in taken if _is_of_family(session, each)}
        left = [
            {**each, "fire_at": each["fire_at"] + MICROSECOND}
            for each in taken
            if each["id"] not in repeated
        ]
    return repeated


def _is_of_family(session: Session, record: Record) -> bool:
    """Return whether a rerun of the same run has the instant of ``record``."""
    instant = record["fire_at"]
    of_run = _rerun_of(session, schedule_id=record["schedule_id"], fire_at=instant)
    return bool(of_run == record["rerun_of"])


def _moved(record: Record, is_reserved: Callable[[Record], bool]) -> Record:
    while is_reserved(record):
        record = {**record, "fire_at": record["fire_at"] + MICROSECOND}
    return record


def is_fire_time(
    schedule: Any, instant: datetime, *, calendars: Calendars, settings: Settings
) -> bool:
    """Return whether ``instant`` is a fire time that beat has not decided about.

    ``calendars`` has those that the trigger uses. A damaged schedule has no fire times.
    """
    if schedule.next_fire_at is None or instant < schedule.next_fire_at:
        return False
    try:
        spec = with_search_budget(spec_from_row(schedule, settings, calendars))
        return nominal(spec.trigger).next_after(instant - MICROSECOND) == instant
    except (ArithmeticError, TypeError, ValueError):
        return False


#: A run is recorded at its fire time or later. Clocks may differ by as much.
CLOCK_MARGIN = timedelta(minutes=1)
#: The columns of a run that a rerun needs.
_CANDIDATE_COLUMNS: tuple[Any, ...] = (
    Run.id,
    Run.schedule_id,
    Run.status,
    Run.fire_at,
    Run.rerun_of,
    Run.nominal_at,
)


class RerunPosition(NamedTuple):
    """A position of the search: the fire time and the id of a run, and its schedule."""

    at: datetime
    run_id: str
    schedule_id: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RerunFilter(RunFilter):
    """The runs that a rerun of many names.

    Runs that were recorded or ended at ``ended_before`` or later do not match.
    """

    since: datetime
    until: datetime
    ended_before: datetime

    def start(self) -> RerunPosition:
        """Return the position before the first run."""
        return RerunPosition(self.since, first_run_id(self.since - CLOCK_MARGIN))


def last_position(
    session: Session, matching: RerunFilter, *, after: RerunPosition, limit: int
) -> RerunPosition | None:
    """Return the position of the ``limit``-th run after ``after``, matching or not.

    None if the rest of the search has fewer runs.
    """
    statement = _search((Run.fire_at, Run.id), matching, after).offset(limit - 1).limit(1)
    row = session.execute(statement).one_or_none()
    return None if row is None else RerunPosition(*row)


def find(
    session: Session,
    matching: RerunFilter,
    *,
    after: RerunPosition,
    last: RerunPosition | None,
    limit: int,
) -> Sequence[RerunPosition]:
    """Return up to ``limit`` matching runs after ``after`` up to ``last``."""
    columns = (Run.fire_at, Run.id, Run.schedule_id)
    statement = _matching(columns, matching, after, last).limit(limit)
    return [RerunPosition(*row) for row in session.execute(statement)]


def _matching(
    columns: Sequence[Any], matching: RerunFilter, after: RerunPosition, last: RerunPosition | None
) -> Select[Any]:
    statement = _search(columns, matching, after).where(
        Run.status.in_(matching.statuses),
        # The clocks of two workers differ, so a run may end before it was recorded.
        Run.created_at < matching.ended_before,
        Run.finished_at < matching.ended_before,
        # A run of a deleted schedule cannot run again, and many of them would hide the others.
        Run.schedule_id.is_not(None),
        Run.fire_at >= matching.since,
        Run.fire_at < matching.until,
        ~_has_newer(),
    )
    if matching.name is not None:
        statement = statement.where(Run.name == matching.name)
    if matching.task is not None:
        statement = statement.where(Run.task == matching.task)
    if matching.owner is not None:
        # The column alone is not enough, because PostgreSQL may then not read the index of the
        # search. SQLite gives the id of a deleted schedule to a new one, perhaps of another owner.
        statement = statement.where(func.coalesce(Run.owner, "") == matching.owner)
    return statement if last is None else statement.where(_until(matching, last))


def _search(columns: Sequence[Any], matching: RerunFilter, after: RerunPosition) -> Select[Any]:
    """Return the SELECT of all runs of the search, matching or not, in the order of an index."""
    statement = select(*columns)
    if matching.owner is None:
        end = first_run_id(matching.ended_before + CLOCK_MARGIN)
        return statement.where(Run.id > after.run_id, Run.id < end).order_by(Run.id)
    at = Run.fire_at
    in_span = and_(at >= after.at, at < matching.until)
    statement = statement.where(in_span, or_(at > after.at, Run.id > after.run_id))
    if matching.schedule_id is not None:
        return statement.where(Run.schedule_id == matching.schedule_id).order_by(at)
    return statement.where(Run.owner == matching.owner).order_by(at, Run.id)


def _until(matching: RerunFilter, last: RerunPosition) -> ColumnElement[bool]:
    if matching.owner is None:
        return Run.id <= last.run_id
    at = Run.fire_at
    return and_(at <= last.at, or_(at < last.at, Run.id <= last.run_id))


def _has_newer() -> ColumnElement[bool]:
    """Return the condition that a run has a newer rerun."""
    newer = aliased(Run)
    return exists(
        select(newer.id).where(
            newer.rerun_of == func.coalesce(Run.rerun_of, Run.id),
            newer.fire_at > Run.fire_at,
        )
    )


def newest_by_ids(
    session: Session, ids: Sequence[str], *, owner: str | None, statuses: Sequence[str]
) -> Sequence[Row]:
    """Return which of the runs have one of ``statuses`` and no newer rerun.

    They are without locks and in any order. ``ids`` have no limit. Runs that moved from ``owner``
    to another owner are left out; None means any owner.
    """
    parts = [ids[at : at + MAX_IN_LIST] for at in range(0, len(ids), MAX_IN_LIST)]
    found = select(*_CANDIDATE_COLUMNS).where(Run.status.in_(statuses), ~_has_newer())
    if owner is not None:
        found = found.where(Run.owner == owner)
    return [row for part in parts for row in read(session, found.where(Run.id.in_(part)))]


def succeeded_again(session: Session, ids: Sequence[str]) -> set[str]:
    """Return which of the original runs have a rerun that succeeded. ``ids`` have no limit."""
    succeeded = select(Run.rerun_of).where(Run.status == Status.SUCCEEDED)
    return {
        run_id
        for part in in_parts(ids, MAX_IN_LIST)
        for run_id in session.scalars(succeeded.where(Run.rerun_of.in_(part)))
        if run_id is not None
    }


def newest_of_family(session: Session, run: Run) -> Sequence[Run]:
    """Return the newest rerun of ``run``'s original, in a list; empty without a rerun."""
    statement = (
        select(Run)
        .where(Run.rerun_of == (run.rerun_of or run.id))
        .order_by(Run.fire_at.desc())
        .limit(1)
    )
    return session.scalars(statement.execution_options(populate_existing=True)).all()


def _rerun_of(session: Session, *, schedule_id: int, fire_at: datetime) -> str | None:
    """Return ``rerun_of`` of the run with this instant, even if it is newer than the snapshot."""
    run = select(Run.rerun_of).where(Run.schedule_id == schedule_id, Run.fire_at == fire_at)
    return session.scalar(reading_latest(session, run))
