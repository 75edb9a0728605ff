"""May this message start its run? One UPDATE decides; where it refuses, the row tells why.

    message, first try      pending, sent                       -> start
    message, retry n        not ended, and fewer than n retries -> start (attempt n-1 is over)
    any other message       a duplicate                         -> refuse
    except: the broker delivered it again, and the run is still marked running. Then the node that
    runs it is asked for:
        gone, replaced, silent for dynbeat_node_timeout, or the pool process is dead -> start anew
        has given a sign of life since the message was put off, or runs it right here -> refuse
        too early to tell                                                            -> put off

A message is never dropped on suspicion, and never started on suspicion.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto

from sqlalchemy.orm import Session

from celery_dynbeat.db.models import Node, NodeKind, Run, Status
from celery_dynbeat.store import attempts, nodes, runs


class Verdict(Enum):
    """What becomes of a message."""

    START = auto()
    REFUSE = auto()
    PUT_OFF = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A message as it reached this process.

    ``worker`` is the name of this node, ``main_pid`` its main process, ``pid`` the process that
    would run the body. ``runs_here`` says whether ``pid`` has the run in progress. ``put_off_at``
    is when the message was put off before, ``put_off_by`` by which process.
    """

    run_id: str
    retries: int
    redelivered: bool
    put_off_at: datetime | None
    put_off_by: str | None = None
    worker: str
    main_pid: int
    pid: int
    runs_here: Callable[[], bool]


def judge(session: Session, delivery: Delivery, *, now: datetime, timeout: timedelta) -> Verdict:
    """Decide about a message and, when it may start, mark its run as running."""
    started = attempts.start(
        session,
        run_id=delivery.run_id,
        retries=delivery.retries,
        worker=delivery.worker,
        pid=delivery.pid,
        now=now,
    )
    if started:
        return Verdict.START
    run = runs.get(session, run_id=delivery.run_id)
    if run is None or not _may_be_orphan(run, delivery):
        return Verdict.REFUSE
    node = nodes.get(session, kind=NodeKind.WORKER, name=run.worker or "")
    verdict = _fate(run, node, delivery, now, timeout)
    if verdict is Verdict.START and not _restart(session, run, delivery, now):
        return Verdict.REFUSE
    return verdict


def _may_be_orphan(run: Run, delivery: Delivery) -> bool:
    again = delivery.redelivered or delivery.put_off_at is not None
    in_hand = run.status in {Status.RUNNING, Status.LOST}
    return again and in_hand and run.retries == delivery.retries


def _fate(
    run: Run,
    node: Node | None,
    delivery: Delivery,
    now: datetime,
    timeout: timedelta,
) -> Verdict:
    if run.started_at is None or node is None or node.stopped_at is not None:
        return Verdict.START
    if node.started_at > run.started_at or node.seen_at <= now - timeout:
        return Verdict.START
    if _never_began(run, delivery):
        return Verdict.START
    if node.name == delivery.worker and node.pid == delivery.main_pid:
        return Verdict.REFUSE if _in_progress(run, delivery) else Verdict.START
    if delivery.put_off_at is not None and node.seen_at > delivery.put_off_at:
        return Verdict.REFUSE
    return Verdict.PUT_OFF


def _never_began(run: Run, delivery: Delivery) -> bool:
    """Return whether the row was marked by a process that did not get to know it.

    The answer to its commit was lost, so it put the message off and started nothing.
    """
    if run.started_at is None or delivery.put_off_at is None or run.worker_pid is None:
        return False
    by = process_name(run.worker or "", run.worker_pid)
    return by == delivery.put_off_by and run.started_at <= delivery.put_off_at


def process_name(worker: str, pid: int) -> str:
    """Return the name of one process of a worker, for the header of a message put off."""
    return f"{worker}/{pid}"


def _in_progress(run: Run, delivery: Delivery) -> bool:
    """Return whether a process of this very node has the run in its hands."""
    if run.worker_pid == delivery.pid:
        return delivery.runs_here()
    if run.worker_pid is None:
        return False
    try:
        os.kill(run.worker_pid, 0)
    except (ProcessLookupError, PermissionError):
        # Gone; or its number belongs to somebody else's process by now.
        return False
    return True


def _restart(session: Session, run: Run, delivery: Delivery, now: datetime) -> bool:
    return attempts.restart(
        session,
        run_id=run.id,
        retries=delivery.retries,
        started_at=run.started_at,
        worker=delivery.worker,
        pid=delivery.pid,
        now=now,
    )
