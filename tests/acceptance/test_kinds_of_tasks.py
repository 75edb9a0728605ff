"""A run of an unusual kind of task ends as its body does, and starts once for each attempt.

The worker imports this module, which registers the tasks. ``test_worker_outcomes.py`` has the
usual kinds.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from celery import Celery, chain, chord, current_app, current_task, group, shared_task
from celery.app.task import Task
from celery.exceptions import SoftTimeLimitExceeded
from sqlalchemy import create_engine

from celery_dynbeat import ConfigurationError, Dynbeat
from tests.support.event_log import EVENT_LOG_VARIABLE, EventLog
from tests.support.versions import needs_celery
from tests.support.waiting import wait_until

#: Seconds. Each spawned process imports the application.
ENDS_WITHIN = 180
UNFINISHED = {"pending", "sent", "running", "retrying"}
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


def kind(**options):
    """Register a function ``f`` as the task ``kind.f``, which logs its start."""

    def register(body):
        def run(self, *args, **kwargs):
            log = EventLog(Path(os.environ[EVENT_LOG_VARIABLE]))
            log.write("started", run_id=self.request.id)
            return body(*args, **kwargs)

        return shared_task(bind=True, name=f"kind.{body.__name__}", **options)(run)

    return register


class Called(Task):
    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **kwargs)


@kind(base=Called)
def returns(*_):
    return "done"


@kind()
def raises(*_):
    raise ValueError("no")


@kind(autoretry_for=(ValueError,), default_retry_delay=0, retry_jitter=False, max_retries=1)
def retries_and_fails():
    raise ValueError("no")


@kind()
def returns_an_unserializable():
    return object()


@kind()
def calls_a_task():
    return current_app.tasks["kind.quiet"]()


@kind()
def applies_eagerly():
    current_app.tasks["kind.quiet_retry"].apply()
    current_app.tasks["kind.quiet_failure"].apply()


@kind()
def retries_always_eager():
    current_app.conf.task_always_eager = True
    try:
        if not current_task.request.retries:
            current_task.retry(countdown=0)
    finally:
        current_app.conf.task_always_eager = False


@kind()
def sends_a_canvas(name):
    canvas(name, "quiet").delay()


@kind()
def is_replaced(by, ending="returns"):
    raise current_task.replace(canvas(by, ending))


@kind()
def is_replaced_twice(ending):
    raise current_task.replace(current_app.tasks["kind.is_replaced"].si("task", ending))


def canvas(name, ending):
    task = {each: current_app.tasks[f"kind.{each}"].si() for each in ("quiet", "quiet_failure")}
    first, failure, last = *task.values(), current_app.tasks[f"kind.{ending}"].si()
    return {
        "task": last,
        "chain": chain(first, last),
        "group": group(first, last),
        "chord": chord([first, first], last),
        "failing chain": chain(failure, last),
        "failing chord": chord([first, failure], last),
    }[name]


@kind()
def sleeps():
    time.sleep(LONG)


@kind()
def catches_the_soft_limit():
    try:
        time.sleep(LONG)
    except SoftTimeLimitExceeded:
        return


@kind()
def exits():
    raise SystemExit(3)


@kind()
def interrupts():
    raise KeyboardInterrupt


class UnusualError(BaseException):
    """Not an Exception."""


@kind()
def raises_a_base_exception():
    raise UnusualError("no")


@kind()
def exits_its_greenlet():
    from gevent import GreenletExit

    raise GreenletExit


@kind()
def times_out():
    import gevent

    with gevent.Timeout(0.1):
        gevent.sleep(LONG)


# What other tasks send: no start of a run.
@shared_task(name="kind.quiet")
def quiet(*_):
    return "quiet"


@shared_task(bind=True, name="kind.quiet_retry")
def quiet_retry(self):
    if not self.request.retries:
        raise self.retry(countdown=0)


@shared_task(name="kind.quiet_failure")
def quiet_failure():
    raise ValueError("quiet")


POLICY = {"retry": {"max_retries": 2, "backoff": 1, "factor": 1}}
NO = "ValueError: no"


def by(canvas, ending="returns"):
    return {"args": [canvas, ending]}


KINDS = {
    "class-based": Kind("succeeded", 1, 1, task="returns"),
    "retries and fails, with a policy": Kind("failed", 3, 3, NO, "retries_and_fails", POLICY),
    "rejects, with a policy": Kind(
        *("failed", 1, 1, "not here", "probe.reject"),
        fields={"kwargs": {"requeue": False}, **POLICY},
    ),
    "skips, with a policy": Kind("skipped", 1, 1, "the account is closed", "probe.skip", POLICY),
    "wrong arguments": Kind("failed", 1, 0, "TypeError", "probe.ignore", {"args": [1]}),
    "unserializable": Kind("failed", 1, 1, "EncodeError", task="returns_an_unserializable"),
    "calls a task": Kind("succeeded", 1, 1, task="calls_a_task"),
    "applies eagerly": Kind("succeeded", 1, 1, task="applies_eagerly"),
    "retries always eager": Kind("succeeded", 1, 2, task="retries_always_eager"),
    "sends a chain": Kind("succeeded", 1, 1, "", "sends_a_canvas", {"args": ["chain"]}),
    "sends a chord": Kind("succeeded", 1, 1, "", "sends_a_canvas", {"args": ["chord"]}),
    "replaced": Kind("succeeded", 2, 2, "", "is_replaced", by("task")),
    "replaced and fails, with a policy": Kind(
        "failed", 2, 2, NO, "is_replaced", {**by("task", "raises"), **POLICY}
    ),
    "replaced twice": Kind("succeeded", 3, 3, "", "is_replaced_twice", {"args": ["returns"]}),
    "replaced by a chain": Kind("succeeded", 2, 2, "", "is_replaced", by("chain")),
    "replaced by a group": Kind("succeeded", 2, 1, "", "is_replaced", by("group")),
    "replaced by a chord": Kind("succeeded", 2, 2, "", "is_replaced", by("chord")),
    "failing chain": Kind("failed", 1, 1, "quiet", "is_replaced", by("failing chain")),
    "failing chord": Kind("failed", 1, 1, "quiet", "is_replaced", by("failing chord")),
    # TimeLimitExceeded; Timeout in the gevent pool.
    "hard time limit, with a policy": Kind(
        "failed", 3, 3, "Time", "sleeps", {"options": {"time_limit": 1}, **POLICY}
    ),
    "catches the limit": Kind(
        *("succeeded", 1, 1, "", "catches_the_soft_limit"),
        fields={"options": {"soft_time_limit": 1}},
    ),
    "base exception": Kind("failed", 1, 1, "Unusual", task="raises_a_base_exception"),
    # A pool process ends with these two, and Celery reports a lost worker.
    "exits, with a policy": Kind("failed", 3, 3, task="exits", fields=POLICY),
    "interrupts": Kind("failed", 1, 1, "KeyboardInterrupt", task="interrupts"),
    "exits its greenlet": Kind("revoked", 1, 1, "GreenletExit", task="exits_its_greenlet"),
    "times out": Kind("failed", 1, 1, "Timeout: 0.1 seconds", task="times_out"),
}
GREENLETS = {"exits its greenlet", "times out"}
#: What Celery's pools do not support. In the solo pool, a BaseException ends the worker.
UNSUPPORTED = {
    "prefork": GREENLETS,
    "spawn": GREENLETS,
    "threads": {*GREENLETS, "hard time limit, with a policy"},
    "gevent": set(),
    "solo": {
        *(*GREENLETS, "hard time limit, with a policy"),
        *("base exception", "exits, with a policy", "interrupts"),
    },
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("pool", UNSUPPORTED)
def test_each_kind_of_task_ends_as_its_body_does(redis_site, pool):
    site = redis_site
    kinds = {name: kind for name, kind in KINDS.items() if name not in UNSUPPORTED[pool]}
    site.config |= {
        "include": ["tests.acceptance.test_kinds_of_tasks"],
        "result_backend": site.config["broker_url"],
        # Seconds for the start of a pool process. The default of 4 is short for a spawned one.
        "worker_proc_alive_timeout": 60,
    }
    # Processes are replaced: after 25 tasks, and after some of the kinds.
    site.worker("--max-tasks-per-child=25", pool=pool).wait_for_log("ready.")
    for name, kind in kinds.items():
        task = kind.task if "." in kind.task else f"kind.{kind.task}"
        site.create_once(name, task=task, **kind.fields)
    site.beat()

    def ends():
        seen = {}
        for run in site.runs():
            kind, starts = kinds[run.name], len(site.event_log.starts(run.id))
            error = kind.error if kind.error in (run.error or "") else run.error
            seen[run.name] = (run.status, run.attempt, starts, error)
        return seen

    expected = {name: kind[:4] for name, kind in kinds.items()}
    try:
        wait_until(
            lambda: (
                len(ends()) == len(kinds) and not UNFINISHED & {run.status for run in site.runs()}
            ),
            within=ENDS_WITHIN,
        )
    finally:
        assert ends() == expected, site.report()


class PicklesWithoutFixups(Celery):
    def __reduce_args__(self):
        return super().__reduce_args__()


# CI runs as root.
@needs_celery(5, 7, "worker_pool_start_method")
@pytest.mark.filterwarnings("ignore:You're running the worker with superuser")
@pytest.mark.parametrize(
    ("kind", "given", "reason"),
    [
        (PicklesWithoutFixups, {}, "PicklesWithoutFixups"),
        (Celery, {"current_session": lambda: None}, "current_session="),
        (Celery, {"engine": create_engine("sqlite://")}, "engine="),
    ],
)
def test_a_worker_whose_spawned_processes_would_have_no_guard_does_not_start(kind, given, reason):
    app = kind("proj", broker="memory://", set_as_current=False)
    app.conf.update(dynbeat_database_url="sqlite://", worker_pool_start_method="spawn")
    Dynbeat(app, **given)

    with pytest.raises(ConfigurationError, match=reason):
        app.Worker(pool="prefork", concurrency=1)
