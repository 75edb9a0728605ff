"""docs/how-to/health.md: `dynbeat status` prints what the page shows, on a real installation.

With DYNBEAT_RECORD_OUTPUTS set, the test writes the outputs of its own run into the page.
"""

import os
import re
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, text

from celery_dynbeat import Every
from celery_dynbeat.db.models import NODES, RUNS, SCHEDULES
from tests.support.sites import site
from tests.support.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "health.md"
RECORD = "DYNBEAT_RECORD_OUTPUTS"
RECORDS = bool(os.environ.get(RECORD))
#: The two outputs of one installation: when it works, and later.
OUTPUTS = re.compile(
    r"^```\n((?:healthy|DEGRADED|UNHEALTHY)\n  (?:database|problem     no beat).*?)^```$",
    re.MULTILINE | re.DOTALL,
)
#: The page shows the defaults. A test does not wait for them.
QUICK = {} if RECORDS else {"dynbeat_node_timeout": 3, "dynbeat_dispatch_timeout": 1}
#: Longer than `dynbeat_node_timeout` and than the limit of late schedules.
GONE_AFTER = 90 if RECORDS else 20
#: Seconds between two fire times. All schedules fire at the same ones: a kill between two leaves no
#: run that is not sent.
PERIOD = 6
pytestmark = [pytest.mark.long, pytest.mark.empty_database, pytest.mark.timeout(600)]


def status(made):
    """Return what the command prints, without what identifies this machine and database."""
    process = made.run("dynbeat", "status", name="status", COLUMNS="200")
    process.wait(within=40)
    shown = process.text.replace(socket.gethostname(), "vm").replace("tests.support.proj", "proj")
    shown = re.sub(r"(@127\.0\.0\.1:\d+)/\w+", r"\1/proj", shown, count=1)
    lines = [line.rstrip() for line in shown.splitlines()]
    start = next(
        index for index, line in enumerate(lines) if line in {"healthy", "DEGRADED", "UNHEALTHY"}
    )
    return "\n".join(lines[start:]).rstrip() + "\n"


def shape(line):
    """Return a line with each number, duration and URL as a sign."""
    line = re.sub(r"\S+://\S+", "URL", line)
    line = re.sub(r"\b(progressed|started|seen) \S+( m?s| min| h)? ago", r"\1 ago", line)
    return re.sub(r"\s+", " ", re.sub(r"[-+]?\d+(?:[.,]\d+)*\+?", "0", line)).strip()


def shapes(output):
    return sorted(shape(line) for line in output.splitlines())


def incident(made):
    """Return both outputs: when two beats and a worker work, and after they ended."""
    mine = made.dynbeat.schedules.for_owner("user:7")
    first, second = made.beat(), made.beat()
    worker = made.worker(name="celery@worker1")
    for process in (first, second):
        process.wait_for_log("beat started")
    worker.wait_for_log("ready.")
    wait_until(lambda: is_working(made), within=60, message="a node makes no progress")
    healthy = status(made)

    worker.terminate()
    every, begin = Every(timedelta(seconds=PERIOD)), datetime.now(UTC)
    for name in ("report", "sync", "load", "clean"):
        mine.create(name, task="probe.record", trigger=every, start_at=begin)
    wait_until(lambda: made.count_runs() >= 6, within=60, message="six runs are not sent")
    with made.dynbeat.context.database.engine.begin() as connection:
        damage = SCHEDULES.update().where(SCHEDULES.c.name == "report")
        connection.execute(damage.values(trigger_kind="cron", trigger_spec="61 9 * * *"))
    wait_until(lambda: quarantine(made), within=60, message="no quarantine")
    second.terminate()
    wait_until(lambda: is_between(made), within=60, message="the runs are not sent")
    first.kill()
    wait_until(lambda: silent_seconds(made) > GONE_AFTER, within=120, message="a beat writes")
    return healthy, status(made)


def is_working(made):
    nodes = [*made.nodes("beat"), *made.nodes("worker")]
    return len(nodes) == 3 and all(node.progressed_at for node in nodes)


def is_between(made):
    """Return whether the newest fire time is sent, and the next one is not near."""
    with made.dynbeat.context.database.engine.connect() as connection:
        runs = connection.execute(select(RUNS.c.fire_at, RUNS.c.sent_at)).all()
    since_newest = datetime.now(UTC) - max(run.fire_at for run in runs)
    return since_newest.total_seconds() < PERIOD / 2 and all(run.sent_at for run in runs)


def quarantine(made):
    # Not get(): it finds the error when it reads the trigger, before beat has.
    with made.dynbeat.context.database.engine.connect() as connection:
        return connection.execute(select(SCHEDULES.c.error).where(SCHEDULES.c.error != "")).all()


def silent_seconds(made):
    newest = text(f"SELECT extract(epoch FROM now() - max(seen_at)) FROM {NODES.name}")
    with made.dynbeat.context.database.engine.connect() as connection:
        return float(connection.execute(newest).scalar_one())


def test_status_prints_what_the_page_shows(site_folder, postgresql_url, redis_url):
    urls = {"database_url": postgresql_url, "broker_url": redis_url}
    with site(site_folder, **urls, **QUICK) as made:
        printed = incident(made)

    page = PAGE.read_text()
    if RECORDS:
        outputs = iter(printed)
        PAGE.write_text(OUTPUTS.sub(lambda _: f"```\n{next(outputs)}```", page))
        return
    shown = OUTPUTS.findall(page)
    assert len(shown) == len(printed)
    for text_of_page, output in zip(shown, printed, strict=True):
        # The beat with the newest heartbeat is first.
        assert shapes(output) == shapes(text_of_page), output
