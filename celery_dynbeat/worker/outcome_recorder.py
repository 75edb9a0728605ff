"""How runs ended, written to the history; kept while the database is away.

An outcome that cannot be written is kept in the memory of its process (at most KEPT of them, the
oldest are dropped and logged) and written by a thread as soon as the database answers. Nothing is
ever raised into the task. A pool process that ends hands what it keeps to the main process of its
worker. What a process keeps when it is killed is lost: its runs stay ``running`` and are found with
its node.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, StatementError
from sqlalchemy.orm import Session

from celery_dynbeat.common.back_off import BackOff
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.run_states import UNFINISHED, Status
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.encoding import escape_non_ascii
from celery_dynbeat.db.engine import Database
from celery_dynbeat.runtime.pausing import pause_if_failing
from celery_dynbeat.store import attempts, overlaps, stuck_runs

logger = logging.getLogger(__name__)

KEPT = 10_000
#: Characters of the errors and tracebacks of all that is kept; what comes later is kept in brief.
KEPT_TEXT = 8_000_000
BRIEF_ERROR_LENGTH = 100
#: Run ids in one log record.
NAMED = 10
ERROR_LENGTH = 1_000
TRACEBACK_LENGTH = 8_000
#: In seconds, between two attempts to write the buffered outcomes.
FIRST_DELAY, MAX_DELAY = 0.5, 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an attempt ended. ``attempt`` None: the reporter does not know which one it was.

    ``started`` False: a message was dropped that nobody began; ``attempt`` is the one it follows.
    ``resend_at`` is given with status ``sent``: the broker was asked to deliver the message again;
    with ``started`` False, process ``pid`` has not begun what it may have been marked to run.
    ``retry_at`` comes with ``retrying``: when Celery means to begin the next attempt.
    With status ``running`` the attempt continues, though it was to be ended; ``error`` says why.
    ``awaited``: another run of the schedule may wait for this one to end.
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
    resend_at: datetime | None = None
    retry_at: datetime | None = None
    awaited: bool = False


class Recorder:
    """Writes outcomes, in the order in which they came."""

    def __init__(
        self,
        database: Database,
        *,
        settings: Settings,
        notify: Callable[[Session], None],
    ) -> None:
        self._database = database
        self._settings = settings
        self._announce = notify
        self._kept: deque[Outcome] = deque()
        self._kept_text = 0
        # Of whoever writes what is kept; of whoever changes what is kept, for a moment.
        self._writing, self._changing = threading.Lock(), threading.Lock()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def record(self, outcome: Outcome) -> None:
        """Write ``outcome`` now, or keep it until the database is back."""
        if not self._kept:
            try:
                self._write(outcome)
            # Also a soft time limit that strikes just now: Celery would swallow it, and the end.
            except Exception as error:  # noqa: BLE001
                self._keep(outcome, error)
            return
        self._keep(outcome, None)

    def buffer(self, outcome: Outcome) -> None:
        """Have the thread write ``outcome``, which another process could not write."""
        self._keep(outcome, None)

    def has_buffered(self, run_id: str) -> bool:
        """Return whether an outcome of the run has yet to be written."""
        return any(outcome.run_id == run_id for outcome in self._kept.copy())

    def flush(self) -> bool:
        """Write what is kept, in order; False when the database is still away."""
        with self._writing:
            while self._kept:
                outcome = self._kept[0]
                try:
                    self._write(outcome)
                except Exception as error:  # noqa: BLE001
                    if not _is_permanent(error):
                        return False
                    self._report_dropped([outcome], error)
                with self._changing:
                    # It may have been dropped meanwhile.
                    if self._kept and self._kept[0] is outcome:
                        self._pop()
        return True

    def hand_over(self, send: Callable[[Outcome], bool]) -> None:
        """Give what is kept to ``send``, in order, until it returns False for one.

        An outcome that the thread is just writing is given too. The second write of it changes
        nothing: its attempt has ended.
        """
        self._closing.set()
        handed_over = 0
        with self._changing:
            while self._kept and send(self._kept[0]):
                self._pop()
                handed_over += 1
        if handed_over:
            logger.info(
                "%s outcomes of runs handed over to the main process",
                handed_over,
                extra={"event": Event.OUTCOMES_HANDED_OVER},
            )

    def close(self) -> None:
        """Try once more to write what is kept, and log what is lost."""
        self._closing.set()
        if self._kept and not self.flush():
            self._report_dropped(self._kept.copy(), None)

    def _write(self, outcome: Outcome) -> None:
        try:
            self._write_as_it_is(outcome)
        except Exception as error:
            plain = _plain(outcome)
            if plain == outcome or not self._is_unstorable(error):
                raise
            # Perhaps the encoding of the database, or of the connection, has no such letter.
            self._write_as_it_is(plain)

    def _is_unstorable(self, error: Exception) -> bool:
        if isinstance(error, DBAPIError) and self._database.capabilities.is_unstorable(error):
            return True
        return _is_permanent(error)

    def _write_as_it_is(self, outcome: Outcome) -> None:
        # The end of a run that another waits for, and what becomes of that one, are one decision.
        run = self._database.run if outcome.awaited else self._database.run_autocommit
        written = run(lambda session: self._write_within(session, outcome))
        if written and outcome.status == Status.FAILED:
            # In a transaction of its own: schedules are locked before their runs.
            self._database.run(lambda session: self._pause_if_failing(session, outcome))

    def _write_within(self, session: Session, outcome: Outcome) -> bool:
        written = write(session, outcome)
        ended = outcome.awaited and outcome.status not in UNFINISHED
        if (
            written
            and ended
            and overlaps.make_buffered_overdue(session, run_id=outcome.run_id, now=outcome.at)
        ):
            self._announce(session)
        return written

    def _pause_if_failing(self, session: Session, outcome: Outcome) -> None:
        schedule_id, most = stuck_runs.pause_policy(session, run_id=outcome.run_id)
        limit = self._settings.pause_after_failures if most is None else most
        if schedule_id is not None and limit:
            pause_if_failing(session, schedule_id=schedule_id, limit=limit, now=outcome.at)

    def _keep(self, outcome: Outcome, error: Exception | None) -> None:
        if error is not None:
            logger.warning(
                "outcome of run %s kept until the database is back: %s",
                outcome.run_id,
                type(error).__name__,
                extra={"event": Event.OUTCOME_BUFFERED, "run_id": outcome.run_id},
            )
        with self._changing:
            if len(self._kept) >= KEPT:
                self._report_dropped([self._pop()], None)
            self._append(outcome)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._flush_until_empty, name="dynbeat-outcomes", daemon=True
                )
                self._thread.start()

    def _append(self, outcome: Outcome) -> None:
        kept = _clipped(outcome, error_length=ERROR_LENGTH)
        if self._kept_text + _text_length(kept) > KEPT_TEXT:
            kept = replace(_clipped(outcome, error_length=BRIEF_ERROR_LENGTH), traceback=None)
        self._kept_text += _text_length(kept)
        self._kept.append(kept)

    def _pop(self) -> Outcome:
        outcome = self._kept.popleft()
        self._kept_text -= _text_length(outcome)
        return outcome

    def _flush_until_empty(self) -> None:
        back_off = BackOff(first=FIRST_DELAY, maximum=MAX_DELAY)
        while not self._closing.wait(back_off.next_delay()):
            self.flush()
            with self._changing:
                if not self._kept:
                    self._thread = None
                    return

    def _report_dropped(self, outcomes: Sequence[Outcome], error: Exception | None) -> None:
        ids = [outcome.run_id for outcome in outcomes]
        logger.error(
            "%s outcomes of runs dropped: %s (%s%s)",
            len(ids),
            "the database was away for too long" if error is None else type(error).__name__,
            ", ".join(ids[:NAMED]),
            ", ..." if len(ids) > NAMED else "",
            extra={"event": Event.OUTCOME_DROPPED},
        )


def _plain(outcome: Outcome) -> Outcome:
    """Return the outcome with its texts in ASCII."""
    error, traceback = (
        None if text is None else escape_non_ascii(text)
        for text in (outcome.error, outcome.traceback)
    )
    return replace(outcome, error=error, traceback=traceback)


def _is_permanent(error: Exception) -> bool:
    """Return whether an outcome will never be written, however long the others behind it wait."""
    if isinstance(error, DBAPIError):
        return isinstance(error, (DataError, IntegrityError))
    return isinstance(error, (ArithmeticError, StatementError, TypeError, ValueError))


def write(session: Session, outcome: Outcome) -> bool:
    """Apply ``outcome`` where the state of the run allows it; return whether it did."""
    if not outcome.started:
        return _write_unstarted(session, outcome)
    if outcome.status == Status.SENT:
        assert outcome.resend_at is not None  # noqa: S101 - see Outcome
        return attempts.give_back(
            session,
            run_id=outcome.run_id,
            attempt=outcome.attempt or 0,
            overdue_at=outcome.resend_at,
        )
    if outcome.status == Status.RUNNING:
        return overlaps.note_termination_failure(
            session, run_ids=[outcome.run_id], reason=outcome.error or ""
        )
    return attempts.finish(
        session,
        run_id=outcome.run_id,
        attempt=outcome.attempt,
        worker=outcome.worker,
        status=outcome.status,
        at=outcome.at,
        error=_head(outcome.error, ERROR_LENGTH),
        traceback=_tail(outcome.traceback),
        retry_at=outcome.retry_at,
    )


def _write_unstarted(session: Session, outcome: Outcome) -> bool:
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
        after=outcome.attempt,
        status=outcome.status,
        at=outcome.at,
        error=storable(outcome.error or "", ERROR_LENGTH),
    )


def storable(text: str, length: int) -> str:
    """Return the beginning of ``text``, in characters that every database takes."""
    clean = text.replace("\x00", "\\x00").encode(errors="backslashreplace").decode()
    return clean if len(clean) <= length else f"{clean[: length - 3]}..."


def _clipped(outcome: Outcome, *, error_length: int) -> Outcome:
    error, traceback = _head(outcome.error, error_length), _tail(outcome.traceback)
    return replace(outcome, error=error, traceback=traceback)


def _text_length(outcome: Outcome) -> int:
    return len(outcome.error or "") + len(outcome.traceback or "")


def _head(text: str | None, length: int) -> str | None:
    return None if text is None else storable(text, length)


def _tail(text: str | None) -> str | None:
    # The end of a traceback says what happened; its beginning is Celery's own.
    if text is None:
        return None
    clean = storable(text, max(len(text) * 4, TRACEBACK_LENGTH))
    return clean if len(clean) <= TRACEBACK_LENGTH else f"...{clean[3 - TRACEBACK_LENGTH :]}"
