"""Record reruns: new runs for the fire times of ended runs.

The unique key on (schedule, fire time) does not change. A family is an original run and its reruns.
``scheduled_for`` of a rerun is a free microsecond after the newest run of its family. Within a
family ``scheduled_for`` thus increases from rerun to rerun. ``nominal_at`` is the fire time itself,
and ``rerun_of`` is the original run.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy.orm import Session

from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.states import Status, Wait
from celery_dynbeat.db.models import Origin
from celery_dynbeat.planning import Calendars, spec_from_row, with_search_budget
from celery_dynbeat.planning.plan import MICROSECOND
from celery_dynbeat.store import reruns
from celery_dynbeat.store.schedules import run_rows
from celery_dynbeat.triggers.wrappers import nominal

#: A row of ``dynbeat_run`` to insert.
Record = Mapping[str, Any]


def rerun_record(
    schedule: Any,
    original: Any,
    *,
    run_id: str,
    after: datetime,
    created_at: datetime,
    overdue_at: datetime,
    waited_for: Wait | None = None,
    request_id: int | None = None,
    ignores_quiet_hours: bool = False,
) -> dict[str, Any]:
    """Return the row of a rerun of ``original``, the first microsecond after ``after``."""
    return {
        "id": run_id,
        "schedule_id": schedule.id,
        "owner": schedule.owner,
        "name": schedule.name,
        "task": schedule.task,
        "scheduled_for": after + MICROSECOND,
        "status": Status.PENDING,
        "origin": Origin.RERUN,
        "created_at": created_at,
        "overdue_at": overdue_at,
        "waited_for": waited_for,
        "request_id": request_id,
        "ignores_quiet_hours": ignores_quiet_hours,
        "rerun_of": original.rerun_of or original.id,
        "nominal_at": original.nominal_at or original.scheduled_for,
    }


class AddedReruns(NamedTuple):
    """The ids of the rows that were not inserted, and of those that wait for a place.

    A run of a row in ``repeated`` already has a newer rerun. Only a MySQL transaction whose
    snapshot is older than that rerun gives such a row.
    """

    repeated: set[str]
    waiting: set[str]


def add_reruns(
    session: Session,
    records: Sequence[Record],
    *,
    is_reserved: Callable[[Record], bool],
    settings: Settings,
) -> AddedReruns:
    """Insert the rows, each at its ``scheduled_for`` or the next free microsecond.

    The microsecond of a future fire time is reserved for the run of that fire time.
    """
    left, repeated, waiting = records, set[str](), set[str]()
    while left:
        left = [_moved(each, is_reserved) for each in left]
        added, new_waiting = run_rows.add_runs(session, left, settings=settings)
        waiting |= new_waiting
        taken = [each for each in left if each["id"] not in added]
        repeated |= {each["id"] for each in taken if _is_of_family(session, each)}
        left = [
            {**each, "scheduled_for": each["scheduled_for"] + MICROSECOND}
            for each in taken
            if each["id"] not in repeated
        ]
    return AddedReruns(repeated, waiting)


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
