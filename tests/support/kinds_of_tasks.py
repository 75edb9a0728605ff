"""Tasks of each kind, and how a run of each kind ends.

Processes import the tasks with ``site.config["include"] = [INCLUDE]``.
"""

import os
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from celery import chain, chord, current_app, current_task, group, shared_task
from celery.app.task import Task
from celery.exceptions import SoftTimeLimitExceeded

from tests.support.event_log import EVENT_LOG_VARIABLE, EventLog

INCLUDE = "tests.support.kinds_of_tasks"
#: Seconds. Longer than each time limit, and short enough for a pool without time limits.
LONG = 2.0


class Kind(NamedTuple):
    """The end of a run. ``starts`` counts the starts of bodies under the id of the run."""

    status: str
    attempt: int
    starts: int
    error: str = ""
    task: str = ""
    fields: Mapping[str, Any] = {}


def _started(task: Task) -> None:
    log = EventLog(Path(os.environ[EVENT_LOG_VARIABLE]))
    log.write("started", run_id=task.request.id, headers=task.request.headers)


# Celery's shared_task is untyped.
shared: Callable[..., Callable[[Any], Any]] = shared_task


def _kind(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Register a function ``_f`` as the task ``kind.f``, which logs its start."""

    def register(body: Callable[..., Any]) -> Any:
        def run(self: Task, *args: Any, **kwargs: Any) -> Any:
            _started(self)
            return body(*args, **kwargs)

        return shared(bind=True, name=f"kind{body.__name__.replace('_', '.', 1)}", **options)(run)

    return register


class _Called(Task):  # type: ignore[misc]
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


@_kind()
def _returns(*_: Any) -> str:
    return "done"


@_kind(acks_late=True)
def _acks_late() -> None: ...


@_kind(ignore_result=True)
def _ignores_result() -> None: ...


@_kind(base=_Called)
def _class_based() -> None: ...


@_kind()
def _raises(*_: Any) -> None:
    raise ValueError("no")


@_kind(autoretry_for=(ValueError,), default_retry_delay=0, retry_jitter=False, max_retries=1)
def _retries_and_fails() -> None:
    raise ValueError("no")


@_kind()
def _returns_an_unserializable() -> object:
    return object()


@_kind()
def _calls_a_task() -> Any:
    return current_app.tasks["kind.quiet"]()


@_kind()
def _applies_eagerly() -> None:
    current_app.tasks["kind.quiet_retry"].apply()
    current_app.tasks["kind.quiet_failure"].apply()


@_kind()
def _retries_always_eager() -> None:
    _with_always_eager(
        lambda: None if current_task.request.retries else current_task.retry(countdown=0)
    )


def _with_always_eager(call: Callable[[], Any]) -> None:
    current_app.conf.task_always_eager = True
    try:
        call()
    finally:
        current_app.conf.task_always_eager = False


@_kind()
def _sends_a_canvas(canvas: str) -> None:
    _canvas(canvas, "quiet").delay()


@_kind()
def _is_replaced(by: str, ending: str = "returns") -> None:
    raise current_task.replace(_canvas(by, ending))


@_kind()
def _is_replaced_twice(ending: str) -> None:
    raise current_task.replace(current_app.tasks["kind.is_replaced"].si("task", ending))


def _canvas(name: str, ending: str) -> Any:
    quiet = current_app.tasks["kind.quiet"].si()
    last = current_app.tasks[f"kind.{ending}"].si()
    return {
        "task": last,
        "chain": chain(quiet, last),
        "group": group(quiet, last),
        "chord": chord([quiet, quiet], last),
        "failing chain": chain(current_app.tasks["kind.quiet_failure"].si(), last),
        "failing chord": chord([quiet, current_app.tasks["kind.quiet_failure"].si()], last),
    }[name]


@_kind()
def _sleeps() -> None:
    time.sleep(LONG)


@_kind()
def _catches_the_soft_limit() -> None:
    try:
        time.sleep(LONG)
    except SoftTimeLimitExceeded:
        return


@_kind()
def _exits() -> None:
    raise SystemExit(3)


@_kind()
def _interrupts() -> None:
    raise KeyboardInterrupt


class Unusual(BaseException):
    """Not an Exception."""


@_kind()
def _raises_a_base_exception() -> None:
    raise Unusual("no")


@_kind()
def _exits_its_greenlet() -> None:
    from gevent import GreenletExit

    raise GreenletExit


@_kind()
def _times_out() -> None:
    import gevent

    with gevent.Timeout(0.1):
        gevent.sleep(LONG)


# What other tasks send: no start of a run.
@shared(name="kind.quiet")
def quiet(*_: Any) -> str:
    """Succeed."""
    return "quiet"


@shared(bind=True, name="kind.quiet_retry")
def quiet_retry(self: Task) -> None:
    """Retry once."""
    if not self.request.retries:
        raise self.retry(countdown=0)


@shared(name="kind.quiet_failure")
def quiet_failure() -> None:
    """Fail."""
    raise ValueError("quiet")


_POLICY: Mapping[str, Any] = {"retry": {"max_retries": 2, "backoff": 1, "factor": 1}}

KINDS: Mapping[str, Kind] = {
    "returns": Kind("succeeded", 1, 1),
    "acks late": Kind("succeeded", 1, 1, task="acks_late"),
    "ignores its result": Kind("succeeded", 1, 1, task="ignores_result"),
    "class-based": Kind("succeeded", 1, 1, task="class_based"),
    "raises": Kind("failed", 1, 1, "ValueError: no"),
    "raises, with a policy": Kind("failed", 3, 3, "ValueError: no", "raises", _POLICY),
    "retries": Kind("succeeded", 2, 2, task="probe.retry"),
    "retries and fails, with a policy": Kind(
        "failed", 3, 3, "ValueError: no", "retries_and_fails", _POLICY
    ),
    "rejects, with a policy": Kind(
        *("failed", 1, 1, "not here", "probe.reject"),
        fields={"kwargs": {"requeue": False}, **_POLICY},
    ),
    "replaced and fails, with a policy": Kind(
        *("failed", 2, 2, "ValueError: no", "is_replaced"),
        fields={"args": ["task", "raises"], **_POLICY},
    ),
    "retries and fails": Kind("failed", 2, 2, "ValueError: no", task="retries_and_fails"),
    "ignores": Kind("succeeded", 1, 1, "the task raised Ignore", task="probe.ignore"),
    "skips": Kind("skipped", 1, 1, "the account is closed", task="probe.skip"),
    "skips, with a policy": Kind("skipped", 1, 1, "the account is closed", "probe.skip", _POLICY),
    "rejects": Kind(
        "failed", 1, 1, "not here", task="probe.reject", fields={"kwargs": {"requeue": False}}
    ),
    "requeues": Kind("succeeded", 2, 2, task="probe.reject", fields={"kwargs": {"requeue": True}}),
    "revoked": Kind(
        "revoked", 0, 0, "revoked before", task="returns", fields={"options": {"countdown": 3}}
    ),
    "expires": Kind(
        *("expired", 0, 0, "not started", "returns"),
        fields={"expires_after": 0.5, "options": {"countdown": 1}},
    ),
    "unregistered": Kind("failed", 0, 0, "NotRegistered: kind.missing", task="missing"),
    "wrong arguments": Kind("failed", 1, 0, "TypeError", "probe.ignore", {"args": [1]}),
    "unserializable": Kind("failed", 1, 1, "EncodeError", task="returns_an_unserializable"),
    "calls a task": Kind("succeeded", 1, 1, task="calls_a_task"),
    "applies eagerly": Kind("succeeded", 1, 1, task="applies_eagerly"),
    "retries always eager": Kind("succeeded", 1, 2, task="retries_always_eager"),
    "chain": Kind("succeeded", 1, 1, "", "sends_a_canvas", {"args": ["chain"]}),
    "group": Kind("succeeded", 1, 1, "", "sends_a_canvas", {"args": ["group"]}),
    "chord": Kind("succeeded", 1, 1, "", "sends_a_canvas", {"args": ["chord"]}),
    "replaced": Kind("succeeded", 2, 2, "", "is_replaced", {"args": ["task"]}),
    "replaced and fails": Kind(
        "failed", 2, 2, "ValueError: no", "is_replaced", {"args": ["task", "raises"]}
    ),
    "replaced twice": Kind("succeeded", 3, 3, "", "is_replaced_twice", {"args": ["returns"]}),
    "replaced by a chain": Kind("succeeded", 2, 2, "", "is_replaced", {"args": ["chain"]}),
    "replaced by a group": Kind("succeeded", 2, 1, "", "is_replaced", {"args": ["group"]}),
    "replaced by a chord": Kind("succeeded", 2, 2, "", "is_replaced", {"args": ["chord"]}),
    "replaced by a failing chain": Kind(
        "failed", 1, 1, "ValueError: quiet", "is_replaced", {"args": ["failing chain"]}
    ),
    "replaced by a failing chord": Kind(
        "failed", 1, 1, "ValueError: quiet", "is_replaced", {"args": ["failing chord"]}
    ),
    # TimeLimitExceeded; Timeout in the gevent pool.
    "hard time limit": Kind("failed", 1, 1, "Time", "sleeps", {"options": {"time_limit": 1}}),
    "hard time limit, with a policy": Kind(
        "failed", 3, 3, "Time", "sleeps", {"options": {"time_limit": 1}, **_POLICY}
    ),
    "soft time limit": Kind(
        "failed", 1, 1, "SoftTimeLimitExceeded", "sleeps", {"options": {"soft_time_limit": 1}}
    ),
    "catches the limit": Kind(
        *("succeeded", 1, 1, "", "catches_the_soft_limit"),
        fields={"options": {"soft_time_limit": 1}},
    ),
    "base exception": Kind("failed", 1, 1, "Unusual", task="raises_a_base_exception"),
    # A pool process ends with these two, and Celery reports a lost worker.
    "exits": Kind("failed", 1, 1, task="exits"),
    "exits, with a policy": Kind("failed", 3, 3, task="exits", fields=_POLICY),
    "interrupts": Kind("failed", 1, 1, "KeyboardInterrupt", task="interrupts"),
    "exits its greenlet": Kind("revoked", 1, 1, "GreenletExit", task="exits_its_greenlet"),
    "times out": Kind("failed", 1, 1, "Timeout: 0.1 seconds", task="times_out"),
}
#: What Celery's pools do not support. In the solo pool, a BaseException ends the worker.
UNSUPPORTED: Mapping[str, Collection[str]] = {
    "prefork": {"exits its greenlet", "times out"},
    "spawn": {"exits its greenlet", "times out"},
    "threads": {
        *("hard time limit", "hard time limit, with a policy", "soft time limit"),
        *("exits its greenlet", "times out"),
    },
    "gevent": {"soft time limit"},
    "solo": {
        *("hard time limit", "hard time limit, with a policy", "soft time limit"),
        *("exits its greenlet", "times out"),
        *("base exception", "exits", "exits, with a policy", "interrupts"),
    },
}
