"""A worker reports its queues and its tasks."""

import json

from sqlalchemy import select

from celery_dynbeat.db.models import Node
from tests.support.waiting import wait_until


def reported(site, column):
    """Return the list in a column of the only node."""
    context = site.dynbeat.context
    text = context.database.read(lambda session: session.scalar(select(column)))
    return json.loads(text)


def test_a_worker_reports_its_tasks_and_the_queues_that_it_consumes_now(redis_site):
    redis_site.config["dynbeat_node_timeout"] = 3
    redis_site.worker("-Q", "b,a").wait_for_log("ready.")
    at_start = reported(redis_site, Node.queues)

    redis_site.app.control.add_consumer("c", reply=True)
    redis_site.app.control.cancel_consumer("a", reply=True)
    wait_until(lambda: reported(redis_site, Node.queues) != at_start, within=15)
    wait_until(lambda: reported(redis_site, Node.queues) == ["b", "c"], within=15)

    assert at_start == ["a", "b"]
    assert "probe.record" in reported(redis_site, Node.tasks)
