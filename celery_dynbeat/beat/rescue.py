"""The duties that end what dead workers and lost messages left unfinished.

running, its worker is dead                                     -> ``unfinished.end_attempts``
retrying, replaced by a canvas, begun max_run_time ago          -> lost
retrying, not started dynbeat_resend_after past its retry time  -> pending, sent again
"""

from collections import deque
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from sqlalchemy.orm import Session

from celery_dynbeat.beat.duties import Done
from celery_dynbeat.beat.refused import FULL_BATCH, Batches, Part, changing
from celery_dynbeat.common.clock import Clock
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.engine import Database
from celery_dynbeat.process.heartbeat import (
    HEARTBEATS_PER_TIMEOUT,
    NEVER,
    effective_node_timeout,
)
from celery_dynbeat.process.left_out import LeftOut
from celery_dynbeat.store.runs import unfinished
from celery_dynbeat.telemetry import emit_on_commit, events, has_listeners

WORKER_GONE = "its worker is gone"
CANVAS_LOST = "the canvas that replaced its task did not end within max_run_time"


def rescue_runs(
    session: Session,
    *,
    now: datetime,
    node_timeout: timedelta,
    settings: Settings,
    part: Part = FULL_BATCH,
) -> int:
    """End the attempts of a batch of runs whose worker is dead, or whose canvas was lost.

    Return their number.

    A worker is dead if it was replaced or its row is missing, or if it has been stopped or silent
    for ``node_timeout``. ``part`` is the part of the lost runs. Raises RefusedBatchError if the
    database refuses the end of a run.
    """
    lost = unfinished.lock_lost(
        session,
        now=now,
        silent_since=now - node_timeout,
        max_run_time=settings.max_run_time,
        limit=part.limit,
        except_ids=part.except_ids,
    )
    end = partial(unfinished.end_attempts, session, now=now, settings=settings)
    waiting = [row for row in lost if row.status == Status.RETRYING]
    running = [row for row in lost if row.status != Status.RETRYING]
    with changing(session, lost, part):
        end(waiting, reason=CANVAS_LOST)
        end(running, reason=WORKER_GONE)
    return len(lost)


def resend_retries(
    session: Session, *, now: datetime, settings: Settings, part: Part = FULL_BATCH
) -> int:
    """Make runs pending whose retry the broker has lost, in one batch; return their number.

    ``part`` and the errors are as in ``rescue_runs``.
    """
    late = unfinished.lock_late_retries(
        session,
        before=now - settings.resend_after,
        limit=part.limit,
        except_ids=part.except_ids,
    )
    with changing(session, late, part):
        resent = unfinished.resend_retries(session, [row.id for row in late], now=now)
    if resent and has_listeners(events.RetriesResent):
        event = events.RetriesResent(count=resent, resend_after=settings.resend_after)
        emit_on_commit(session, event)
    return resent


#: The maximum of what outages add to the node timeout, in node timeouts.
MAX_GRACE = 10
_MAX_OUTAGES = 100


class _Outage(NamedTuple):
    began_at: datetime
    ended_at: datetime


class Silence:
    """How long a node may be silent until it counts as dead.

    No node can write a heartbeat during an outage of the database, and each node needs up to one
    interval of heartbeats after it. This time does not count as silence.
    """

    def __init__(self, clock: Clock, settings: Settings) -> None:
        self._clock, self._settings = clock, settings
        self._outages: deque[_Outage] = deque(maxlen=_MAX_OUTAGES)
        self._last_contact_at: datetime | None = None
        self._began_at: datetime | None = None
        self._is_out = False

    def note_outage(self, now: datetime) -> None:
        """Note that the database was unreachable since the last contact."""
        if not self._is_out:
            # A beat that starts during an outage does not know when it began.
            began = now - MAX_GRACE * self._settings.node_timeout
            self._began_at = self._last_contact_at or began
            self._is_out = True

    def note_contact(self, now: datetime) -> None:
        """Note that the database answers."""
        if self._is_out and self._began_at is not None:
            self._outages.append(_Outage(self._began_at, now))
        self._is_out, self._last_contact_at = False, now

    def limit(self, now: datetime) -> timedelta:
        """Return for how long a node that counts as dead has been silent."""
        timeout = effective_node_timeout(self._clock, self._settings)
        if timeout == NEVER:
            return NEVER
        longest = timeout * (1 + MAX_GRACE)
        heartbeat = timeout / HEARTBEATS_PER_TIMEOUT
        for outage in reversed(self._outages):
            # An end after ``now`` means that the clock was set back.
            if not timedelta(0) <= now - outage.ended_at < timeout:
                break
            timeout += outage.ended_at - outage.began_at + heartbeat
        return min(timeout, longest)


class Rescue:
    """The two duties of one beat."""

    def __init__(
        self, *, database: Database, clock: Clock, settings: Settings, left_out: LeftOut[str]
    ) -> None:
        self._database, self._settings = database, settings
        self.silence = Silence(clock, settings)
        batches = partial(Batches[str], database=database, left_out=left_out)
        self._rescues, self._resends = batches(), batches()

    def rescue(self, now: datetime) -> Done:
        """End the attempts of a batch of runs that are lost."""
        rescue = partial(rescue_runs, node_timeout=self.silence.limit(now))
        return self._rescues.change(rescue, now=now, settings=self._settings)

    def resend(self, now: datetime) -> Done:
        """Make a batch of runs pending whose retry the broker has lost."""
        return self._resends.change(resend_retries, now=now, settings=self._settings)
