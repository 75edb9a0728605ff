"""The filter of a history of runs, and the index that each history is read from.

    scan                       order (newest first)     index
    of a schedule              fire time                unique (schedule_id, scheduled_for)
    of an owner                fire time, id            (owner, scheduled_for)
    of all owners              id                       primary key; an id begins with a time
    of a batch                 id                       primary key, one millisecond
    failed runs of all owners  id                       partial index, on PostgreSQL
    unfinished runs            schedule, id             (finished_at, schedule_id, id)

The index serves some conditions of a filter. The other ones are applied to the rows that it yields.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, bindparam
from sqlalchemy.orm import InstrumentedAttribute, Session

from celery_dynbeat.common.run_ids import created_at, first_run_id
from celery_dynbeat.common.states import UNFINISHED, Status
from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.models import Run
from celery_dynbeat.store.owners import has_text
from celery_dynbeat.store.runs import FIRE_TIME_INDEX, UNFINISHED_INDEX

#: The statuses of the partial index of failed runs.
UNSUCCESSFUL = (Status.FAILED, Status.LOST)
OWNER_INDEX = "ix_dynbeat_run_owner_scheduled_for"
#: The id of a run begins with the time of the beat that created it. Clocks of beats differ.
_MAX_CLOCK_SKEW = timedelta(minutes=1)
#: Ids that begin with the same time were made within it.
_TICK = timedelta(milliseconds=1)


class RunOrder(StrEnum):
    """The order of a history, as its cursors name it."""

    FIRE_TIME = "fire_time"
    RUN_ID = "run_id"
    SCHEDULE = "schedule"


#: The attributes of a run that are its key in an order.
KEYS = {
    RunOrder.FIRE_TIME: ("scheduled_for", "id"),
    RunOrder.RUN_ID: ("id",),
    RunOrder.SCHEDULE: ("schedule_id", "id"),
}
Column: TypeAlias = InstrumentedAttribute[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """The filter of a history; None and () mean any.

    ``since`` and ``until`` are compared with the fire time: since <= fire time < until. ``owner``
    None means the runs of all owners. ``schedule_id`` is the id of the schedule that now has this
    ``owner`` and ``name``. ``text`` is a part of the owner or of the name.
    """

    owner: str | None = None
    name: str | None = None
    schedule_id: int | None = None
    statuses: Sequence[str] = ()
    task: str | None = None
    origin: str | None = None
    worker: str | None = None
    text: str | None = None
    batch_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def is_unfinished(self) -> bool:
        """Whether only unfinished runs match. Those of a batch are read from its history."""
        return (
            self.batch_id is None and bool(self.statuses) and set(self.statuses) <= set(UNFINISHED)
        )

    @property
    def order(self) -> RunOrder:
        """The order of the pages of this history."""
        is_by_id = self.owner is None or self.batch_id is not None
        return RunOrder.RUN_ID if is_by_id else RunOrder.FIRE_TIME


@dataclass(frozen=True, slots=True)
class Scan:
    """The index that a history is read from, with the conditions that are a range of it.

    ``columns`` are those by which the rows are ordered, descending: all or some of the key of
    ``order``. ``fixed`` are the columns of the index before them, which the conditions fix.
    """

    index: str
    order: RunOrder
    columns: tuple[Column, ...]
    served: Sequence[ColumnElement[bool]]
    filters: Sequence[ColumnElement[bool]]
    fixed: tuple[Column, ...] = ()


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
        columns: tuple[Column, ...] = (Run.scheduled_for,)
        return Scan(FIRE_TIME_INDEX, RunOrder.FIRE_TIME, columns, served, filters)
    served.append(Run.owner == matching.owner)
    columns, filters = (Run.scheduled_for, Run.id), [*_of_name(matching), *filters]
    return Scan(OWNER_INDEX, RunOrder.FIRE_TIME, columns, served, filters)


def batch_scan(matching: RunFilter, *, batch_id: str) -> Scan:
    """Return how to read the runs of a batch, whose ids begin with the same instant as its id."""
    at = created_at(batch_id)
    served = [Run.id >= first_run_id(at), Run.id < first_run_id(at + _TICK)]
    matching = replace(matching, batch_id=batch_id)
    filters = [*_in_span(matching), *_with_status(matching)]
    if matching.owner is not None:
        filters.append(Run.owner == matching.owner)
    filters += [*_of_name(matching), *_others(matching)]
    return Scan("PRIMARY", RunOrder.RUN_ID, (Run.id,), served, filters)


def _scan_of_all(session: Session, matching: RunFilter) -> Scan:
    served, filters = list(_in_id_span(matching)), [*_in_span(matching), *_of_name(matching)]
    has_index = matching.statuses and set(matching.statuses) <= set(UNSUCCESSFUL)
    if has_index and capabilities_of(session.get_bind(Run).dialect).has_partial_indexes:
        served += _with_status(matching)
    else:
        filters += _with_status(matching)
    return Scan("PRIMARY", RunOrder.RUN_ID, (Run.id,), served, [*filters, *_others(matching)])


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
        UNFINISHED_INDEX,
        RunOrder.SCHEDULE,
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
        *([] if since is None else [Run.scheduled_for >= since]),
        *([] if until is None else [Run.scheduled_for < until]),
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
