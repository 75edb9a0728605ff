"""Decide whether a message may start its run: one UPDATE, and the row where the UPDATE refuses.

    it follows the last attempt, and no worker owns the run        -> start
    it is Celery's retry of the last attempt, or replaces it       -> start: that attempt has ended
    any other message: duplicate, cancelled, expired               -> refuse
    except: the run is ``pending`` or ``sent``, and the message has the same count of retries:
    the task requeued it, or it is one of several copies           -> start
    except: it is redelivered, the task has acks_late, and the run is ``running`` or ``lost``.
    The node that owns the run decides:
        dead: stopped, replaced, or silent for dynbeat_node_timeout  -> start a new attempt
        this process, and it does not execute the run                -> start a new attempt
        another process of this node, which has ended                -> start a new attempt
        otherwise                                                    -> note it on the row, drop it

Without acks_late, a redelivered message never starts a run again. A pool process starts a run
before its main process acknowledges the message, so the broker redelivers the message of a started
run if the main process dies in between. The solo pool even acknowledges after the task. ``on_lost``
alone then decides about a new attempt.

A suspicion neither starts nor drops a run. A noted redelivery is not lost. The node that owns the
run compares it with its pool (``pool_check``), and beat finds silent nodes (``rescue``). If the
attempt is dead, either of them sends the run again. A redelivered message therefore leaves no copy
in the broker, no matter how long the task runs.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto

from sqlalchemy.orm import Session

from celery_dynbeat.common.states import RESTART, START, START_RETRY, Status
from celery_dynbeat.db.models import Node, NodeKind, Run
from celery_dynbeat.store import nodes, runs
from celery_dynbeat.store.runs import attempts


class StartAction(Enum):
    """The guard's decision about a message."""

    START = auto()
    REFUSE = auto()
    #: Drop the message. The row notes that the run must be sent again if its attempt is dead.
    NOTE_REDELIVERY = auto()


