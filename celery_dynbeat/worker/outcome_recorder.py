"""Write to the history how runs ended.

    record -> written at once, by the process that executed the task
        |       a success of a message that is acknowledged early
        +--> put --> writer thread of the main process: the successes of a batch in one statement
        |       the database is unreachable, the row is locked, or the process died
        +--> put --> the same thread, one after the other, with back-off
                |  the outcome can never be written, or the buffer is full
                +--> dropped

A pool process keeps no outcome: it writes it, or sends it to the main process. The writer thread
wakes up once in BATCH_INTERVAL at most, because each time it takes the interpreter lock from the
event loop, which limits the rate of a worker. Until then the socket keeps what pool processes send:
about a hundred outcomes, and a process waits while it is full.

An outcome after which another message of the run may come is never batched: a retry, a postponed
run, a message that is acknowledged late. Nor is one that another run waits for, or whose event
needs the current task. A main process that is killed loses its buffer, which holds the successes of
the last BATCH_INTERVAL. Their runs stay ``running`` until beat finds that their worker is dead. The
recorder never raises into the task.
"""

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, StatementError
from sqlalchemy.orm import Session

from celery_dynbeat.common.clock import BackOff
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.states import UNFINISHED, Status
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.statements import RowLockedError
from celery_dynbeat.store import runs
from celery_dynbeat.store.runs import attempts, unfinished
from celery_dynbeat.store.schedules.failing import note_failure
from celery_dynbeat.telemetry import emit, emit_on_commit, events, has_listeners, needs_context
from celery_dynbeat.worker import PoolChannel
from celery_dynbeat.worker.outcomes import (
    ERROR_LENGTH,
    REPORTED,
    Outcome,
    apply_outcome,
    attempt_end_of,
    char_count,
    event_of,
    fields_of,
    in_ascii,
    is_attempt_end,
    truncated,
)

#: When the buffer is full, the oldest outcome is dropped.
MAX_BUFFERED_OUTCOMES = 10_000
#: Of the errors and tracebacks of all buffered outcomes. Beyond it, an outcome is buffered with a
#: short error and without its traceback.
MAX_BUFFERED_CHARS = 8_000_000
SHORT_ERROR_LENGTH = 100
#: The dropped outcomes that one event names.
MAX_NAMED = 10
#: Seconds between two batches. The first outcome after a pause is written at once.
BATCH_INTERVAL = 0.05
#: The interval becomes shorter if more outcomes than this arrive in it: the socket of a pool
#: process holds about a hundred.
FULL_INTERVAL = 50
MIN_INTERVAL = 0.001
#: In seconds. Another thread may have received the outcome that the writer thread waits for.
MAX_WAIT = 1.0
#: The outcomes of one statement.
MAX_BATCH = 100
#: While more outcomes than this wait, a process writes its success itself.
MAX_WAITING = 1_000
#: Seconds that the end of a worker waits for a writer thread that writes nothing.
STOP_TIMEOUT = 5.0
#: How often a process tries to send an outcome that it could not write.
MAX_SENDS = 3
#: The runs whose outcomes a pool process has passed on, and remembers.
MAX_PASSED_ON = 1_000
#: In seconds, between two attempts to write the buffered outcomes.
FIRST_DELAY, MAX_DELAY = 0.5, 30.0


