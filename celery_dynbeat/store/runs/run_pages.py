"""Pages and counts of the history of runs.

    list                       order (newest first)     index
    of a schedule              fire time                unique (schedule_id, fire_at)
    of an owner                fire time, id            (owner, fire_at)
    of all owners              id                       primary key; an id begins with a time
    of a batch                 id                       primary key, one millisecond
    failed runs of all owners  id                       partial index, on PostgreSQL
    unfinished runs            schedule, id             (finished_at, schedule_id, id)

The index serves some conditions of a filter. The other ones are applied to the rows that it yields.
``scans`` says how many rows a page reads.

Unfinished runs are rare, and an index selects them, but not in the order of a history. Up to
MAX_SCANNED of them are read and sorted here. If there are more, a page of all owners has the order
of that index, by schedule; a page of one owner reads the history of the owner.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, bindparam, func, select
from sqlalchemy.orm import Session

from celery_dynbeat.common.filters import Order, RunFilter
from celery_dynbeat.common.infos import ZERO, BoundedCount
from celery_dynbeat.common.run_ids import created_at, first_run_id
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run
from celery_dynbeat.db.statements import capabilities_in
from celery_dynbeat.store import scans
from celery_dynbeat.store.owners import has_text
from celery_dynbeat.store.scans import Position, Rows, Scan, in_order

#: The statuses of the partial index of failed runs.
UNSUCCESSFUL = (Status.FAILED, Status.LOST)
#: The id of a run begins with the time of the beat that created it. Clocks of beats differ.
_MAX_CLOCK_SKEW = timedelta(minutes=1)
#: Ids that begin with the same time were made within it.
_TICK = timedelta(milliseconds=1)


def order_of(matching: RunFilter) -> Order:
    """Return the order of the pages of a history."""
    is_by_id = matching.owner is None or matching.batch_id is not None
    return Order.RUN_ID if is_by_id else Order.FIRE_TIME


def history_scan(session: Session, matching: RunFilter) -> Scan:
    """Return how to read the history that ``matching`` names, in its order."""
    if matching.batch_id is not None:
        return batch_scan(matching, batch_id=matching.batch_id)
    if matching.owner is None:
        return _scan_of_all(session, matching)
    filters = [*_others(matching), *_with_status(matching)]
    served: list[ColumnElement[bool]] = [*_in_span(matching)]
    if matching.schedule_id is not None:
        # Conditions on owner and name are left out, because the planner would use their index. This
        # condition implies them.
        served.append(Run.schedule_id == matching.schedule_id)
        # A schedule has one run for a fire time.
        columns: tuple[Any, ...] = (Run.fire_at,)
        return Scan(Order.FIRE_TIME, columns, served, filters)
    served.append(Run.owner == matching.owner)
    columns, filters = (Run.fire_at, Run.id), [*_of_name(matching), *filters]
    return Scan(Order.FIRE_TIME, columns, served, filters)


def batch_scan(matching: RunFilter, *, batch_id: str) -> Scan:
    """Return how to read the runs of a batch, whose ids begin with the same instant as its id."""
    at = created_at(batch_id)
    served = [Run.id >= first_run_id(at), Run.id < first_run_id(at + _TICK)]
    matching = replace(matching, batch_id=batch_id)
    filters = [*_in_span(matching), *_with_status(matching)]
    if matching.owner is not None:
        filters.append(Run.owner == matching.owner)
    filters += [*_of_name(matching), *_others(matching)]
    return Scan(Order.RUN_ID, (Run.id,), served, filters)


def _scan_of_all(session: Session, matching: RunFilter) -> Scan:
    served, filters = list(_in_id_span(matching)), [*_in_span(matching), *_of_name(matching)]
    has_index = matching.statuses and set(matching.statuses) <= set(UNSUCCESSFUL)
    if has_index and capabilities_in(session).has_partial_indexes:
        served += _with_status(matching)
    else:
        filters += _with_status(matching)
    return Scan(Order.RUN_ID, (Run.id,), served, [*filters, *_others(matching)])


def unfinished_scan(matching: RunFilter, *, has_schedule: bool = True) -> Scan:
    """Return how to read the unfinished runs that match, by schedule.

    Only unfinished runs are read. With ``has_schedule=False``, these are runs whose schedule was
    deleted. Each database puts NULL at a different place in the order.
    """
    is_null = Run.schedule_id.is_(None)
    of_schedule: ColumnElement[bool] = ~is_null if has_schedule else is_null
    if matching.schedule_id is not None:
        of_schedule = Run.schedule_id == matching.schedule_id
    is_fixed = matching.schedule_id is not None or not has_schedule
    filters = [*_in_span(matching), *_of_name(matching), *_others(matching)]
    if matching.owner is not None:
        filters.append(Run.owner == matching.owner)
    return Scan(
        Order.SCHEDULE,
        columns=(Run.id,) if is_fixed else (Run.schedule_id, Run.id),
        served=[Run.finished_at.is_(None), of_schedule],
        filters=[*filters, *_with_status(matching)],
        fixed=(Run.finished_at, Run.schedule_id) if is_fixed else (Run.finished_at,),
    )


def _of_name(matching: RunFilter) -> Sequence[ColumnElement[bool]]:
    if matching.name is None:
        return []
    if matching.schedule_id is None:
        return [Run.name == matching.name]
    return [] if matching.batch_id is None else [Run.schedule_id == matching.schedule_id]


def _others(matching: RunFilter) -> Sequence[ColumnElement[bool]]:
    return [
        *([] if matching.task is None else [Run.task == matching.task]),
        *([] if matching.origin is None else [Run.origin == matching.origin]),
        *([] if matching.batch_id is None else [Run.batch_id == matching.batch_id]),
        *([] if matching.worker is None else [Run.worker == matching.worker]),
        *([] if matching.text is None else [has_text(Run.owner, Run.name, text=matching.text)]),
    ]


def _in_span(matching: RunFilter) -> Sequence[ColumnElement[bool]]:
    since, until = matching.since, matching.until
    return [
        *([] if since is None else [Run.fire_at >= since]),
        *([] if until is None else [Run.fire_at < until]),
    ]


def _in_id_span(matching: RunFilter) -> Sequence[ColumnElement[bool]]:
    # Beat records a run when its fire time has come.
    if matching.since is None:
        return []
    return [Run.id >= first_run_id(matching.since - _MAX_CLOCK_SKEW)]


def _with_status(matching: RunFilter) -> Sequence[ColumnElement[bool]]:
    if not matching.statuses:
        return []
    # These are literals, because the planner must see that the condition implies the condition of a
    # partial index.
    values = list(matching.statuses)
    return [Run.status.in_(bindparam("statuses", values, expanding=True, literal_execute=True))]


#: The columns in the keys of all orders.
_KEY_COLUMNS = (Run.id, Run.fire_at, Run.schedule_id)
#: This is greater than the id of any run.
_LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"
#: The position between the runs with a schedule and those whose schedule was deleted.
_BEFORE_ORPHANS = Position(Order.SCHEDULE, (0, _LAST_ID))


def page(session: Session, *, matching: RunFilter, after: Position | None, limit: int) -> Rows:
    """Return up to ``limit`` matching runs after the position ``after``, newest first."""
    is_by_schedule = after is not None and after.order == Order.SCHEDULE
    if matching.is_unfinished and not is_by_schedule:
        if _has_few_unfinished(session, matching):
            return _sorted_page(session, matching, after=after, limit=limit)
        is_by_schedule = matching.owner is None and after is None
    if not is_by_schedule:
        return scans.page(session, history_scan(session, matching), after=after, limit=limit)
    found = unfinished_keys(session, matching=matching, after=after, limit=limit)
    return Rows(scans.load(session, Run, [row.id for row in found.rows]), found.last)


#: Characters of an error that ``newest`` reads.
MAX_ERROR = 200


def newest(session: Session, *, matching: RunFilter) -> Rows:
    """Return what statistics need of the matching runs, the newest first.

    At most MAX_SCANNED runs are read. Each row has ``id``, ``schedule_id``, ``owner``, ``name``,
    ``task``, ``status``, ``attempt``, ``origin``, ``rerun_of``, ``fire_at``, ``sent_at``,
    ``ready_at`` and the start of ``error``.
    """
    error = func.substr(Run.error, 1, MAX_ERROR, type_=Run.error.type).label("error")
    of_schedule = (Run.owner, Run.name, Run.task, Run.status, Run.attempt, Run.origin)
    columns = (*_KEY_COLUMNS, *of_schedule, Run.rerun_of, Run.sent_at, Run.ready_at, error)
    scan = history_scan(session, matching)
    return scans.page(session, scan, after=None, limit=scans.MAX_SCANNED, columns=columns)


def unfinished_keys(
    session: Session, *, matching: RunFilter, after: Position | None, limit: int
) -> Rows:
    """Return id, fire_at and schedule_id of up to ``limit`` unfinished runs that match.

    They are ordered by schedule, and newest first in each. Runs of deleted schedules come last. The
    filter of a batch has a status.
    """
    if matching.batch_id is not None:
        scan = batch_scan(matching, batch_id=matching.batch_id)
        return scans.page(session, scan, after=after, limit=limit, columns=_KEY_COLUMNS)
    rows: Sequence[Any] = ()
    # 0 means that the runs with a schedule are in the previous pages.
    if after is None or after.key[0]:
        scan = unfinished_scan(matching)
        found = scans.page(session, scan, after=after, limit=limit, columns=_KEY_COLUMNS)
        if found.last is not None or matching.schedule_id is not None:
            return found
        rows, after = found.rows, None
    if len(rows) == limit:
        return Rows(rows, _BEFORE_ORPHANS)
    scan, rest = unfinished_scan(matching, has_schedule=False), limit - len(rows)
    found = scans.page(session, scan, after=after, limit=rest, columns=_KEY_COLUMNS)
    return Rows([*rows, *found.rows], found.last)


def _has_few_unfinished(session: Session, matching: RunFilter) -> bool:
    indexed = replace(unfinished_scan(matching), served=_unfinished(matching), filters=())
    more = in_order(session, select(Run.id), indexed).where(*indexed.served)
    return session.scalar(more.offset(scans.MAX_SCANNED).limit(1)) is None


def _unfinished(matching: RunFilter) -> Sequence[ColumnElement[bool]]:
    """Return the conditions of all unfinished runs, with a schedule or without."""
    of_schedule = [] if matching.schedule_id is None else [Run.schedule_id == matching.schedule_id]
    return [Run.finished_at.is_(None), *of_schedule]


def _sorted_page(
    session: Session, matching: RunFilter, *, after: Position | None, limit: int
) -> Rows:
    """Return a page of the unfinished runs, which are few and sorted here."""
    rows: list[Any] = []
    for scan in _unfinished_scans(matching):
        keys = in_order(session, select(*_KEY_COLUMNS), scan)
        rows += session.execute(keys.where(*scan.served, *scan.filters))
    order = order_of(matching)
    return scans.sorted_page(session, Run, rows, order=order, after=after, limit=limit)


def _unfinished_scans(matching: RunFilter) -> Sequence[Scan]:
    """Return how to read all unfinished runs that match, in any order."""
    if matching.schedule_id is not None:
        return [unfinished_scan(matching)]
    return [unfinished_scan(matching), unfinished_scan(matching, has_schedule=False)]


def count(session: Session, *, matching: RunFilter) -> BoundedCount:
    """Return the number of matching runs.

    At most MAX_SCANNED + 1 runs of the history are read.
    """
    of_all = matching.owner is None or matching.schedule_id is not None
    is_selected = matching.is_unfinished and (of_all or _has_few_unfinished(session, matching))
    read = _unfinished_scans(matching) if is_selected else [history_scan(session, matching)]
    counts = (scans.count(session, scan, limit=scans.MAX_SCANNED) for scan in read)
    return sum(counts, ZERO).cut(scans.MAX_SCANNED)


def count_batch(session: Session, *, batch_id: str, owner: str | None) -> Mapping[str, int]:
    """Return the number of runs of a batch by status. ``owner=None`` means all owners."""
    scan = batch_scan(RunFilter(owner=owner), batch_id=batch_id)
    counted = select(Run.status, func.count())
    counted = counted.where(*scan.served, *scan.filters).group_by(Run.status)
    return {row[0]: row[1] for row in session.execute(counted.order_by(Run.status))}
