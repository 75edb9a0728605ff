"""Unmodified Flower shows runs under their ids."""

import json
import re
import urllib.error
import urllib.request
from datetime import timedelta

from celery_dynbeat import Once
from tests.support.waiting import wait_until


def tasks_in_flower(port):
    # A literal address: only the Flower of this test is queried.
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/tasks", timeout=5) as answer:
            return json.load(answer)
    except urllib.error.URLError:
        return {}


def test_flower_shows_a_dispatched_run_with_its_id(redis_site):
    flower = redis_site.run(
        "flower", "--port=0", "--address=127.0.0.1", FLOWER_UNAUTHENTICATED_API="true"
    )
    worker = redis_site.worker("-E")
    flower.wait_for_log("Connected to redis")
    port = re.search(r"Visit me at http://127\.0\.0\.1:(\d+)", flower.text)[1]
    worker.wait_for_log("ready.")
    redis_site.mine.create("shown", task="probe.record", trigger=Once.after(timedelta(seconds=1)))

    redis_site.beat()

    run = redis_site.wait_for_run("shown", "succeeded")
    # Flower receives the events of the task one after the other.
    wait_until(
        lambda: tasks_in_flower(port).get(run.id, {}).get("state") == "SUCCESS",
        within=15,
        message=flower.report(),
    )
    assert tasks_in_flower(port)[run.id]["name"] == "probe.record"
