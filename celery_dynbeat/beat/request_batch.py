"""What the batches of backfills and of reruns have in common."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy.orm import Session

from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.statements import Row
from celery_dynbeat.planning import max_run_time
from celery_dynbeat.planning.plan import OutgoingRun
from celery_dynbeat.store import requests
from celery_dynbeat.store.runs import unfinished

#: The time between two batches of one request.
BATCH_PAUSE = timedelta(seconds=1)


class UnusableRequestError(Exception):
    """A request cannot have runs. It is cancelled."""


class Batch(NamedTuple):
    """The recorded runs of a batch, and the columns of the request that it changes."""

    outgoing: Sequence[OutgoingRun]
    values: Mapping[str, Any]


class Recorded(NamedTuple):
    """The ids of new runs of a request, and those of the runs that do not wait for a place."""

    run_ids: Sequence[str]
    outgoing: Sequence[OutgoingRun]


def wait(until: datetime) -> Batch:
    """Return an empty batch. Make the request due again at ``until``."""
    return Batch((), {"next_run_at": until})


def exclusive_schedules(schedules: Mapping[int, Row], settings: Settings) -> Mapping[int, Row]:
    """Return which of the schedules must not have overlapping runs."""
    return {
        key: row for key, row in schedules.items() if (row.overlap or settings.overlap) != "allow"
    }


def busy_schedules(
    session: Session, schedules: Mapping[int, Row], *, now: datetime, settings: Settings
) -> set[int]:
    """Return the ids of the schedules that have an unfinished run."""
    return {
        run.schedule_id
        for run in unfinished.unfinished_runs(session, list(schedules))
        if run.started_at is None
        or now - run.started_at < max_run_time(schedules[run.schedule_id].max_run_time, settings)
    }


def unfinished_runs(session: Session, request: Row, *, started_after: datetime) -> Sequence[str]:
    """Return the ids of the request's runs that are unfinished, for its capacity."""
    return requests.unfinished_run_ids(session, request.unfinished_ids, started_after=started_after)
