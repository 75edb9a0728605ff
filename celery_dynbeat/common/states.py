"""The states of runs and schedules, and the actions of edits.

docs/explanation/run-states.md draws the state machine of a run.

Each transition names the statuses that it starts from and leads to. Each function in ``store/``
executes its transition by one conditional UPDATE and checks the row count.

``attempt`` prevents a second start. It counts the starts of a run. Each message names the attempt
that it follows, and the UPDATE of a start requires that number. Of all messages that follow one
attempt, therefore only one starts the next attempt.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

#: A run that waits for less than this is not late. A shorter ``late_after`` therefore counts as
#: this.
MIN_LATE = timedelta(seconds=1)


class Status(StrEnum):
    """The statuses of a run."""

    PENDING = "pending"
    SENT = "sent"
    RUNNING = "running"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REVOKED = "revoked"
    EXPIRED = "expired"
    LOST = "lost"
    SKIPPED = "skipped"


class Wait(StrEnum):
    """What a run waits for, or last waited for."""

    PLACE = "place"
    HOLD = "hold"
    QUIET = "quiet"
    PREVIOUS = "previous"
    #: Its turn in its batch.
    BATCH = "batch"
    #: Its task has postponed it.
    POSTPONED = "postponed"


#: A pending run that the sweep asks again has no place while it waits for this.
WITHOUT_PLACE = (Wait.HOLD, Wait.QUIET, Wait.PREVIOUS, Wait.BATCH, Wait.POSTPONED)


class Origin(StrEnum):
    """The reason why a run exists."""

    SCHEDULE = "schedule"
    MANUAL = "manual"
    BACKFILL = "backfill"
    RERUN = "rerun"


#: A caller requested such a run, and its instant is not a fire time.
REQUESTED_ORIGINS = (Origin.MANUAL, Origin.RERUN)
#: A caller requested such a run. Neither a pause nor a quarantine revokes it.
KEPT_ORIGINS = (*REQUESTED_ORIGINS, Origin.BACKFILL)
#: Such a run waits for the end of the other runs of its schedule, unless they may overlap.
BATCH_ORIGINS = (Origin.BACKFILL, Origin.RERUN)
#: The next attempt of such a run has not started. It can start, but a cancel still prevents it.
UNSTARTED = (Status.PENDING, Status.SENT)
#: Such a run can still change and has no ``finished_at``.
UNFINISHED = (*UNSTARTED, Status.RUNNING, Status.RETRYING)
#: No worker executes an attempt of such a run. It can be cancelled.
UNOWNED = (*UNSTARTED, Status.RETRYING)
#: A worker executes an attempt of such a run, or executed it when its node fell silent.
OWNED = (Status.RUNNING, Status.LOST)
#: The error of a run that was lost because its worker was told to end at once. It is no failure.
INTERRUPTED = "interrupted by a shutdown of its worker"
#: Such a run can run again, as a new run for the same fire time. So can a run that its task skipped
#: (``can_rerun``).
RERUNNABLE = (Status.FAILED, Status.LOST, Status.REVOKED, Status.EXPIRED, Status.SUCCEEDED)


def was_started(status: str, attempt: int) -> bool:
    """Return whether a row is a run of a task, not a fire time that a policy or a call skipped.

    A run that its task skipped (``SkipRun``) has had an attempt.
    """
    return status != Status.SKIPPED or attempt > 0


def can_rerun(status: str, attempt: int) -> bool:
    """Return whether a run can run again, as a new run for the same fire time."""
    return status in RERUNNABLE or (status == Status.SKIPPED and attempt > 0)


@dataclass(frozen=True, slots=True)
class Transition:
    """A change from any of ``sources`` to any of ``targets``."""

    sources: tuple[Status, ...]
    targets: tuple[Status, ...]


def _transition(sources: Iterable[Status], *targets: Status) -> Transition:
    return Transition(tuple(sources), targets)


#: The broker has confirmed the message.
CONFIRM = _transition(UNSTARTED, Status.SENT)
#: No broker will ever accept the message.
GIVE_UP = _transition(UNSTARTED, Status.FAILED)
#: No worker started the run within expires_after.
EXPIRE = _transition(UNSTARTED, Status.EXPIRED)
#: A call, a pause, a delete, a moved one-off or a newer run cancels the run before its next start.
REVOKE = _transition(UNOWNED, Status.REVOKED)
#: A worker starts the attempt that a message asks for.
START = _transition(UNSTARTED, Status.RUNNING)
#: A worker starts the attempt that Celery's retry or Task.replace() asks for. The previous attempt
#: has ended, even if its end is not recorded yet or its run is ``lost``.
START_RETRY = _transition((Status.RETRYING, *OWNED), Status.RUNNING)
#: The broker delivers a message again, and the worker that had the attempt is dead.
RESTART = _transition(OWNED, Status.RUNNING)
#: The broker delivers a message again, and the node that has the attempt is alive. The row notes
#: it. A ``lost`` run belongs to that node again: the node checks whether it still executes it.
REDELIVER = _transition(OWNED, Status.RUNNING)
#: A worker drops a message without starting it.
REFUSE = _transition(UNOWNED, Status.REVOKED, Status.EXPIRED, Status.FAILED)
#: A task rejects its message so that the broker delivers it again.
REQUEUE = _transition((Status.RUNNING,), Status.SENT)
#: A worker did not execute a run that it may have marked as running. The run is ``lost`` if the
#: worker could not say so before it counted as dead.
UNDO_START = _transition(OWNED, Status.SENT)
#: An attempt ends. The attempt of a ``lost`` run can also end, if its worker was only slow.
FINISH = _transition(
    OWNED,
    *(Status.SUCCEEDED, Status.FAILED, Status.RETRYING, Status.REVOKED, Status.SKIPPED),
)
#: The task postpones its run: the attempt ends, and beat sends the run again later. A run that a
#: newer run replaces is revoked.
POSTPONE = _transition(OWNED, Status.PENDING, Status.REVOKED)
#: The same for a run that must be sent again and whose next attempt has not started.
FINISH_BEFORE_RERUN = _transition(UNSTARTED, *FINISH.targets)
#: The worker is dead, or the broker lost a message of the canvas that replaced the task. The run is
#: revoked if a newer run replaces it.
LOSE = _transition((Status.RUNNING, Status.RETRYING), Status.LOST, Status.REVOKED)
#: The worker is dead, and the schedule asks for another attempt.
RERUN = _transition((Status.RUNNING,), Status.PENDING)
#: The retry of a failed run is due, which beat sends.
SEND_RETRY = _transition((Status.RETRYING,), Status.PENDING)
#: The broker lost the message of Celery's retry.
RESEND_RETRY = _transition((Status.RETRYING,), Status.PENDING)


class State(StrEnum):
    """A state by which ``list()`` and ``count()`` filter."""

    #: Enabled, not finished, not quarantined.
    ACTIVE = "active"
    PAUSED = "paused"
    FINISHED = "finished"
    QUARANTINED = "quarantined"
    #: Active, and a hold of its owner or of everything stops it.
    HELD = "held"
    #: Active, not held, and due for longer than dynbeat_dispatch_timeout.
    OVERDUE = "overdue"
    #: The last ended run failed or was lost.
    FAILING = "failing"


#: The states in which schedules have a ``next_run_at``.
TIMED = frozenset({State.ACTIVE, State.OVERDUE, State.FAILING})


class Action(StrEnum):
    """The action of a row of ``dynbeat_change``. Programs filter by it: a name does not change."""

    CREATE = "create"
    UPDATE = "update"
    PAUSE = "pause"
    RESUME = "resume"
    DELETE = "delete"
    RENAME = "rename"
    SKIP = "skip"
    UNSKIP = "unskip"
    RUN_NOW = "run_now"
    BACKFILL = "backfill"
    CANCEL = "cancel"
    RERUN = "rerun"
    RERUN_MANY = "rerun_many"
    HOLD = "hold"
    RELEASE = "release"
    SET_TIMEZONE = "set_timezone"
    SET_QUIET_HOURS = "set_quiet_hours"
    UPSERT_CALENDAR = "upsert_calendar"
    DELETE_CALENDAR = "delete_calendar"
    ERASE = "erase"


def lag_of(*, sent_at: datetime, due_at: datetime, ready_at: datetime | None) -> timedelta:
    """Return the time from ``due_at`` to the send; from ``ready_at`` for a run that waited.

    A run waits for a place, for the end of a hold or of quiet hours, or for the previous run. The
    wait is not lag. ``ready_at`` after ``sent_at`` belongs to a retry, which waited later.
    """
    if ready_at is None:
        return sent_at - due_at
    return max(sent_at - ready_at, timedelta(0))
