"""Write to the history how runs ended. Buffer outcomes while the database is unreachable.

    record -> written
        |       a success, and this process has just started one run after another
        +--> delayed --the process starts its next run--> written in the same transaction
        |      +--OUTCOME_DELAY without a next run--> written
        |       the database is unreachable, or older outcomes are buffered
        +--> buffered --thread, with back-off--> written
                |  the outcome can never be written, or the buffer is full -> dropped
                +--the pool process ends--> sent to the main process of its worker

The buffer is in the memory of its process and holds MAX_BUFFERED_OUTCOMES. When it is full, the
oldest outcome is dropped. The recorder never raises into the task. A process that is killed loses
its buffer and its delayed outcome. Its runs stay ``running`` until the check of its node finds
them.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, StatementError
from sqlalchemy.orm import Session

from celery_dynbeat.common.clock import BackOff
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.states import UNFINISHED, Status
from celery_dynbeat.common.text import NOTE_LENGTH
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.statements import RowLockedError
from celery_dynbeat.db.types import escape_non_ascii
from celery_dynbeat.store import runs
from celery_dynbeat.store.runs import attempts, unfinished
from celery_dynbeat.telemetry import (
    emit,
    emit_on_commit,
    events,
    has_listeners,
    needs_context,
    needs_transaction,
)
from celery_dynbeat.transitions import note_failure

MAX_BUFFERED_OUTCOMES = 10_000
#: The statuses by which an attempt ends. The others continue or repeat it.
REPORTED = (frozenset(Status) - set(UNFINISHED)) | {Status.RETRYING}
#: Of the errors and tracebacks of all buffered outcomes. Beyond it, an outcome is buffered with a
#: short error and without its traceback.
MAX_BUFFERED_CHARS = 8_000_000
SHORT_ERROR_LENGTH = 100
#: The dropped outcomes that one event names.
MAX_NAMED = 10
ERROR_LENGTH = 1_000
TRACEBACK_LENGTH = 8_000
#: Seconds by which an outcome is delayed, in a process that starts a run within this time after the
#: run before. One commit then writes the end of a run and the start of the next.
OUTCOME_DELAY = 0.01
#: Seconds that a start has to write a delayed outcome. Then a thread writes the outcome, because a
#: soft time limit may have interrupted the start.
START_TIMEOUT = 5.0
#: Seconds that a process waits for this thread at its end.
STOP_TIMEOUT = 1.0
#: In seconds, between two attempts to write the buffered outcomes.
FIRST_DELAY, MAX_DELAY = 0.5, 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The fields of an event about the run of an outcome.

    If the message is gone, ``owner`` and ``schedule`` are None, and ``task`` may be "".
    ``duration`` is how long the body took, or None if this process did not run it. ``pings`` says
    that the schedule may have a ping URL.
    """

    task: str = ""
    owner: str | None = None
    schedule: str | None = None
    duration: timedelta | None = None
    pings: bool = True


