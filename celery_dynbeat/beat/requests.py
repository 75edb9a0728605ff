"""Make the runs of stored requests: one batch of one request in each transaction.

    due request -> held? -> capacity? -> record a batch of runs, note the progress -> publish
                   held, or no capacity: due again after the poll interval

- ``beat.backfill`` and ``beat.rerun`` decide which runs a batch has. At most ``batch_size`` runs of
  a request are unfinished, so that they do not flood the queue. A run counts as unfinished until it
  ends or has run for the maximum run time, as for overlap.
- A schedule whose runs must not overlap gets one run at a time, while it has no unfinished run.
- During a hold of everything or of the request's owner, nothing is recorded.
- The schedules are locked, so that no two transactions make the same run.
- A request is cancelled if it has ids or statuses that the API never writes.
- A crash leaves what a crash of a claim leaves: nothing, or pending runs that the sweep publishes.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy.orm import Session

from celery_dynbeat.beat import backfill, rerun
from celery_dynbeat.beat.request_batch import Batch, UnusableRequestError, wait
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.run_ids import is_run_id
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.states import RequestKind, Status
from celery_dynbeat.db.statements import Row
from celery_dynbeat.planning.plan import OutgoingRun
from celery_dynbeat.store import holds, requests

logger = logging.getLogger(__name__)

#: A request whose runs the database refuses is tried again after this time.
REFUSED_PAUSE = timedelta(minutes=5)

_NEXT_BATCH: Mapping[str, Callable[..., Batch]] = {
    RequestKind.BACKFILL: backfill.next_batch,
    RequestKind.RERUN: rerun.next_batch,
}


class RequestedRuns(NamedTuple):
    """The number of handled requests, and the new runs to publish, all of one kind."""

    handled: int
    outgoing: Sequence[OutgoingRun] = ()
    kind: RequestKind | None = None


def run_due_request(session: Session, *, now: datetime, settings: Settings) -> RequestedRuns:
    """Make the next batch of the request that has been due the longest, if any."""
    locked = requests.lock_oldest_due(session, now=now)
    if not locked:
        return RequestedRuns(0)
    request = locked[0]
    try:
        _check(request)
        batch = _next_batch(session, request, now=now, settings=settings)
    except UnusableRequestError as error:
        _cancel(session, request, str(error), now=now)
        return RequestedRuns(1)
    requests.change(session, request_id=request.id, values=batch.values)
    return RequestedRuns(1, batch.outgoing, RequestKind(request.kind))


def _next_batch(session: Session, request: Row, *, now: datetime, settings: Settings) -> Batch:
    if holds.end_of(session, owner=request.owner, now=now) is not None:
        return wait(now + settings.poll_interval)
    return _NEXT_BATCH[request.kind](session, request, now=now, settings=settings)


def _check(request: Row) -> None:
    """Raise UnusableRequestError for values that only manual SQL writes."""
    for column in ("statuses", "waiting_ids", "unfinished_ids"):
        # Too many digits or levels: Json.
        if getattr(request, column) is None:
            raise UnusableRequestError(f"{column} cannot be read")
    if not set(map(str, request.statuses)) <= set(Status):
        raise UnusableRequestError("statuses has an unknown status")
    if not all(map(is_run_id, (*request.waiting_ids, *request.unfinished_ids))):
        raise UnusableRequestError("waiting_ids or unfinished_ids has no id of a run")


def _cancel(session: Session, request: Row, error: str, *, now: datetime) -> None:
    logger.error(
        "request %s is cancelled: %s",
        request.id,
        error,
        extra={
            "event": Event.REQUEST_CANCELLED,
            "owner": request.owner,
            "schedule": request.name,
            "request_id": request.id,
        },
    )
    ended = {"next_run_at": None, "finished_at": now, "cancelled": True}
    requests.change(session, request_id=request.id, values=ended)