@dataclass(frozen=True, slots=True)
class StartDecision:
    """The action for a message. START: ``attempt`` is the number of the started attempt.

    Otherwise, ``reason`` is why the run does not start. ``unfinished`` is true if the run has not
    ended, and another message will end it. ``duplicate`` is true if another message has started it.
    ``undecided`` is true if the database did not say whether it may start.
    """

    action: StartAction
    attempt: int | None = None
    unfinished: bool = False
    reason: str = ""
    duplicate: bool = False
    undecided: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A message as it reached this process.

    - ``expected_attempt`` is the last attempt of the run when the message was sent. None means that
      an old version sent it.
    - ``redelivered`` says that the broker delivers the message again, or that the guard published
      this copy while the database was unreachable. ``acks_late`` is the setting in force for the
      task.
    - ``replaces`` says that the last attempt sent the message by Task.replace().
    - ``expires_at`` is None if the run does not expire.
    - ``worker`` is the name of this node, and ``main_pid`` is its main process. ``pid`` is the
      process that would execute the body. ``executes_here`` returns whether ``pid`` executes the
      run.
    """

    run_id: str
    retries: int
    expected_attempt: int | None
    redelivered: bool
    acks_late: bool
    replaces: bool = False
    expires_at: datetime | None = None
    worker: str
    main_pid: int
    pid: int
    executes_here: Callable[[], bool]


def usual_start(delivery: Delivery, *, now: datetime) -> attempts.AttemptStart | None:
    """Return the start that suffices for most messages, or None if ``decide_start`` must decide.

    ``decide_start`` must also decide if this start changes no row.
    """
    expected, expires_at = delivery.expected_attempt, delivery.expires_at
    if expected is None or (expires_at is not None and expires_at <= now):
        return None
    return _beginning(delivery, expected)


def decide_start(
    session: Session, delivery: Delivery, *, now: datetime, timeout: timedelta
) -> StartDecision:
    """Decide what to do with a message; mark its run as running if the message may start it."""
    if delivery.expires_at is not None and delivery.expires_at <= now:
        # This expires only a run without an attempt that counts. Any other run started in time.
        runs.mark_expired(session, [delivery.run_id], now=now)
    expected = delivery.expected_attempt
    if expected is not None and attempts.start(session, _beginning(delivery, expected), now=now):
        return StartDecision(StartAction.START, expected + 1)
    run = runs.get(session, run_id=delivery.run_id)
    if run is None:
        return StartDecision(StartAction.REFUSE, reason="its row was deleted")
    if _may_start_next(run, delivery):
        beginning = _beginning(delivery, run.attempt)
        return _decision(run, started=attempts.start(session, beginning, now=now))
    if _may_be_orphaned(run, delivery):
        return _decide_redelivery(session, run, delivery, now=now, timeout=timeout)
    return StartDecision(
        StartAction.REFUSE,
        unfinished=run.finished_at is None,
        reason=_refusal_reason(run),
        duplicate=run.attempt > 0,
    )


def _refusal_reason(run: Run) -> str:
    """Return why no message of the run may start it, as far as its row shows."""
    if run.cancelled_at is not None:
        return "a newer run replaced it"
    if run.finished_at is not None:
        return f"it has ended as {run.status}"
    if run.status == Status.RUNNING:
        return f"attempt {run.attempt} is running on {run.worker}"
    return f"it is {run.status} after attempt {run.attempt}, which this message does not follow"


def _decide_redelivery(
    session: Session, run: Run, delivery: Delivery, *, now: datetime, timeout: timedelta
) -> StartDecision:
    node = nodes.get(session, kind=NodeKind.WORKER, name=run.worker or "")
    if _is_dead(run, node, delivery, now=now, timeout=timeout):
        beginning = _beginning(delivery, run.attempt)
        return _decision(run, started=attempts.restart(session, beginning, now=now))
    if attempts.note_redelivery(session, run_id=run.id, attempt=run.attempt):
        return StartDecision(
            StartAction.NOTE_REDELIVERY,
            unfinished=True,
            reason="redelivered while it is running",
            duplicate=True,
        )
    # The attempt ended after it was read, or another attempt started.
    return decide_start(session, delivery, now=now, timeout=timeout)


def _beginning(delivery: Delivery, expected_attempt: int) -> attempts.AttemptStart:
    return attempts.AttemptStart(
        run_id=delivery.run_id,
        expected_attempt=expected_attempt,
        retries=delivery.retries,
        worker=delivery.worker,
        pid=delivery.pid,
        replaces=delivery.replaces,
    )


def _decision(run: Run, *, started: bool) -> StartDecision:
    if started:
        return StartDecision(StartAction.START, run.attempt + 1)
    reason = "another message started it first"
    return StartDecision(StartAction.REFUSE, unfinished=True, reason=reason, duplicate=True)


def _may_start_next(run: Run, delivery: Delivery) -> bool:
    """Return whether a message may start the next attempt without following the last attempt.

    A requeued message names the attempt before the last attempt. Of a run that beat sent again, any
    message with the same count of retries may start the next attempt.
    """
    if run.status in START.sources:
        # A run that its task has postponed waits, then maybe for a hold, quiet hours or a place.
        # Another message of the postponed attempt must not start it meanwhile.
        is_waiting = run.attempt > 0 and run.waited_for is not None and run.ready_at is None
        return run.retries == delivery.retries and not is_waiting
    # Workers of an older version do not count attempts, so the header of their retry is missing or
    # old.
    unrecorded_retry = run.status == Status.RETRYING and run.retry_at is None
    by_old_version = (
        delivery.expected_attempt is None or unrecorded_retry
    ) and delivery.retries > run.retries
    return by_old_version and run.status in START_RETRY.sources


def _may_be_orphaned(run: Run, delivery: Delivery) -> bool:
    return (
        delivery.redelivered
        and delivery.acks_late
        and run.status in RESTART.sources
        and run.retries == delivery.retries
    )


def _is_dead(
    run: Run, node: Node | None, delivery: Delivery, *, now: datetime, timeout: timedelta
) -> bool:
    """Return whether the last attempt of the run is known to be dead."""
    if run.started_at is None or node is None or node.stopped_at is not None:
        return True
    # A node that was silent and has just started the run has not written its next heartbeat yet.
    silent_since = now - timeout
    silent = node.seen_at <= silent_since and run.started_at <= silent_since
    if node.started_at > run.started_at or silent:
        return True
    if node.name != delivery.worker or node.pid != delivery.main_pid:
        return False
    if run.worker_pid == delivery.pid:
        return not delivery.executes_here()
    return run.worker_pid is None or not process_exists(run.worker_pid)


def process_exists(pid: int) -> bool:
    """Return whether a process of this user has the id ``pid``."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        # PermissionError means that the process has ended, and a process of another user has its
        # id.
        return False
    return True
