"""Write how the runs of a batch were published, while beat claims the next batch.

    sent                                        -> sent, overdue after dynbeat_resend_after
    refused                                     -> failed
    delayed                                     -> pending, overdue when the next try is due
    declined at the first call                  -> revoked: the application did not send the run
    declined, perhaps sent before               -> sent: a message may be in the queue, and that may
                                                   be the reason why the application declined

No earlier call can have published a run before ``dynbeat_dispatch_timeout`` has passed since it was
created or got its place, or since beat took its retry. After that, beat may have died before it
confirmed the run, or the broker may not have confirmed the message.

An executor runs one call at a time, in order: in the calling thread, or in a background thread. The
caller learns of an error at its next call of ``submit``, ``check`` or ``result``.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from datetime import datetime, timedelta
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from celery_dynbeat.broker.publisher import PublishResult
from celery_dynbeat.common.clock import Clock
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.engine import Database
from celery_dynbeat.planning.plan import OutgoingRun
from celery_dynbeat.store import runs

logger = logging.getLogger(__name__)

Call = Callable[[], None]
#: The number of seconds that ``close`` waits for the last call.
CLOSE_TIMEOUT = 5.0
#: A run is sent again after at most this time, no matter how long it has waited in the queue.
MAX_RESEND_AFTER = timedelta(days=1)


class _Write(NamedTuple):
    """A statement about runs. ``sent_at`` is when their messages were sent, or None without any.

    It keeps only the ids, because the runs need much memory.
    """

    ids: Sequence[str]
    change: Callable[[Session, Sequence[str]], object]
    sent_at: datetime | None = None

    def apply(self, session: Session, ids: Sequence[str]) -> Sequence["_Write"]:
        """Write about ``ids``; return what is left to write about sent runs that are locked."""
        count = self.change(session, ids)
        if self.sent_at is None or count == len(ids):
            return ()
        left = runs.unmarked(session, ids)
        return [self._replace(ids=left)] if left else ()


def _mark_unpublishable(session: Session, ids: Sequence[str], *, now: datetime, error: str) -> None:
    for run_id in ids:
        runs.mark_unpublishable(session, run_id=run_id, now=now, error=error)


class Confirms:
    """The confirms of one beat. One runs at a time.

    A run whose change the database refuses stays pending. The sweep finds and reports it.
    """

    def __init__(
        self, *, database: Database, clock: Clock, settings: Settings, executor: "Executor"
    ) -> None:
        self._database = database
        self._clock = clock
        self._settings = settings
        self._executor = executor
        #: Sent runs that a worker that started them, or a call, had locked.
        self._unconfirmed: list[_Write] = []

    @property
    def are_left(self) -> bool:
        """Whether sent runs were locked."""
        return bool(self._unconfirmed)

    def check(self) -> None:
        """Raise the error of the last confirm once, if that confirm has ended. Does not wait."""
        self._executor.check()

    def result(self) -> None:
        """Wait for the last confirm. Raises its error, once."""
        self._executor.result()

    def last_error(self) -> Exception | None:
        """Wait for the last confirm, and return its error once."""
        try:
            self._executor.result()
        # Any error: the caller raises it.
        except Exception as error:  # noqa: BLE001
            return error
        return None

    def close(self) -> None:
        """Wait for the last confirm."""
        self._executor.close()

    def start(self, outgoing: Sequence[OutgoingRun], published: PublishResult) -> None:
        """Start to write how the runs were published, and to which queue."""
        writes = self._writes(outgoing, published)

        self._executor.submit(partial(self._execute, writes))
        if published.delayed or any(run.overlap != "allow" for run in outgoing):
            # The next poll must see when a delayed run is overdue. The next claim must not mistake
            # a run whose sent_at is not yet written for a buffered run.
            self._executor.result()

    def _execute(self, writes: Sequence[_Write]) -> None:
        def confirm(session: Session) -> Sequence[_Write]:
            return [each for write in writes for each in write.apply(session, write.ids)]

        try:
            self._unconfirmed += self._database.run_autocommit(confirm)
        except DBAPIError as error:
            if not self._database.capabilities.is_refusal(error):
                raise
            for write in writes:
                left, _ = self._database.run_in_parts(write.apply, write.ids)
                self._unconfirmed += [each for some in left for each in some]

    def _writes(
        self, outgoing: Sequence[OutgoingRun], published: PublishResult
    ) -> Sequence[_Write]:
        """Return the statements that write how the runs were published."""
        now = self._clock.now()
        declined = [run for run in outgoing if run.run_id in published.declined]
        unsent = self._unsent(declined, now) if declined else ()
        revoked: defaultdict[str, list[str]] = defaultdict(list)
        for run_id in unsent:
            revoked[published.declined[run_id]].append(run_id)
        sent = {*published.sent, *published.declined} - {*unsent}
        sent_alike: defaultdict[tuple[datetime, int], list[str]] = defaultdict(list)
        for run in outgoing:
            if run.run_id in sent:
                sent_alike[self._overdue_at(run, now), run.attempt].append(run.run_id)
        delayed: defaultdict[datetime, list[str]] = defaultdict(list)
        for run_id, retry_at in published.delayed.items():
            delayed[retry_at].append(run_id)

        mark_sent = partial(runs.mark_sent, queues=published.queues, now=now)
        fail, revoke = partial(_mark_unpublishable, now=now), partial(runs.revoke_free, now=now)
        return [
            *(
                _Write(ids, partial(mark_sent, attempt=attempt, overdue_at=overdue_at), now)
                for (overdue_at, attempt), ids in sent_alike.items()
            ),
            *(
                _Write([run_id], partial(fail, error=str(error)))
                for run_id, error in published.refused.items()
            ),
            *(_Write(ids, partial(runs.lease, overdue_at=at)) for at, ids in delayed.items()),
            *(_Write(ids, partial(revoke, reason=reason)) for reason, ids in revoked.items()),
        ]

    def _unsent(self, declined: Sequence[OutgoingRun], now: datetime) -> Sequence[str]:
        """Return the ids of the declined runs of which no message can be in the queue."""
        unstarted = [run.run_id for run in declined if not (run.attempt or run.unstarted_since)]
        since: dict[str, datetime] = {}
        if unstarted:
            since |= self._database.read(partial(runs.ready_since, run_ids=unstarted))
        since |= {run.run_id: run.retry_taken_at for run in declined if run.retry_taken_at}
        timeout = self._settings.dispatch_timeout
        return [run_id for run_id, at in since.items() if now - at < timeout]

    def start_again(self, now: datetime) -> None:
        """Start to mark runs as sent that were locked before.

        Pending runs that are still locked are left to the sweep.
        """
        if not self._unconfirmed:
            return
        self._executor.result()
        writes, self._unconfirmed = self._unconfirmed, []
        timeout = self._settings.dispatch_timeout
        left = [each for each in writes if each.sent_at and now - each.sent_at < timeout]
        if left:
            self._executor.submit(partial(self._execute, left))

    def _overdue_at(self, run: OutgoingRun, now: datetime) -> datetime:
        """Return when a sent run that has not started is overdue."""
        resend_at = now + self._resend_after(run, now)
        if run.expires_at is None:
            return resend_at
        # Soon after it expires, because the broker may have dropped the message silently.
        return min(resend_at, run.expires_at + self._settings.dispatch_timeout)

    def _resend_after(self, run: OutgoingRun, now: datetime) -> timedelta:
        """Return the time until the run is sent again, which is about as long as it has waited.

        Each message therefore doubles the time to the next one, so copies do not fill a long queue.
        """
        resend_after = self._settings.resend_after
        if run.unstarted_since is None:
            return resend_after
        waited = now - run.unstarted_since
        while resend_after < min(waited, MAX_RESEND_AFTER):
            # The time doubles in steps, so that many runs share one value and one UPDATE.
            resend_after *= 2
        return resend_after


class Executor:
    """Runs calls one after the other: each in the calling thread, within ``submit``."""

    def submit(self, call: Call) -> None:
        """Wait for the previous call, then start this one. Raises the error of the previous one."""
        call()

    def result(self) -> None:
        """Wait for the last call. Raises its error, once."""

    def check(self) -> None:
        """Raise the error of the last call once, if that call has ended. Does not wait."""

    def close(self) -> None:
        """Accept no more calls and wait for the last one, up to CLOSE_TIMEOUT. Logs its error."""


class BackgroundExecutor(Executor):
    """Runs each call in one background thread.

    It is intended for calls that mostly wait. A ThreadPoolExecutor is not suitable, because the
    interpreter joins its threads at exit, even if one hangs.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Future[None], Call] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._future: Future[None] | None = None

    def submit(self, call: Call) -> None:
        """Wait for the previous call, then start this one. Raises the error of the previous one."""
        self.result()
        if self._thread is None:
            # The thread is a daemon thread, because a server that does not respond must not block
            # the exit.
            self._thread = Thread(target=self._work, name="dynbeat-confirm", daemon=True)
            self._thread.start()
        self._future = Future()
        self._queue.put((self._future, call))

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            _run(*item)
            # Free the call while the thread waits for the next one.
            del item

    def result(self) -> None:
        """Wait for the last call. Raises its error, once."""
        future, self._future = self._future, None
        if future is not None:
            future.result()

    def check(self) -> None:
        """Raise the error of the last call once, if that call has ended. Does not wait."""
        if self._future is not None and self._future.done():
            self.result()

    def close(self) -> None:
        """Accept no more calls and wait for the last one, up to CLOSE_TIMEOUT. Logs its error."""
        self._queue.put(None)
        future, self._future = self._future, None
        if future is None:
            return
        ended, _ = wait([future], timeout=CLOSE_TIMEOUT)
        error = future.exception() if ended else TimeoutError(f"no answer in {CLOSE_TIMEOUT:g} s")
        if error is not None and not isinstance(error, Exception):
            raise error
        if error is not None:
            # Beat stops regardless. The sweep publishes the runs again, and each run starts only
            # once.
            logger.warning(
                "the last runs were not confirmed and may be sent again: %s: %s",
                type(error).__name__,
                error,
                extra={"event": Event.CONFIRM_UNKNOWN},
            )


def _run(future: Future[None], call: Call) -> None:
    try:
        call()
    # Any error: the caller of ``result`` raises it.
    except BaseException as error:  # noqa: BLE001
        future.set_exception(error)
    else:
        future.set_result(None)
