"""Tasks whose attempts a test ends one by one: each waits for a file of its own.

Processes know them by ``fault_site.config["include"] = [INCLUDE]``.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery import shared_task
from celery.app.task import Task

from tests.support.event_log import EVENT_LOG_VARIABLE, EventLog
from tests.support.waiting import wait_until

INCLUDE = "tests.support.gated_tasks"
HELD_AT_MOST = 60.0
# Celery's own is untyped.
task: Callable[..., Callable[[Any], Any]] = shared_task


def gate_for_attempt(gate: str | Path, attempt: int) -> Path:
    """Return the file for which an attempt waits."""
    return Path(f"{gate}.{attempt}")


def _held(bound: Task, gate: str) -> int:
    headers = bound.request.headers
    attempt: int = headers["dynbeat_attempt"]
    event_log = EventLog(Path(os.environ[EVENT_LOG_VARIABLE]))
    event_log.write(
        "started", run_id=bound.request.id, retries=bound.request.retries, headers=headers
    )
    own = gate_for_attempt(gate, attempt)
    wait_until(own.exists, within=HELD_AT_MOST, message=f"nobody opened {own}")
    return attempt


@task(bind=True, name="attempts.hold")
def hold(self: Task, gate: str) -> None:
    """Run until the file of this attempt is there."""
    _held(self, gate)


@task(bind=True, name="attempts.retry_first")
def retry_first(self: Task, gate: str) -> None:
    """Do the same; then the first attempt asks for another try."""
    if _held(self, gate) == 1:
        raise self.retry(exc=ValueError("not yet"), countdown=0)


@task(bind=True, name="attempts.hold_late", acks_late=True)
def hold_late(self: Task, gate: str) -> None:
    """Run until the file of this attempt is there; the message is acknowledged at the end."""
    _held(self, gate)


@task(bind=True, name="attempts.hold_rejecting", acks_late=True, reject_on_worker_lost=True)
def hold_rejecting(self: Task, gate: str) -> None:
    """Do the same; should the pool process die, the broker delivers the message again."""
    _held(self, gate)


@task(bind=True, name="attempts.hold_retrying", retry_on_worker_lost=True, default_retry_delay=0)
def hold_retrying(self: Task, gate: str) -> None:
    """Do the same; should the pool process die, Celery's main process sends a retry."""
    _held(self, gate)


@task(bind=True, name="attempts.hold_limited", acks_late=True, acks_on_timeout=False)
def hold_limited(self: Task, gate: str) -> None:
    """Do the same; the message goes back to the broker when a hard time limit is exceeded."""
    _held(self, gate)


class DiesAfterItsResult(Task):  # type: ignore[misc]
    """A task whose process is killed when its result is stored and its outcome is not recorded."""

    def on_success(self, *_: Any) -> None:
        """Kill the own process: Celery sends task_success after this."""
        os.kill(os.getpid(), signal.SIGKILL)


@task(bind=True, name="attempts.hold_stored", base=DiesAfterItsResult)
def hold_stored(self: Task, gate: str) -> None:
    """Run until the file of this attempt is there."""
    _held(self, gate)


@task(bind=True, name="attempts.leave_first")
def leave_first(self: Task, gate: str) -> None:
    """Do the same; then the first attempt ends its thread, and Celery does not notice."""
    if _held(self, gate) == 1:
        raise SystemExit