class Recorder:
    """Writes outcomes. Those of one run are written in the order in which they are recorded.

    ``channel`` carries the outcomes of pool processes, or is None if there are none.
    ``is_pool_process`` says which end of it this process has. Nothing is batched on SQLite, where
    a process that is forked during a transaction of another thread inherits its locks.
    """

    def __init__(
        self,
        database: Database,
        *,
        settings: Settings,
        notify: Callable[[Session], None],
        channel: PoolChannel[Outcome] | None = None,
        is_pool_process: bool = False,
    ) -> None:
        self._database = database
        self._settings = settings
        self._notify = notify
        self._channel = channel
        self._is_pool_process = is_pool_process
        self._batches = is_pool_process and not database.capabilities.embedded
        # In the order of their arrival, by number. Those that wait for their row have a second
        # entry: the instant of the monotonic clock of the next try.
        self._buffered: dict[int, Outcome] = {}
        self._not_before: dict[str, float] = {}
        self._numbers = itertools.count()
        self._buffered_chars = 0
        self._passed_on: deque[str] = deque(maxlen=MAX_PASSED_ON)
        # The first is held while the buffer is written, the second for each change of it.
        self._flush_lock, self._lock = threading.Lock(), threading.RLock()
        self._has_arrived, self._closing = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._is_failing = False

    def start(self) -> None:
        """Write successes in batches from now on, in a thread of the main process."""
        self._batches = not self._database.capabilities.embedded
        if self._channel is not None:
            self._start_thread()

    def record(self, outcome: Outcome, *, may_wait: bool = False) -> None:
        """Write ``outcome``, or leave it to the writer thread.

        ``may_wait`` is true if no other message of the run can come before it is written.
        """
        if may_wait and self._batches and self._is_plain(outcome):
            # The exception can be a soft time limit, as below. A second write changes nothing.
            with suppress(Exception):
                if len(self._buffered) < MAX_WAITING and self.put(outcome):
                    return
        self._record_now(outcome)

    def _record_now(self, outcome: Outcome) -> None:
        if not (self._is_failing or self.has(outcome.run_id)):
            try:
                self._write(outcome, waits=outcome.is_of_this_process)
            # This includes a soft time limit that is raised here, because Celery would swallow it
            # with the outcome.
            except Exception as error:  # noqa: BLE001
                self._report_buffered(outcome, error)
                if not self._is_pool_process:
                    # Until the writer thread reaches the database.
                    self._is_failing = self._database.is_outage(error)
                    self._defer(outcome, FIRST_DELAY)
            else:
                return
        for _ in range(MAX_SENDS):
            with suppress(Exception):
                if self.put(outcome):
                    self._passed_on.append(outcome.run_id)
                    return
        self._report_dropped([outcome], "the main process of the worker does not take it")

    def put(self, outcome: Outcome) -> bool:
        """Leave ``outcome`` to the writer thread. Return False if the main process is gone."""
        # A long text would not fit into one message of the channel.
        outcome = truncated(outcome, error_length=ERROR_LENGTH)
        if self._channel is not None:
            # The main process makes room itself: it must not wait for its own thread.
            self._receive()
            return self._channel.send(outcome)
        with self._lock:
            self._buffer(outcome)
            self._start_thread()
        self._has_arrived.set()
        return True

    def has(self, run_id: str) -> bool:
        """Return whether an outcome of the run waits, as far as this process knows."""
        if self._is_pool_process:
            return run_id in self._passed_on
        self._receive()
        return any(outcome.run_id == run_id for outcome in tuple(self._buffered.values()))

    def flush(self) -> bool:
        """Write the buffered outcomes. Return False if the database is unreachable.

        Outcomes whose runs other transactions have locked, or whose change the database refuses,
        stay in the buffer. They are tried again later.
        """
        with self._flush_lock:
            self._receive()
            while batch := self._next_batch():
                try:
                    self._write_batch(batch)
                except Exception as error:  # noqa: BLE001 - drivers raise errors of many classes
                    if not self._is_failing:
                        self._report_buffered(next(iter(batch.values())), error)
                    self._is_failing = True
                    return False
                self._receive()
        self._is_failing = False
        return True

    def close(self) -> None:
        """Stop the thread, write the buffered outcomes once more, and drop the others."""
        self._closing.set()
        self._has_arrived.set()
        if self._channel is not None:
            self._channel.stop_waiting()
        is_writing, left = self._thread is not None, -1
        # A thread that writes nothing for this time waits for the database.
        while self._thread is not None and is_writing and len(self._buffered) != left:
            left = len(self._buffered)
            self._thread.join(STOP_TIMEOUT)
            is_writing = self._thread.is_alive()
        self._receive()
        if not is_writing:
            self._not_before.clear()
            self.flush()
        if dropped := list(self._buffered.values()):
            self._report_dropped(dropped, "they could not be written in time")

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._write_until_closed, name="dynbeat-outcomes", daemon=True
            )
            self._thread.start()

    def _write_until_closed(self) -> None:
        back_off = BackOff(first=FIRST_DELAY, maximum=MAX_DELAY)
        interval = BATCH_INTERVAL
        while not self._closing.is_set():
            self._wait_for_outcome()
            arrived = self._receive()
            if self.flush():
                back_off.reset()
                shorter = max(interval, MIN_INTERVAL) * FULL_INTERVAL / max(arrived, 1)
                interval = min(shorter, BATCH_INTERVAL)
                self._closing.wait(interval)
            else:
                self._pause(back_off.next_delay())
        self.flush()

    def _pause(self, seconds: float) -> None:
        """Wait, and move what pool processes send meanwhile to the buffer: the socket is small."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._closing.wait(min(left, BATCH_INTERVAL)):
                return
            self._receive()

    def _wait_for_outcome(self) -> None:
        """Wait until an outcome arrives, or until one of the buffer can be tried again."""
        with self._lock:
            now = time.monotonic()
            tries = [self._not_before.get(each.run_id, now) for each in self._buffered.values()]
        seconds = max(min(tries) - now, 0.0) if tries else None
        if self._channel is not None:
            self._channel.wait(MAX_WAIT if seconds is None else min(seconds, MAX_WAIT))
        else:
            self._has_arrived.wait(seconds)
            self._has_arrived.clear()

    def _receive(self) -> int:
        """Move what pool processes have sent to the buffer, and return how many outcomes it is."""
        if self._channel is None or self._is_pool_process:
            return 0
        with self._lock:
            received = self._channel.receive()
            for outcome in received:
                self._buffer(outcome)
        return len(received)

    def _buffer(self, outcome: Outcome) -> None:
        if len(self._buffered) >= MAX_BUFFERED_OUTCOMES:
            oldest = self._pop(next(iter(self._buffered)))
            self._report_dropped([oldest], "the buffer is full")
        if self._buffered_chars + char_count(outcome) > MAX_BUFFERED_CHARS:
            outcome = truncated(outcome, error_length=SHORT_ERROR_LENGTH)._replace(traceback=None)
        self._buffered_chars += char_count(outcome)
        self._buffered[next(self._numbers)] = outcome

    def _pop(self, number: int) -> Outcome:
        outcome = self._buffered.pop(number)
        self._buffered_chars -= char_count(outcome)
        self._not_before.pop(outcome.run_id, None)
        return outcome

    def _remove(self, number: int) -> None:
        with self._lock:
            # A full buffer may have dropped it while it was written.
            if number in self._buffered:
                self._pop(number)

    def _next_batch(self) -> dict[int, Outcome]:
        """Return the first outcomes by number, one for each run."""
        batch: dict[str, int] = {}
        now = time.monotonic()
        with self._lock:
            for number, outcome in self._buffered.items():
                if self._not_before.get(outcome.run_id, now) <= now:
                    batch.setdefault(outcome.run_id, number)
                if len(batch) == MAX_BATCH:
                    break
            return {number: self._buffered[number] for number in batch.values()}

    def _write_batch(self, batch: dict[int, Outcome]) -> None:
        """Write the outcomes and remove them. Raises the error of an unreachable database."""
        succeeded = self._succeed([each for each in batch.values() if self._is_plain(each)])
        for number, outcome in batch.items():
            if outcome.run_id in succeeded:
                self._remove(number)
                self._report(outcome)
        for number, outcome in batch.items():
            if outcome.run_id not in succeeded and self._write_or_defer(outcome):
                self._remove(number)

    def _write_or_defer(self, outcome: Outcome) -> bool:
        """Write an outcome, or drop it; return False if it must be tried again later."""
        try:
            self._write(outcome, waits=False)
        except Exception as error:
            if is_permanent(error):
                self._report_dropped([outcome], type(error).__name__)
                return True
            if self._database.is_outage(error):
                raise
            if outcome.run_id not in self._not_before and not isinstance(error, RowLockedError):
                self._report_buffered(outcome, error)
            self._defer(outcome, FIRST_DELAY if self._is_lock(error) else MAX_DELAY)
            return False
        return True

    def _defer(self, outcome: Outcome, seconds: float) -> None:
        with self._lock:
            self._not_before[outcome.run_id] = time.monotonic() + seconds

    def _succeed(self, outcomes: Sequence[Outcome]) -> Collection[str]:
        """Write successes in one transaction, and return the runs that changed."""
        if not outcomes:
            return ()
        try:
            return attempts.succeed(self._database, [attempt_end_of(each) for each in outcomes])
        except Exception as error:
            if self._database.is_outage(error):
                raise
            # One of them is refused. Each is written alone.
            return ()

    def _is_plain(self, outcome: Outcome) -> bool:
        """Return whether ``attempts.succeed`` writes all that the outcome needs."""
        return (
            outcome.status == Status.SUCCEEDED
            and outcome.error is None
            and outcome.is_of_this_process
            and not needs_context(events.RunEnded)
            and not self._needs_transaction(outcome)
        )

    def _report(self, outcome: Outcome) -> None:
        event = self._wanted_event(outcome)
        if event is not None:
            emit(event)

    def _write(self, outcome: Outcome, *, waits: bool) -> None:
        """Write one outcome. Raises RowLockedError if its row is locked and it must not wait."""
        try:
            self._write_unchanged(outcome, waits=waits)
        except Exception as error:
            in_plain_ascii = in_ascii(outcome)
            if in_plain_ascii == outcome or not self._is_unstorable(error):
                raise
            # The encoding of the database or of the connection may lack a character.
            self._write_unchanged(in_plain_ascii, waits=waits)

    def _is_lock(self, error: Exception) -> bool:
        is_transient = self._database.capabilities.is_transient
        return isinstance(error, RowLockedError) or (
            isinstance(error, DBAPIError) and is_transient(error)
        )

    def _is_unstorable(self, error: Exception) -> bool:
        if isinstance(error, DBAPIError) and self._database.capabilities.is_unstorable(error):
            return True
        return is_permanent(error)

    def _write_unchanged(self, outcome: Outcome, *, waits: bool) -> None:
        event = self._wanted_event(outcome)
        in_transaction = not waits or self._needs_transaction(outcome)

        def write(session: Session) -> bool:
            if not waits:
                runs.check_free(session, outcome.run_id)
            written = self._write_within(session, outcome)
            if written and in_transaction and event is not None:
                emit_on_commit(session, event)
            return written

        if in_transaction:
            written = self._database.run(write, follow_indexes=False)
        elif is_attempt_end(outcome):
            written = self._database.execute(*attempts.finishing(attempt_end_of(outcome))) == 1
        else:
            written = self._database.run_autocommit(write)
        if written and event is not None and not in_transaction:
            emit(event)
        # This is done even if nothing was written, because the first try may have failed here,
        # after its commit.
        if outcome.status == Status.FAILED:
            # In separate transactions, because a schedule is locked before its runs.
            note_failure(self._database, run_id=outcome.run_id, at=outcome.at)

    def _wanted_event(self, outcome: Outcome) -> events.RunEnded | None:
        is_reported = outcome.status in REPORTED and has_listeners(events.RunEnded)
        return event_of(outcome) if is_reported else None

    def _needs_transaction(self, outcome: Outcome) -> bool:
        # The waiting run is released in the transaction of the end.
        return outcome.awaited or self._is_due_soon(outcome)

    def _is_due_soon(self, outcome: Outcome) -> bool:
        """Return whether beat must be notified, because its next poll may be too late."""
        is_postponed = outcome.status == Status.PENDING
        again_at = outcome.resend_at if is_postponed else outcome.retry_at
        if again_at is None or not (is_postponed or outcome.sent_by_beat):
            return False
        return again_at - outcome.at < self._settings.poll_interval

    def _write_within(self, session: Session, outcome: Outcome) -> bool:
        written = apply_outcome(session, outcome)
        if written and self._is_due_soon(outcome):
            self._notify(session)
        ended = outcome.awaited and outcome.status not in UNFINISHED
        if (
            written
            and ended
            and unfinished.make_buffered_overdue(session, run_id=outcome.run_id, now=outcome.at)
        ):
            self._notify(session)
        return written

    def _report_buffered(self, outcome: Outcome, error: Exception) -> None:
        if self._is_lock(error):
            until = "its row is unlocked"
        elif self._database.is_outage(error):
            until = "the database is reachable"
        else:
            until = "the database accepts it"
        name = type(error).__name__
        emit(events.OutcomeBuffered(**fields_of(outcome), until=until, error=name))

    def _report_dropped(self, outcomes: Sequence[Outcome], reason: str) -> None:
        first = [fields_of(outcome) for outcome in outcomes[:MAX_NAMED]]
        emit(events.OutcomesDropped(count=len(outcomes), reason=reason, runs=first))


def is_permanent(error: Exception) -> bool:
    """Return whether the statement fails at each attempt. A connection error is not permanent."""
    if isinstance(error, DBAPIError):
        return isinstance(error, (DataError, IntegrityError))
    return isinstance(error, (ArithmeticError, StatementError, TypeError, ValueError))
