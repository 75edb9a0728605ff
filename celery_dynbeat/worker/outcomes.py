"""What ended an attempt, and how it is written to the row of the run."""

from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy.orm import Session

from celery_dynbeat.common.states import UNFINISHED, Status
from celery_dynbeat.common.text import NOTE_LENGTH
from celery_dynbeat.db.types import escape_non_ascii
from celery_dynbeat.store.runs import attempts, unfinished
from celery_dynbeat.telemetry import events

#: The statuses by which an attempt ends. The others continue or repeat it.
REPORTED = (frozenset(Status) - set(UNFINISHED)) | {Status.RETRYING}
ERROR_LENGTH = 1_000
TRACEBACK_LENGTH = 8_000


class Subject(NamedTuple):
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


class Outcome(NamedTuple):
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
    status: Status
    at: datetime
    pid: int | None = None
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


def fields_of(outcome: Outcome) -> events.DroppedOutcome:
    """Return the fields of an outcome that is not written."""
    return {
        "owner": outcome.subject.owner,
        "schedule": outcome.subject.schedule,
        "run_id": outcome.run_id,
        "attempt": outcome.reported_attempt,
        "status": outcome.status,
    }


def event_of(outcome: Outcome) -> events.RunEnded:
    """Return the event that reports the outcome."""
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


def in_ascii(outcome: Outcome) -> Outcome:
    """Return the outcome with its texts in ASCII."""
    error, traceback, note = (
        None if text is None else escape_non_ascii(text)
        for text in (outcome.error, outcome.traceback, outcome.note)
    )
    return outcome._replace(error=error, traceback=traceback, note=note)


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
    return attempts.finish(session, attempt_end_of(outcome))


def is_attempt_end(outcome: Outcome) -> bool:
    """Return whether the attempt has ended by itself, or was ended."""
    return outcome.started and outcome.status not in {Status.SENT, Status.PENDING, Status.RUNNING}


def attempt_end_of(outcome: Outcome) -> attempts.AttemptEnd:
    """Return the outcome as the columns of a run store it."""
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


def truncated(outcome: Outcome, *, error_length: int) -> Outcome:
    """Return the outcome with its texts at the lengths that are stored."""
    return outcome._replace(
        error=_truncated_error(outcome.error, error_length),
        traceback=_truncated_traceback(outcome.traceback),
    )


def char_count(outcome: Outcome) -> int:
    """Return the length of all texts of the outcome."""
    return sum(len(text or "") for text in (outcome.error, outcome.traceback, outcome.note))


def _truncated_error(text: str | None, length: int) -> str | None:
    return None if text is None else storable_text(text, length)


def _truncated_traceback(text: str | None) -> str | None:
    # The end of a traceback names the error. Its beginning is Celery's code.
    if text is None:
        return None
    clean = storable_text(text, max(len(text) * 4, TRACEBACK_LENGTH))
    return clean if len(clean) <= TRACEBACK_LENGTH else f"...{clean[3 - TRACEBACK_LENGTH :]}"
