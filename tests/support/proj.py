"""The Celery application of the process tests, configured by environment variables.

``DYNBEAT_TEST_CONFIG`` is its configuration as JSON. Each task writes its start to the file
``DYNBEAT_TEST_EVENT_LOG``, which is independent of the package's tables.
"""

import json
import os
import random
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from celery import Celery, signals
from celery.app.task import Task
from celery.exceptions import Ignore, Reject
from celery.schedules import crontab, solar
from celery.utils.log import get_task_logger

from celery_dynbeat import Dynbeat, SkipRun, current_run, note
from tests.support.constants import set_constant, set_constants
from tests.support.event_log import (
    BARE_VARIABLE,
    CONFIG_VARIABLE,
    EVENT_LOG_VARIABLE,
    NAME_VARIABLE,
    EventLog,
)
from tests.support.waiting import wait_until

MAX_WAIT = 60.0


def _schedule_of(written: Any) -> Any:
    # Numbers are seconds. JSON cannot express Celery's schedule classes.
    if not isinstance(written, str):
        return written
    return solar("sunrise", 52.5, 13.4) if written == "solar" else crontab(*written.split())


config: dict[str, Any] = json.loads(os.environ[CONFIG_VARIABLE])
for entry in config.get("beat_schedule", {}).values():
    entry["schedule"] = _schedule_of(entry["schedule"])


set_constants()

if config["broker_url"].startswith("sqla+"):
    # The default is one second, which also delays the stop of a worker. There is no setting: the
    # transport passes its options to create_engine().
    set_constant("kombu.transport.virtual.base.Transport.polling_interval", 0.1)

app = Celery(os.environ.get(NAME_VARIABLE, "proj"))
app.conf.update(config)
event_log = EventLog(Path(os.environ[EVENT_LOG_VARIABLE]))
if BARE_VARIABLE not in os.environ:
    dynbeat = Dynbeat(app)


def _started(task: Task) -> None:
    """Log the start of the body of ``task``."""
    request = task.request
    event_log.write("started", run_id=request.id, retries=request.retries, headers=request.headers)


def _starts(task: Task) -> int:
    """Log the start, and return the number of starts of this run."""
    _started(task)
    return len(event_log.starts(task.request.id))


@app.task(bind=True, name="probe.record")
def record(self: Task, *args: Any, **kwargs: Any) -> str:
    """Succeed."""
    del args, kwargs
    _started(self)
    return "recorded"


@app.task(bind=True, name="probe.last")
def last(self: Task, *args: Any) -> None:
    """Run for up to a second, and log the end."""
    del args
    _started(self)
    time.sleep(random.random())  # noqa: S311 - not a secret
    event_log.write("ended", run_id=self.request.id)


@app.task(bind=True, name="probe.log")
def log(self: Task, secret: str) -> str:
    """Log, print, and return the argument."""
    _started(self)
    get_task_logger("probe").info("one\ntwo", extra={"owner": "forged"})
    sys.stdout.write("printed\n")
    return secret


@app.task(bind=True, name="probe.current")
def current(self: Task, *, is_subtask: bool = False) -> None:
    """Log the current run, send a subtask of itself, and retry once."""
    run = current_run()
    details = run and {
        "run_id": run.run_id,
        "schedule": run.schedule,
        "fire_at": run.fire_at.isoformat(),
        "attempt": run.attempt,
        "origin": run.origin,
        "last_success_at": run.last_success_at and run.last_success_at.isoformat(),
    }
    event_log.write("current", run_id=self.request.id, run=details)
    if not is_subtask and not self.request.retries:
        self.delay(is_subtask=True)
        raise self.retry(countdown=0)


@app.task(bind=True, name="probe.fail")
def fail(self: Task, length: int = 10) -> None:
    """Fail with a message of ``length`` characters."""
    _started(self)
    raise ValueError("x" * length)


@app.task(bind=True, name="probe.fail_once")
def fail_once(self: Task) -> None:
    """Fail at the first start."""
    if _starts(self) == 1:
        reason = "not yet"
        raise ValueError(reason)


@app.task(bind=True, name="probe.retry")
def retry(self: Task, countdown: float = 0) -> None:
    """Retry at the first attempt."""
    _started(self)
    if not self.request.retries:
        raise self.retry(exc=ValueError("not yet"), countdown=countdown)


@app.task(bind=True, name="probe.ignore")
def ignore(self: Task) -> None:
    """Raise Ignore."""
    _started(self)
    raise Ignore


# acks_late, and a class that retries any exception: neither repeats a run that its task skips.
@app.task(bind=True, name="probe.skip", acks_late=True, autoretry_for=(Exception,))
def skip(self: Task) -> None:
    """Skip the run."""
    _started(self)
    note("0 of 2")
    reason = "the account is closed"
    raise SkipRun(reason)


# acks_late, and a class that retries any exception: neither repeats the run before its time.
@app.task(bind=True, name="probe.postpone", acks_late=True, autoretry_for=(Exception,))
def postpone(self: Task, *, seconds: float) -> None:
    """Postpone the run at its first start."""
    _started(self)
    run = current_run()
    assert run is not None
    if run.attempt == 1:
        run.postpone(until=timedelta(seconds=seconds))


# acks_late: a message that is acknowledged before the start cannot be rejected.
@app.task(bind=True, name="probe.reject", acks_late=True)
def reject(self: Task, *, requeue: bool) -> None:
    """Reject the message at the first start."""
    if _starts(self) == 1:
        reason = "not here"
        raise Reject(reason, requeue=requeue)


def _hold(task: Task, gate: str) -> None:
    _started(task)
    wait_until(Path(gate).exists, within=MAX_WAIT, message=f"no test created {gate}")
    event_log.write("ended", run_id=task.request.id)


@app.task(bind=True, name="probe.hold")
def hold(self: Task, gate: str) -> None:
    """Run until the file ``gate`` exists."""
    _hold(self, gate)


@app.task(bind=True, name="probe.hold_late", acks_late=True)
def hold_late(self: Task, gate: str) -> None:
    """Run until the file ``gate`` exists; acknowledge the message at the end."""
    _hold(self, gate)


def _crash_once(task: Task) -> None:
    if _starts(task) == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True, name="probe.crash")
def crash(self: Task) -> None:
    """Kill the process of the task at the first start."""
    _crash_once(self)


@app.task(bind=True, name="probe.leave")
def leave(self: Task) -> None:
    """Exit the process of the task without an exception."""
    _started(self)
    os._exit(3)


@app.task(
    bind=True,
    name="probe.crash_late",
    acks_late=True,
    reject_on_worker_lost=True,
)
def crash_late(self: Task) -> None:
    """Kill the process of the task at the first start; the broker redelivers the message."""
    _crash_once(self)


@signals.before_task_publish.connect(weak=False)
def _before_publish(headers: dict[str, Any], **_: Any) -> None:
    event_log.write("before_publish", run_id=headers["id"])


@signals.after_task_publish.connect(weak=False)
def _after_publish(headers: dict[str, Any], **_: Any) -> None:
    event_log.write("after_publish", run_id=headers["id"])
