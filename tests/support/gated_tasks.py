"""Tasks whose attempts wait for files, so that a test decides when each attempt ends.

Processes import them with ``fault_site.config["include"] = [INCLUDE]``.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery import shared_task
from celery.app.task import Task
from celery.exceptions import WorkerTerminate

from tests.support.event_log import EVENT_LOG_VARIABLE, EventLog
from tests.support.waiting import wait_until

INCLUDE = "tests.support.gated_tasks"
MAX_WAIT = 60.0
# Celery's shared_task is untyped.
task: Callable[..., Callable[[Any], Any]] = shared_task


def gate_for_attempt(gate: str | Path, attempt: int) -> Path:
    """Return the file that an attempt waits for."""
    return Path(f"{gate}.{attempt}")


def _wait_at_gate(bound: Task, gate: str) -> int:
    headers = bound.request.headers
    attempt: int = headers["dynbeat_attempt"]
    event_log = EventLog(Path(os.environ[EVENT_LOG_VARIABLE]))
    event_log.write(
        "started", run_id=bound.request.id, retries=bound.request.retries, headers=headers
    )
    own_gate = gate_for_attempt(gate, attempt)
    wait_until(own_gate.exists, within=MAX_WAIT, message=f"no test created {own_gate}")
    return attempt


@task(bind=True, name="attempts.hold")
def hold(self: Task, gate: str) -> None:
    """Run until the file of this attempt exists."""
    _wait_at_gate(self, gate)


@task(bind=True, name="attempts.retry_first")
def retry_first(self: Task, gate: str) -> None:
    """Run until the file of this attempt exists; the first attempt then retries."""
    if _wait_at_gate(self, gate) == 1:
        raise self.retry(exc=ValueError("not yet"), countdown=0)


@task(bind=True, name="attempts.hold_late", acks_late=True)
def hold_late(self: Task, gate: str) -> None:
    """Run until the file of this attempt exists; acknowledge the message at the end."""
    _wait_at_gate(self, gate)


@task(bind=True, name="attempts.hold_rejecting", acks_late=True, reject_on_worker_lost=True)
def hold_rejecting(self: Task, gate: str) -> None:
    """Run until the file exists. If the pool process dies, the broker redelivers the message."""
    _wait_at_gate(self, gate)


@task(bind=True, name="attempts.hold_retrying", retry_on_worker_lost=True, default_retry_delay=0)
def hold_retrying(self: Task, gate: str) -> None:
    """Run until the file exists. If the pool process dies, the main process sends a retry."""
    _wait_at_gate(self, gate)


@task(bind=True, name="attempts.hold_limited", acks_late=True, acks_on_timeout=False)
def hold_limited(self: Task, gate: str) -> None:
    """Run until the file exists. A hard time limit returns the message to the broker."""
    _wait_at_gate(self, gate)


class DiesAfterItsResult(Task):  # type: ignore[misc]
    """A task whose process dies after its result is stored and before its outcome is recorded."""

    def on_success(self, *_: Any) -> None:
        """Kill the process of the task. Celery would send task_success after this method."""
        os.kill(os.getpid(), signal.SIGKILL)


@task(bind=True, name="attempts.hold_stored", base=DiesAfterItsResult)
def hold_stored(self: Task, gate: str) -> None:
    """Run until the file of this attempt exists."""
    _wait_at_gate(self, gate)


@task(bind=True, name="attempts.leave_first")
def leave_first(self: Task, gate: str) -> None:
    """Run until the file exists; the first attempt then ends its thread, unseen by Celery."""
    if _wait_at_gate(self, gate) == 1:
        # Celery takes it for the end of the worker, and reports no end of the task.
        raise WorkerTerminate
