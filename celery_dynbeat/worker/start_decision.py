"""May this message start its run? One UPDATE decides; where it refuses, the row tells why.

    it follows the run's last attempt, which nobody has in hand  -> start
    it is Celery's retry of the run's last attempt               -> start (that one is over)
    any other message: a duplicate, cancelled, or after its expiry -> refuse
    except: the task gave it back to the broker, or it is a copy of one that may still begin
                                                                 -> start
    except: the broker delivered it again, and the run is marked running or lost. The node that has
    the run decides:
        gone, replaced, silent for dynbeat_node_timeout -> start a new attempt
        this node, and it does not execute the run      -> start a new attempt
        alive, as far as this process can know          -> note it on the row, drop the message

A message is never dropped on suspicion, and never started on suspicion. What is noted is not lost:
the node that has the run compares it with its pool (``pool_check``), and beat looks for silent
nodes (``lost``). Either of them has a run that was noted sent again, if its attempt is dead. So a
redelivered message leaves no copy of itself in the broker, however long the task takes.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto

from sqlalchemy.orm import Session

from celery_dynbeat.common.run_states import RESTART, START, START_RETRY, Status
from celery_dynbeat.db.models import Node, NodeKind, Run
from celery_dynbeat.store import attempts, nodes, runs


class Verdict(Enum):
    """What becomes of a message."""

    START = auto()
    REFUSE = auto()
    #: Dropped too, but the row notes that the broker wants another attempt if this one is dead.
    NOTED = auto()


@dataclass(frozen=True, slots=True)
class Decision:
    """The verdict on a message; with START, the number of the attempt that begins.

    ``unfinished``, with REFUSE: the run has yet to end, by another message.
    """

    verdict: Verdict
    attempt: int | None = None
    unfinished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A message as it reached this process.

    ``after`` is the attempt that the message follows; None: a version that did not say so sent it.
    ``worker`` is the name of this node, ``main_pid`` its main process, ``pid`` the process that
    would run the body. ``runs_here`` says whether ``pid`` has the run in progress. ``put_off`` says
    that this is a copy, made while the database was away. ``expires_at`` None: it may start at any
    time.
    """

    run_id: str
    retries: int
    after: int | None
    redelivered: bool
    put_off: bool
    expires_at: datetime | None = None
    worker: str
    main_pid: int
    pid: int
    runs_here: Callable[[], bool]


def judge(session: Session, delivery: Delivery, *, now: datetime, timeout: timedelta) -> Decision:
    """Decide about a message and, when it may start, mark its run as running."""
    if delivery.expires_at is not None and delivery.expires_at <= now:
        # Only what never started. A run in progress, or between two attempts, began in time.
        runs.mark_expired(session, [delivery.run_id], now=now)
    if delivery.after is not None and attempts.start(
        session, _beginning(delivery, after=delivery.after), now=now
    ):
        return Decision(Verdict.START, delivery.after + 1)
    run = runs.get(session, run_id=delivery.run_id)
    if run is None:
        return Decision(Verdict.REFUSE)
    if _may_begin(run, delivery):
        beginning = _beginning(delivery, after=run.attempt)
        return _decision(run, begun=attempts.start(session, beginning, now=now))
    if _may_be_orphan(run, delivery):
        return _judge_redelivered(session, run, delivery, now=now, timeout=timeout)
    return Decision(Verdict.REFUSE, unfinished=run.finished_at is None)


def _judge_redelivered(
    session: Session, run: Run, delivery: Delivery, *, now: datetime, timeout: timedelta
) -> Decision:
    node = nodes.get(session, kind=NodeKind.WORKER, name=run.worker or "")
    if _is_dead(run, node, delivery, now, timeout):
        beginning = _beginning(delivery, after=run.attempt)
        return _decision(run, begun=attempts.restart(session, beginning, now=now))
    if attempts.note_redelivery(session, run_id=run.id, attempt=run.attempt):
        return Decision(Verdict.NOTED)
    # The attempt has ended since it was read, or another has begun.
    return judge(session, delivery, now=now, timeout=timeout)


def _beginning(delivery: Delivery, *, after: int) -> attempts.Beginning:
    return attempts.Beginning(
        run_id=delivery.run_id,
        after=after,
        retries=delivery.retries,
        worker=delivery.worker,
        pid=delivery.pid,
    )


def _decision(run: Run, *, begun: bool) -> Decision:
    if begun:
        return Decision(Verdict.START, run.attempt + 1)
    # Another message was faster.
    return Decision(Verdict.REFUSE, unfinished=True)


def _may_begin(run: Run, delivery: Delivery) -> bool:
    """Return whether a message that does not follow the last attempt may begin the next.

    Given back to the broker, it names the attempt before; a rerun wants any message of its try.
    """
    if run.status in START.sources:
        return run.retries == delivery.retries
    # An older version counts no attempts: its retry names none, or the one that it was sent.
    unnoted = run.status == Status.RETRYING and run.retry_at is None
    by_older = (delivery.after is None or unnoted) and delivery.retries > run.retries
    return by_older and run.status in START_RETRY.sources


def _may_be_orphan(run: Run, delivery: Delivery) -> bool:
    again = delivery.redelivered or delivery.put_off
    return again and run.status in RESTART.sources and run.retries == delivery.retries


def _is_dead(
    run: Run, node: Node | None, delivery: Delivery, now: datetime, timeout: timedelta
) -> bool:
    """Return whether the attempt that the run is marked with is known to be dead."""
    if run.started_at is None or node is None or node.stopped_at is not None:
        return True
    # A node that was silent and has just begun the run has yet to say that it lives.
    silent_since = now - timeout
    silent = node.seen_at <= silent_since and run.started_at <= silent_since
    if node.started_at > run.started_at or silent:
        return True
    here = node.name == delivery.worker and node.pid == delivery.main_pid
    return here and not _in_progress(run, delivery)


def _in_progress(run: Run, delivery: Delivery) -> bool:
    """Return whether a process of this very node has the run in its hands."""
    if run.worker_pid == delivery.pid:
        return delivery.runs_here()
    return run.worker_pid is not None and is_process(run.worker_pid)


def is_process(pid: int) -> bool:
    """Return whether a process of this user has the number ``pid``."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        # Gone; or its number belongs to another user's process now.
        return False
    return True
