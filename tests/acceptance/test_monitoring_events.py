"""The events for runs that the guard refuses or defers, as Celery's monitors see them."""

import contextlib

from sqlalchemy import make_url

from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until


@contextlib.contextmanager
def monitor(site):
    """Yield a function that returns the state of a task in Celery's event state."""
    state = site.app.events.State()

    def state_of(task_id):
        with contextlib.suppress(TimeoutError):
            consuming.drain_events(timeout=0.2)
        task = state.tasks.get(task_id)
        return None if task is None else task.state

    with site.app.connection() as connection:
        receiver = site.app.events.Receiver(connection, {"*": state.event})
        with receiver.consumer_context() as (consuming, _channel, _consumers):
            # On Redis, kombu subscribes when it first waits.
            state_of("")
            yield state_of


def queued_run(site, name):
    """Return a run whose message is in the queue."""
    beat = site.beat().wait_for_log("beat started")
    site.create_once(name, task="probe.record")
    run = site.wait_for_run(name, "sent")
    beat.terminate()
    return run


def cancelled_run(site):
    """Return a revoked run whose message is in the queue."""
    run = queued_run(site, "cancelled")
    site.mine.pause("cancelled")
    return run


def test_a_refused_run_has_ended_for_monitors(redis_site):
    run = cancelled_run(redis_site)
    with monitor(redis_site) as state_of:
        redis_site.worker("-E")

        wait_until(lambda: state_of(run.id) == "REVOKED", within=20)

    assert redis_site.event_log.starts(run.id) == []


def test_a_deferred_run_is_shown_as_a_retry_and_then_succeeds(redis_site, postgresql_url):
    redis_site.constants["celery_dynbeat.worker.task_guard.DEFER_SECONDS"] = 2
    with Proxy(make_url(postgresql_url).port) as proxy, monitor(redis_site) as state_of:
        run = queued_run(redis_site, "deferred")
        redis_site.config["dynbeat_database_url"] = proxy.through(postgresql_url)
        proxy.refuse()

        redis_site.worker("-E", pool="threads")
        wait_until(lambda: state_of(run.id) == "RETRY", within=20)
        proxy.pass_on()

        wait_until(lambda: state_of(run.id) == "SUCCESS", within=20)
    assert redis_site.count_runs(Run.status == Status.SUCCEEDED) == 1
