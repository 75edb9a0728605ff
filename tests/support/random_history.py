"""Runs with random outcomes, written without beat. Their ids begin with their fire time."""

import random
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from celery_dynbeat import Dynbeat
from celery_dynbeat.api.results import ScheduleInfo
from celery_dynbeat.common.run_ids import new_run_id
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Origin, Run

_STATUSES = (*[Status.SUCCEEDED] * 5, Status.FAILED, Status.LOST, Status.SKIPPED, Status.REVOKED)


def add_runs(
    dynbeat: Dynbeat, schedule: ScheduleInfo, fire_times: Iterable[datetime], *, seed: int = 0
) -> Sequence[Run]:
    """Write a run with a random outcome for each fire time, and return the rows."""
    rng = random.Random(seed)  # noqa: S311 - not a secret
    rows = [_run(rng, schedule, fire_at) for fire_at in fire_times]
    with Session(dynbeat.context.database.engine, expire_on_commit=False) as session:
        session.add_all(rows)
        session.commit()
    return rows


def _run(rng: random.Random, schedule: ScheduleInfo, fire_at: datetime) -> Run:
    status, row = rng.choice(_STATUSES), _new_run(schedule, fire_at)
    row.status = status
    row.origin = rng.choice((*[Origin.SCHEDULE] * 4, Origin.MANUAL, Origin.BACKFILL))
    row.finished_at = fire_at
    if status != Status.SKIPPED:
        row.sent_at = fire_at + timedelta(milliseconds=rng.randrange(1, 5_000))
    if status in {Status.SUCCEEDED, Status.FAILED, Status.LOST}:
        row.started_at = fire_at + timedelta(seconds=5)
        row.finished_at = row.started_at + timedelta(milliseconds=rng.randrange(90_000))
    return row


def _new_run(schedule: ScheduleInfo, fire_at: datetime) -> Run:
    return Run(
        id=new_run_id(fire_at),
        schedule_id=schedule.id,
        owner=schedule.owner,
        name=schedule.name,
        task=schedule.task,
        fire_at=fire_at,
        created_at=fire_at,
    )
