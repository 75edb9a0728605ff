"""The duty that asks the workers again to end the runs that newer runs replace.

    a worker ends the run                      -> the worker records ``revoked``
    the broker is unreachable                  -> the next try sends the request again
    the broker refuses the request             -> the reason is noted on the run
    the run continues after MAX_RETRIES        -> that is noted on the run

The first request follows the claim. No request is sent for a run with a note. Such a run ends
without a request. Its successor was sent long before.
"""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum, auto
from functools import partial

from celery_dynbeat.beat.refused import BATCH_SIZE
from celery_dynbeat.broker.publisher import RunPublisher
from celery_dynbeat.common.errors import DispatchError
from celery_dynbeat.db.engine import Database
from celery_dynbeat.store.runs import unfinished
from celery_dynbeat.telemetry import emit, events, has_listeners

#: The maximum number of requests for one run after the first request, which follows the claim.
MAX_RETRIES = 2
#: After this many refusals in a row, beat sends one request every REFUSAL_PAUSE seconds.
MAX_REFUSALS = 3
REFUSAL_PAUSE = 300.0
NOT_ENDED = (
    "overlap: a newer run was sent, and no worker ended this one: cancel_previous needs a prefork"
    " or gevent pool with remote control"
)


class _Response(Enum):
    SENT = auto()
    UNREACHABLE = auto()
    REFUSED = auto()


class Termination:
    """Sends the requests of one beat to end runs, and gives up if they have no effect."""

    def __init__(self, database: Database, publisher: RunPublisher, *, interval: timedelta) -> None:
        self._database, self._publisher, self._interval = database, publisher, interval
        self._retries: Mapping[str, int] = {}
        self._refusal = ""
        self._refusals = 0
        self._refused_until = 0.0
        self._reported: set[str] = set()

    def request(self, run_ids: Sequence[str]) -> None:
        """Ask the workers to end these runs. Raises nothing: beat must send their successors."""
        if run_ids:
            self._request(run_ids)

    def run(self, now: datetime) -> None:
        """Send the request again for a batch of runs, and note why the last one failed."""
        # Workers may have missed the first request, or beat may have died before it sent the
        # request.
        read = partial(unfinished.cancelled_before, before=now - self._interval, limit=BATCH_SIZE)
        run_ids = self._database.read_in_transaction(read)
        for reason, ids in self._retry(run_ids).items():
            self._database.run(
                partial(unfinished.note_termination_failure, run_ids=ids, reason=reason)
            )

    def _retry(self, run_ids: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Send the request again for all replaced runs that continue.

        Returns the runs that need no further request, by the reason.
        """
        exhausted = {run_id for run_id in run_ids if self._retries.get(run_id, 0) >= MAX_RETRIES}
        others = [run_id for run_id in run_ids if run_id not in exhausted]
        response = self._request(others) if others else None
        sent = int(response is _Response.SENT)
        self._retries = {run_id: self._retries.get(run_id, 0) + sent for run_id in others}
        reasons: defaultdict[str, list[str]] = defaultdict(list)
        if exhausted:
            reasons[NOT_ENDED] += exhausted
        if response is _Response.REFUSED:
            reasons[self._refusal] += others
        for reason, ids in reasons.items():
            self._emit_failed(reason, reason, len(ids))
        return reasons

    def _request(self, run_ids: Sequence[str]) -> _Response:
        if self._refusals >= MAX_REFUSALS and time.monotonic() < self._refused_until:
            return _Response.REFUSED
        try:
            self._publisher.terminate(run_ids)
        except DispatchError as error:
            self._refusal = str(error)
            self._refusals += 1
            self._refused_until = time.monotonic() + REFUSAL_PAUSE
            self._emit_failed(self._refusal, str(error), len(run_ids))
            return _Response.REFUSED
        # Any other error: the broker is unreachable. The duty sends the request again.
        except Exception as error:  # noqa: BLE001
            self._emit_failed(type(error).__name__, str(error), len(run_ids))
            return _Response.UNREACHABLE
        self._refusals = 0
        return _Response.SENT

    def _emit_failed(self, kind: str, reason: str, count: int) -> None:
        repeated = kind in self._reported
        self._reported.add(kind)
        if has_listeners(events.TerminationFailed):
            emit(events.TerminationFailed(count=count, reason=reason, repeated=repeated))
