"""MariaDB Galera: all processes on one server at a time are safe, on two servers they are not.

A row lock and GET_LOCK are known to one server only, and a read may miss what another server has
just committed.
"""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise

import pytest
from celery import Celery
from sqlalchemy import inspect, text
from sqlalchemy.orm import Session

from celery_dynbeat import Dynbeat, Every, LimitError, NotFoundError
from celery_dynbeat.common.errors import SchemaError
from celery_dynbeat.db import schema
from celery_dynbeat.db.engine import Database
from celery_dynbeat.health.checks import evaluate
from celery_dynbeat.health.probes import collect_health
from tests.support.databases import administration
from tests.support.event_log import CONFIG_VARIABLE
from tests.support.waiting import wait_until

#: Longer than the pause of a failover, as in production.
NODE_TIMEOUT = 15
#: Seconds. The cluster waits five for a silent server, and the proxy one.
FAILS_OVER_WITHIN = 20
HOURLY = Every(timedelta(hours=1))


def at(site, url):
    """Return the environment of a process that uses another URL than the application."""
    return {CONFIG_VARIABLE: json.dumps({**site.config, "dynbeat_database_url": url})}


def start_processes(site, urls):
    """Start a beat and a worker on each URL, and return them."""
    beats = [site.beat(**at(site, url)) for url in urls]
    workers = [
        site.worker(name=f"w{number}@test", pool="threads", **at(site, url))
        for number, url in enumerate(urls, start=1)
    ]
    for beat in beats:
        beat.wait_for_log("beat started")
    for worker in workers:
        worker.wait_for_log("ready.")
    return [*beats, *workers]


def warning_codes(site):
    return [warning.code for warning in evaluate(collect_health(site.app)).warnings]


def longest_pause(site):
    """Return the longest time between two starts of runs, in seconds."""
    started = sorted(run.started_at for run in site.all_runs() if run.started_at)
    return max(after - before for before, after in pairwise(started)).total_seconds()


@contextmanager
def fault_of(server, kind):
    """Let a server fail, and make it well again at the end."""
    if kind == "kill":
        server.kill()
    elif kind == "freeze":
        server.freeze()
    else:
        server.isolate(True)
    yield
    if kind == "isolate":
        server.isolate(False)
    server.thaw()
    server.start()
    wait_until(server.answers, within=60, message="the server does not come back")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["kill", "freeze", "isolate"])
def test_a_failover_behind_a_proxy_loses_and_duplicates_no_run(
    servers, proxy, url_of, site_on, workload_of, record_property, kind
):
    url = url_of(proxy)
    site = site_on(url, dynbeat_node_timeout=NODE_TIMEOUT)
    workload = workload_of(site)
    processes = start_processes(site, [url, url])
    workload.create_repeating(20, seconds=25)
    workload.create_one_offs(200, first_in=3, over=20)
    workload.wait_for_starts(100)

    with fault_of(servers[0], kind):
        with workload.fault():
            pass
        workload.verify(f"Galera server: {kind}, failover by HAProxy")
        pause = longest_pause(site)

    record_property("pause", pause)
    assert pause < FAILS_OVER_WITHIN
    assert all(process.exit_status is None for process in processes)
    # The server is a spare now. Not asserted: on a busy machine the check of another may fail, too.
    workload.create_one_offs(20)
    workload.verify(f"Galera server: well again after {kind}")


def dynbeat_on(url, **settings):
    app = Celery("proj", broker="memory://", set_as_current=False)
    app.conf.update(dynbeat_database_url=url, dynbeat_create_tables=True, **settings)
    return Dynbeat(app)


@pytest.fixture
def two(servers, url_of):
    """Yield an application on each of two servers. An owner may have two schedules."""
    made = [
        dynbeat_on(url_of(each), dynbeat_owner_limits={"*": {"max_schedules": 2}})
        for each in servers[:2]
    ]
    yield made
    for dynbeat in made:
        dynbeat.context.database.dispose()
        dynbeat.app.close()


def test_a_limit_is_exceeded_through_two_servers(two):
    first, second = (dynbeat.schedules.for_owner("user:1") for dynbeat in two)
    engines = [dynbeat.context.database.engine for dynbeat in two]
    first.create("a", task="t", trigger=HOURLY)

    # On one server, the second call waits for the end of the first transaction.
    with Session(engines[0]) as one, Session(engines[1]) as other:
        first.bound(session=one).create("b", task="t", trigger=HOURLY)
        second.bound(session=other).create("c", task="t", trigger=HOURLY)
        one.commit()
        other.commit()

    with pytest.raises(LimitError, match="has 3 schedules"):
        first.create("d", task="t", trigger=HOURLY)


def test_a_read_through_another_server_may_be_old(two, servers):
    first, second = (dynbeat.schedules.for_owner("user:1") for dynbeat in two)
    first.create("a", task="t", trigger=HOURLY)
    wait_until(second.list, within=5)
    with administration(servers[1].url) as connection:
        # It also stops what the other servers replicate to this one.
        connection.execute(text("FLUSH TABLES WITH READ LOCK"))
        first.create("b", task="t", trigger=HOURLY)
        with pytest.raises(NotFoundError):
            second.get("b")
        connection.execute(text("UNLOCK TABLES"))

    wait_until(lambda: len(second.list()) == 2, within=5)


def test_two_upgrades_through_two_servers_run_one_after_the_other(servers, url_of):
    databases = [Database(url_of(server)) for server in servers[:2]]
    start = threading.Barrier(len(databases))

    def upgrade(database):
        start.wait()
        return schema.upgrade(database)

    with ThreadPoolExecutor(len(databases)) as threads:
        list(threads.map(upgrade, databases))

    for database in databases:
        assert schema.check(database) == schema.head()
        assert "dynbeat_schema_lock" not in inspect(database.engine).get_table_names()
        database.dispose()


def test_the_lock_of_a_killed_upgrade_is_named(servers, url_of):
    one, two = (Database(url_of(server)) for server in servers[:2])
    with one.engine.begin() as connection:
        assert one.capabilities.lock_schema(connection)

    with pytest.raises(SchemaError, match="DROP TABLE dynbeat_schema_lock"):
        schema.upgrade(two, lock_wait=timedelta(seconds=0.2))

    one.dispose()
    two.dispose()
