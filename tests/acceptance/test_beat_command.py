"""``celery beat`` and ``celery worker -B``."""

import os
import re
import signal
import urllib.request
from datetime import timedelta

import pytest

from celery_dynbeat import DatabaseScheduler, Once
from tests.support.event_log import BARE_VARIABLE, NAME_VARIABLE
from tests.support.servers import RedisServer
from tests.support.sites import site
from tests.support.waiting import wait_until

pytestmark = pytest.mark.empty_database


def test_the_banner_names_the_database_without_its_password(site_folder, postgresql_url, redis_url):
    with_password = postgresql_url.replace("postgres@", "postgres:s3cret@")
    with site(site_folder, database_url=with_password, broker_url=redis_url) as made:
        made.dynbeat.context.prepare()

        beat = made.beat("--max-interval", "3").wait_for_log("beat started")

        assert "database -> postgresql+psycopg://postgres:***@127.0.0.1" in beat.text
        assert "maxinterval -> 3.00 seconds" in beat.text
        assert "s3cret" not in beat.text


def test_the_name_of_the_class_selects_the_scheduler(file_site):
    beat = file_site.beat(scheduler="celery_dynbeat:DatabaseScheduler").wait_for_log("beat started")

    assert "celery_dynbeat.beat.scheduler.DatabaseScheduler" in beat.text
    # Beat has created its tables.
    assert "alembic" not in beat.text


class SwallowingScheduler(DatabaseScheduler):
    """Calls close() during a pass, as the SIGTERM handler does; the SystemExit is lost."""

    def failpoint(self, point):
        del point
        self.close()


def tick_often(scheduler):
    for _ in range(20):
        scheduler.tick()


def test_a_beat_that_receives_sigterm_in_a_finalizer_stops(file_site):
    file_site.mine.create("now", task="probe.record", trigger=Once.after(timedelta(seconds=0.1)))
    scheduler = SwallowingScheduler(file_site.app)

    with pytest.raises(SystemExit):
        tick_often(scheduler)
    scheduler.close()

    assert file_site.runs("now")


def test_sigterm_stops_an_idle_beat_and_deregisters_its_node(redis_site):
    beat = redis_site.beat().wait_for_log("beat started")
    (node,) = wait_until(lambda: redis_site.nodes("beat"), within=5)
    assert node.name.endswith(f":{beat.pid}")

    os.kill(beat.pid, signal.SIGTERM)

    assert beat.wait(within=5) == 0
    assert redis_site.nodes("beat")[0].stopped_at is not None


def test_a_worker_can_run_an_embedded_beat(file_site):
    file_site.config["beat_scheduler"] = "dynbeat"
    file_site.mine.create("carried", task="probe.record", trigger=Once.after(timedelta(seconds=1)))

    file_site.worker("-B")

    file_site.wait_for_run("carried", "succeeded")


def entries(site):
    return {info.name: info for info in site.dynbeat.schedules.list(owner="")}


def test_beat_schedule_is_synchronized_at_each_start(file_site):
    task = "probe.record"
    file_site.config["result_expires"] = 3600
    file_site.config["beat_schedule"] = {
        "kept": {"task": task, "schedule": "0 4 * * *"},
        "changed": {"task": task, "schedule": 3600, "args": [1]},
        "removed": {"task": task, "schedule": 3600},
    }
    file_site.beat().wait_for_log("beat started").terminate()
    before = entries(file_site)
    file_site.config["beat_schedule"] = {
        "kept": {"task": task, "schedule": "0 4 * * *"},
        "changed": {"task": task, "schedule": 1800, "args": [2]},
        "added": {"task": task, "schedule": 1},
    }

    beat = file_site.beat().wait_for_log("beat started").wait_for_log("runs dispatched")
    beat.terminate()

    after = entries(file_site)
    assert {"kept", "changed", "removed"} <= before.keys()
    # Celery's own scheduler adds it too, if the result backend does not expire results itself.
    assert after.keys() == {"kept", "changed", "added", "celery.backend_cleanup"}
    assert after["kept"].version == before["kept"].version
    assert after["changed"].args == [2]
    assert after["changed"].trigger != before["changed"].trigger
    assert after["added"].run_count >= 1


def test_an_invalid_entry_is_rejected_by_name_and_the_others_run(file_site):
    file_site.config["beat_schedule"] = {
        "sunny": {"task": "probe.record", "schedule": 10, "relative": True},
        "fine": {"task": "probe.record", "schedule": 1},
    }

    beat = file_site.beat().wait_for_log("runs dispatched")

    assert "beat_schedule['sunny'] is refused" in beat.text
    assert "sunny" not in entries(file_site)


def test_a_beat_of_another_application_refuses_to_start_and_writes_nothing(redis_site):
    redis_site.config["beat_schedule"] = {"restock": {"task": "probe.record", "schedule": 3600}}
    first = redis_site.beat().wait_for_log("beat started")
    before = entries(redis_site)
    redis_site.config["beat_schedule"] = {"invoice": {"task": "probe.record", "schedule": 3600}}

    other = redis_site.beat(**{NAME_VARIABLE: "billing"})

    assert other.wait(within=20) != 0
    for words in ("'proj'", "'billing'", "search_path", "dynbeat_application = 'proj'"):
        assert words in other.text
    assert first.exit_status is None
    assert entries(redis_site) == before


def test_an_application_without_dynbeat_gets_an_error_with_the_fix(file_site):
    beat = file_site.beat(**{BARE_VARIABLE: "1"})

    assert beat.wait(within=20) != 0
    assert "add `dynbeat = Dynbeat(app)`" in beat.text


def test_beat_waits_for_a_broker_that_starts_later(own_server, site_folder, sqlite_url):
    broker = own_server(RedisServer)
    broker.stop()
    with site(site_folder, database_url=sqlite_url, broker_url=broker.url) as made:
        made.mine.create("waiting", task="probe.record", trigger=Once.after(timedelta(seconds=1)))
        beat = made.beat().wait_for_log("pass failed")
        assert not made.runs("waiting")

        broker.start()

        beat.wait_for_log("beat works again")
        made.wait_for_run("waiting", "sent")


def test_a_beat_serves_its_metrics(file_site):
    file_site.config["dynbeat_metrics"] = 0
    beat = file_site.beat().wait_for_log("metrics exported on")

    url = re.search(r"metrics exported on (http://[\d.:]+/metrics)", beat.text)[1]
    # A literal address: only the beat of this test is queried.
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310
        assert b"dynbeat_last_successful_pass_age_seconds" in answer.read()
