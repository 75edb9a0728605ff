"""A run of each kind of task ends as its body does, and starts once for each attempt."""

import pytest
from celery import Celery
from sqlalchemy import create_engine

from celery_dynbeat import ConfigurationError, Dynbeat
from tests.support import kinds_of_tasks
from tests.support.kinds_of_tasks import KINDS, UNSUPPORTED
from tests.support.versions import needs_celery
from tests.support.waiting import wait_until

#: Seconds. Each spawned process imports the application.
ENDS_WITHIN = 180
UNFINISHED = {"pending", "sent", "running", "retrying"}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("pool", UNSUPPORTED)
def test_each_kind_of_task_ends_as_its_body_does(redis_site, pool):
    site = redis_site
    kinds = {name: kind for name, kind in KINDS.items() if name not in UNSUPPORTED[pool]}
    site.config |= {
        "include": [kinds_of_tasks.INCLUDE],
        "result_backend": site.config["broker_url"],
        # Seconds for the start of a pool process. The default of 4 is short for a spawned one.
        "worker_proc_alive_timeout": 60,
    }
    # Processes are replaced: after 25 tasks, and after some of the kinds.
    site.worker("--max-tasks-per-child=25", pool=pool).wait_for_log("ready.")
    for name, kind in kinds.items():
        task = kind.task or name
        site.create_once(name, task=task if "." in task else f"kind.{task}", **kind.fields)
    site.beat()
    site.app.control.revoke(site.wait_for_run("revoked", "sent").id)

    def ends():
        seen = {}
        for run in site.runs():
            kind, starts = kinds[run.name], len(site.event_log.starts(run.id))
            error = kind.error if kind.error in (run.error or "") else run.error
            seen[run.name] = (run.status, run.attempt, starts, error)
        return seen

    try:
        wait_until(lambda: not UNFINISHED & {run.status for run in site.runs()}, within=ENDS_WITHIN)
    finally:
        assert ends() == {name: kind[:4] for name, kind in kinds.items()}, site.report()


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