#: The message is gone: nothing says that the schedule has no ping URL.
UNKNOWN = Subject()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of an attempt. ``attempt`` is None if the reporter does not know its number.

    In that case, ``pid`` is the process that executed the attempt, or None if it is not known.
    ``started`` is False if the worker dropped a message without starting the run. In this case,
    ``attempt`` is the attempt that the message follows. ``status`` sent: the broker was asked to
    redeliver the message; ``resend_at`` is required. With ``started`` False: process ``pid`` does
    not execute the run, even if its row is ``running``. ``status`` pending: the task postponed the
    run until ``resend_at``, which is required. ``status`` retrying: ``retry_at`` is when
    the next attempt starts, if it is known. If ``sent_by_beat`` is true, beat sends that attempt at
    ``retry_at``, and ``retries`` is the count of the ended attempt. Otherwise, Celery has sent it.
    ``status`` running: the attempt continues though it was to be terminated; ``error`` says why.
    ``awaited`` is true if another run of the schedule may wait for this one to end. ``note`` is the
    text that the task gave to ``note()``. ``subject`` is for events. It is not written.
    """

    run_id: str
    attempt: int | None
    worker: str
    pid: int | None = None
    status: Status
    at: datetime
    started: bool = True
    error: str | None = None
    traceback: str | None = None
    note: str | None = None
    resend_at: datetime | None = None
    retry_at: datetime | None = None
    sent_by_beat: bool = False
    retries: int | None = None
    awaited: bool = False
    subject: Subject = UNKNOWN

    @property
    def reported_attempt(self) -> int | None:
        """The number of the attempt that the outcome is about."""
        if self.attempt is None or self.started:
            return self.attempt
        return self.attempt + 1

    @property
    def is_of_this_process(self) -> bool:
        """Whether the process that executed the attempt reports it."""
        return self.attempt is not None and self.started


@dataclass(slots=True, eq=False)
class _Delayed:
    """An outcome that the next start writes, and the event to emit then.

    ``until`` is an instant of the monotonic clock. ``is_taken`` is true while a start is writing
    it.
    """

    outcome: Outcome
    event: events.RunEnded | None
    until: float
    is_taken: bool = False


class Recorder:
    """Writes outcomes. Those of one run are written in the order in which they are recorded."""

    def __init__(
        self, database: Database, *, settings: Settings, notify: Callable[[Session], None]
    ) -> None:
        self._database = database
        self._settings = settings
        self._notify = notify
        self._buffered: deque[Outcome] = deque()
        self._buffered_chars = 0
        # The first is held while the buffer is written; the second for each change of the buffer.
        self._flush_lock, self._buffer_lock = threading.Lock(), threading.Lock()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        # The delayed outcomes by run id, until they are written or buffered. A signal can raise a
        # soft time limit at any line, so an outcome is removed after its write. A second write
        # changes nothing.
        self._delayed: dict[str, _Delayed] = {}
        self._delay_lock, self._is_delaying = threading.Lock(), threading.Event()
        self._delay_thread: threading.Thread | None = None
        # When the last run of this process was recorded, and whether the present run followed
        # immediately.
        self._idle_since, self._is_busy = -math.inf, False

    def start_run(self, attempt_start: attempts.AttemptStart, *, now: datetime) -> bool:
        """Start a run by ``attempts.start`` as a separate transaction; return what that returns.

        The transaction also writes a delayed outcome. Raises the error of the database.
        """
        self._is_busy = time.monotonic() - self._idle_since < OUTCOME_DELAY
        own = self._delayed.get(attempt_start.run_id)
        if own is not None:
            self._write_delayed(own)
        delayed = self._take_delayed()
        if delayed is not None:
            try:
                return self._finish_and_start(delayed, attempt_start, now=now)
            except BaseException as error:
                self.buffer(delayed.outcome)
                self._delayed.pop(delayed.outcome.run_id, None)
                if not (isinstance(error, DBAPIError) and self._is_lock(error)):
                    raise
                # Both were rolled back, perhaps because of the row of the other run.
        return self._database.execute(*attempts.starting(attempt_start, now=now)) == 1

    def _finish_and_start(
        self, delayed: _Delayed, attempt_start: attempts.AttemptStart, *, now: datetime
    ) -> bool:
        outcome, event = delayed.outcome, delayed.event
        written, started = attempts.finish_and_start(
            self._database, _attempt_end_of(outcome), attempt_start, now=now
        )
        self._delayed.pop(outcome.run_id, None)
        if written and event is not None:
            emit(event)
        return started

    def record(self, outcome: Outcome, *, is_last: bool = True) -> None:
        """Write ``outcome``, or delay it until the next start, or buffer it.

        It is buffered until the database is reachable and its row unlocked. If
        ``is_last`` is false, another outcome of the same attempt follows and must be written
        second.
        """
        if not (is_last and self._is_busy and self._delay(outcome)):
            self._record_now(outcome)
        # Read after the write, no matter how long the write took.
        self._idle_since = time.monotonic()

    def _delay(self, outcome: Outcome) -> bool:
        """Delay ``outcome``; return False if it must be written now."""
        is_plain = outcome.status == Status.SUCCEEDED and outcome.error is None
        if not is_plain or self._buffered or self._closing.is_set():
            return False
        event = self._wanted_event(outcome)
        if needs_context(events.RunEnded) or self._needs_transaction(outcome, event):
            return False
        try:
            until = time.monotonic() + OUTCOME_DELAY
            self._delayed[outcome.run_id] = _Delayed(outcome, event, until)
            with self._delay_lock:
                if self._delay_thread is None:
                    thread = threading.Thread(
                        target=self._write_delayed_in_time,
                        name="dynbeat-delayed-outcome",
                        daemon=True,
                    )
                    thread.start()
                    self._delay_thread = thread
            self._is_delaying.set()
        # No thread can be started, or a soft time limit is raised here.
        except Exception:  # noqa: BLE001
            self._delayed.pop(outcome.run_id, None)
            return False
        return True

    def _take_delayed(self) -> _Delayed | None:
        """Return an outcome that no other start writes, or None if there is none."""
        if not self._delayed:
            return None
        with self._delay_lock:
            for delayed in list(self._delayed.values()):
                if not delayed.is_taken:
                    delayed.is_taken, delayed.until = True, delayed.until + START_TIMEOUT
                    return delayed
        return None

    def _write_delayed(self, delayed: _Delayed) -> None:
        self._record_now(delayed.outcome)
        self._delayed.pop(delayed.outcome.run_id, None)

    def _write_delayed_in_time(self) -> None:
        while not self._closing.is_set():
            self._is_delaying.wait()
            self._is_delaying.clear()
            while self._delayed and not self._closing.is_set():
                wait = OUTCOME_DELAY
                for delayed in list(self._delayed.values()):
                    left = delayed.until - time.monotonic()
                    if left <= 0:
                        self._write_delayed(delayed)
                    else:
                        wait = min(wait, left)
                self._closing.wait(wait)

    def _stop_delaying(self) -> None:
        """Write or buffer the delayed outcomes, and do not delay any further outcome."""
        self._closing.set()
        self._is_delaying.set()
        thread = self._delay_thread
        if thread is not None:
            thread.join(STOP_TIMEOUT)
        for delayed in list(self._delayed.values()):
            if thread is not None and thread.is_alive():
                # The database does not answer.
                self.buffer(delayed.outcome)
            else:
                self._write_delayed(delayed)

    def _record_now(self, outcome: Outcome) -> None:
        if not self._buffered:
            try:
                self._write(outcome)
            # This includes a soft time limit that is raised here, because Celery would swallow it
            # with the outcome.
            except Exception as error:  # noqa: BLE001
                is_locked = self._is_lock(error)
                emit(
                    events.OutcomeBuffered(
                        **_fields_of(outcome),
                        until="its row is unlocked" if is_locked else "the database is reachable",
                        error=type(error).__name__,
                    )
                )
                self.buffer(outcome)
            return
        self.buffer(outcome)

    def buffer(self, outcome: Outcome) -> None:
        """Add ``outcome`` to the buffer, which a thread writes."""
        with self._buffer_lock:
            if len(self._buffered) >= MAX_BUFFERED_OUTCOMES:
                self._drop([self._pop()], None)
            self._append(outcome)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._flush_until_empty, name="dynbeat-outcomes", daemon=True
                )
                self._thread.start()

    def has_buffered(self, run_id: str) -> bool:
        """Return whether an outcome of the run is delayed or buffered."""
        return run_id in self._delayed or any(
            outcome.run_id == run_id for outcome in self._buffered.copy()
        )

    def flush(self) -> bool:
        """Write the buffered outcomes in order. Return False if the database is still unreachable.

        Outcomes whose runs other transactions have locked stay in the buffer.
        """
        locked = 0
        with self._flush_lock:
            while len(self._buffered) > locked:
                outcome = self._buffered[0]
                try:
                    self._write(outcome)
                except RowLockedError:
                    locked += 1
                    with self._buffer_lock:
                        self._buffered.rotate(-1)
                    continue
                except Exception as error:  # noqa: BLE001
                    if not is_permanent(error):
                        return False
                    self._drop([outcome], error)
                with self._buffer_lock:
                    # A full buffer may have dropped it while it was written.
                    if self._buffered and self._buffered[0] is outcome:
                        self._pop()
        return True

    def hand_over(self, send: Callable[[Outcome], bool]) -> None:
        """Pass the buffered outcomes to ``send``, in order, until it returns False.

        This includes an outcome that the thread is writing. A second write changes nothing, because
        the attempt has ended.
        """
        self._stop_delaying()
        handed_over = 0
        with self._buffer_lock:
            while self._buffered and send(self._buffered[0]):
                self._pop()
                handed_over += 1
        if handed_over:
            emit(events.OutcomesHandedOver(count=handed_over))

    def close(self) -> None:
        """Write the delayed outcome, and the buffered ones once more; drop the others."""
        self._stop_delaying()
        self.flush()
        if self._buffered:
            self._drop(self._buffered.copy(), None)

    def _write(self, outcome: Outcome) -> None:
        try:
            self._write_unchanged(outcome)
        except Exception as error:
            in_plain_ascii = _in_ascii(outcome)
            if in_plain_ascii == outcome or not self._is_unstorable(error):
                raise
            # The encoding of the database or of the connection may lack a character.
            self._write_unchanged(in_plain_ascii)

    def _is_lock(self, error: Exception) -> bool:
        is_transient = self._database.capabilities.is_transient
        return isinstance(error, RowLockedError) or (
            isinstance(error, DBAPIError) and is_transient(error)
        )

    def _is_unstorable(self, error: Exception) -> bool:
        if isinstance(error, DBAPIError) and self._database.capabilities.is_unstorable(error):
            return True
        return is_permanent(error)

    def _write_unchanged(self, outcome: Outcome) -> None:
        event = self._wanted_event(outcome)
        in_transaction = self._needs_transaction(outcome, event)

        def write(session: Session) -> bool:
            written = self._write_within(session, outcome)
            if written and in_transaction and event is not None:
                emit_on_commit(session, event)
            return written

        if in_transaction:
            written = self._database.run(write)
        elif _is_attempt_end(outcome):
            written = self._database.execute(*attempts.finishing(_attempt_end_of(outcome))) == 1
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
        return _event_of(outcome) if is_reported else None

    def _needs_transaction(self, outcome: Outcome, event: events.RunEnded | None) -> bool:
        return (
            # It ends, and the waiting run is released, in the same transaction.
            outcome.awaited
            or not outcome.is_of_this_process
            or self._is_due_soon(outcome)
            or (event is not None and needs_transaction(event))
        )

    def _is_due_soon(self, outcome: Outcome) -> bool:
        """Return whether beat must be notified, because its next poll may be too late."""
        is_postponed = outcome.status == Status.PENDING
        again_at = outcome.resend_at if is_postponed else outcome.retry_at
        if again_at is None or not (is_postponed or outcome.sent_by_beat):
            return False
        return again_at - outcome.at < self._settings.poll_interval

    def _write_within(self, session: Session, outcome: Outcome) -> bool:
        if not outcome.is_of_this_process:
            # The main process of a worker reports it, and must not wait for the run.
            runs.check_free(session, outcome.run_id)
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

    def _append(self, outcome: Outcome) -> None:
        buffered = _truncated(outcome, error_length=ERROR_LENGTH)
        if self._buffered_chars + _char_count(buffered) > MAX_BUFFERED_CHARS:
            buffered = replace(_truncated(outcome, error_length=SHORT_ERROR_LENGTH), traceback=None)
        self._buffered_chars += _char_count(buffered)
        self._buffered.append(buffered)

    def _pop(self) -> Outcome:
        outcome = self._buffered.popleft()
        self._buffered_chars -= _char_count(outcome)
        return outcome

    def _flush_until_empty(self) -> None:
        back_off = BackOff(first=FIRST_DELAY, maximum=MAX_DELAY)
        while not self._closing.wait(back_off.next_delay()):
            if self.flush():
                # The remaining outcomes must not delay new outcomes.
                back_off.reset()
            with self._buffer_lock:
                if not self._buffered:
                    self._thread = None
                    return

    def _drop(self, outcomes: Sequence[Outcome], error: Exception | None) -> None:
        reason = "they could not be written in time" if error is None else type(error).__name__
        first = [_fields_of(outcome) for outcome in islice(outcomes, MAX_NAMED)]
        emit(events.OutcomesDropped(count=len(outcomes), reason=reason, runs=first))


def _fields_of(outcome: Outcome) -> events.DroppedOutcome:
    """Return the fields of an outcome that is not written."""
    return {
        "owner": outcome.subject.owner,
        "schedule": outcome.subject.schedule,
        "run_id": outcome.run_id,
        "attempt": outcome.reported_attempt,
        "status": outcome.status,
    }


def _event_of(outcome: Outcome) -> events.RunEnded:
    subject = outcome.subject
    return events.RunEnded(
        run_id=outcome.run_id,
        owner=subject.owner,
        schedule=subject.schedule,
        task=subject.task,
        status=outcome.status.value,
        attempt=outcome.reported_attempt,
        duration=subject.duration,
        error=outcome.error,
        at=outcome.at,
        pings=subject.pings,
    )


def _in_ascii(outcome: Outcome) -> Outcome:
    """Return the outcome with its texts in ASCII."""
    error, traceback, note = (
        None if text is None else escape_non_ascii(text)
        for text in (outcome.error, outcome.traceback, outcome.note)
    )
    return replace(outcome, error=error, traceback=traceback, note=note)


def is_permanent(error: Exception) -> bool:
    """Return whether the statement fails at each attempt. A connection error is not permanent."""
    if isinstance(error, DBAPIError):
        return isinstance(error, (DataError, IntegrityError))
    return isinstance(error, (ArithmeticError, StatementError, TypeError, ValueError))


def apply_outcome(session: Session, outcome: Outcome) -> bool:
    """Write ``outcome`` if the state of its run allows it; return whether it was written."""
    if not outcome.started:
        return _apply_unstarted(session, outcome)
    if outcome.status == Status.SENT:
        assert outcome.resend_at is not None  # noqa: S101 - see Outcome
        return attempts.requeue(
            session,
            run_id=outcome.run_id,
            attempt=outcome.attempt or 0,
            overdue_at=outcome.resend_at,
        )
    if outcome.status == Status.PENDING:
        assert outcome.resend_at is not None  # noqa: S101 - see Outcome
        return attempts.postpone(
            session,
            run_id=outcome.run_id,
            attempt=outcome.attempt or 0,
            at=outcome.at,
            until=outcome.resend_at,
            note=_truncated_error(outcome.note, NOTE_LENGTH),
        )
    if outcome.status == Status.RUNNING:
        return unfinished.note_termination_failure(
            session, run_ids=[outcome.run_id], reason=outcome.error or ""
        )
    return attempts.finish(session, _attempt_end_of(outcome))


def _is_attempt_end(outcome: Outcome) -> bool:
    return outcome.started and outcome.status not in {Status.SENT, Status.PENDING, Status.RUNNING}


def _attempt_end_of(outcome: Outcome) -> attempts.AttemptEnd:
    return attempts.AttemptEnd(
        run_id=outcome.run_id,
        attempt=outcome.attempt,
        worker=outcome.worker,
        status=outcome.status,
        at=outcome.at,
        error=_truncated_error(outcome.error, ERROR_LENGTH),
        traceback=_truncated_traceback(outcome.traceback),
        note=_truncated_error(outcome.note, NOTE_LENGTH),
        retry_at=outcome.retry_at,
        sent_by_beat=outcome.sent_by_beat,
        retries=outcome.retries,
        pid=outcome.pid,
    )


def _apply_unstarted(session: Session, outcome: Outcome) -> bool:
    if outcome.status == Status.SENT:
        return attempts.undo_start(
            session,
            run_id=outcome.run_id,
            worker=outcome.worker,
            pid=outcome.pid,
            before=outcome.at,
        )
    return attempts.refuse(
        session,
        run_id=outcome.run_id,
        expected_attempt=outcome.attempt,
        status=outcome.status,
        at=outcome.at,
        error=storable_text(outcome.error or "", ERROR_LENGTH),
    )


def storable_text(text: str, length: int) -> str:
    """Return at most ``length`` characters of ``text``, escaped so that each database stores it."""
    clean = text.replace("\x00", "\\x00").encode(errors="backslashreplace").decode()
    return clean if len(clean) <= length else f"{clean[: length - 3]}..."


def _truncated(outcome: Outcome, *, error_length: int) -> Outcome:
    return replace(
        outcome,
        error=_truncated_error(outcome.error, error_length),
        traceback=_truncated_traceback(outcome.traceback),
    )


def _char_count(outcome: Outcome) -> int:
    return sum(len(text or "") for text in (outcome.error, outcome.traceback, outcome.note))


def _truncated_error(text: str | None, length: int) -> str | None:
    return None if text is None else storable_text(text, length)


def _truncated_traceback(text: str | None) -> str | None:
    # The end of a traceback names the error. Its beginning is Celery's code.
    if text is None:
        return None
    clean = storable_text(text, max(len(text) * 4, TRACEBACK_LENGTH))
    return clean if len(clean) <= TRACEBACK_LENGTH else f"...{clean[3 - TRACEBACK_LENGTH :]}"
