"""Record reruns: new runs for the fire times of ended runs.

The unique key on (schedule, fire time) does not change. A family is an original run and its reruns.
``scheduled_for`` of a rerun is a free microsecond after the newest run of its family. Within a
family ``scheduled_for`` thus increases from rerun to rerun. ``nominal_at`` is the fire time itself,
and ``rerun_of`` is the original run.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.common.settings import Settings
from celery_dynbeat.planning import Calendars, spec_from_row, with_search_budget
from celery_dynbeat.planning.plan import MICROSECOND
from celery_dynbeat.store import reruns
from celery_dynbeat.store.schedules import run_rows
from celery_dynbeat.transitions.batches import Batch
from celery_dynbeat.triggers.wrappers import nominal

#: A row of ``dynbeat_run`` to insert.
Record = Mapping[str, Any]


def rerun_record(batch: Batch, schedule: Any, original: Any, *, after: datetime) -> dict[str, Any]:
    """Return the row of a rerun of ``original``, the first microsecond after ``after``."""
    return {
        **batch.row(schedule, after + MICROSECOND),
        "rerun_of": original.rerun_of or original.id,
        "nominal_at": original.nominal_at or original.scheduled_for,
    }


def add_reruns(
    session: Session,
    records: Sequence[Record],
    *,
    is_reserved: Callable[[Record], bool],
    settings: Settings,
) -> set[str]:
    """Insert the rows, each at its ``scheduled_for`` or the next free microsecond.

    The microsecond of a future fire time is reserved for the run of that fire time. Return the ids
    of the rows that were not inserted, because their run already has a newer rerun. Only a MySQL
    transaction whose snapshot is older than that rerun gives such a row.
    """
    left, repeated = records, set[str]()
    while left:
        left = [_moved(each, is_reserved) for each in left]
        added = run_rows.add_runs(session, left, settings=settings).ids
        taken = [each for each in left if each["id"] not in added]
        repeated |= {each["id"] for each in taken if _is_of_family(session, each)}
        left = [
            {**each, "scheduled_for": each["scheduled_for"] + MICROSECOND}
            for each in taken
            if each["id"] not in repeated
        ]
    return repeated


def _is_of_family(session: Session, record: Record) -> bool:
    """Return whether a rerun of the same run has the instant of ``record``."""
    instant = record["scheduled_for"]
    of_run = reruns.rerun_of(session, schedule_id=record["schedule_id"], scheduled_for=instant)
    return bool(of_run == record["rerun_of"])


def _moved(record: Record, is_reserved: Callable[[Record], bool]) -> Record:
    while is_reserved(record):
        record = {**record, "scheduled_for": record["scheduled_for"] + MICROSECOND}
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
