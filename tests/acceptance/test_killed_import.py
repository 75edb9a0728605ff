"""An import that is killed leaves whole batches. The same command then writes the rest."""

import signal

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from celery_dynbeat.db.models import Change, Schedule
from celery_dynbeat.importing.tables import PAGE_SIZE
from tests.support.killed_imports import BATCH_VARIABLE
from tests.support.peers import write_store
from tests.support.sites import site

ROWS = 3 * PAGE_SIZE + 200


@pytest.fixture
def made(site_folder, postgresql_url):
    settings = {"broker_url": "memory://", "dynbeat_notifier": "polling"}
    with site(site_folder, database_url=postgresql_url, **settings) as made:
        yield made


@pytest.fixture(scope="module")
def store_url(tmp_path_factory):
    url = f"sqlite:///{tmp_path_factory.mktemp('store') / 'django.db'}"
    every_day = {"minute": "0", "hour": "9", "timezone": "UTC"}
    every_day |= dict.fromkeys(("day_of_month", "month_of_year", "day_of_week"), "*")
    rows = [
        {"name": f"report {number}", "task": "probe.record", "crontab": every_day}
        for number in range(ROWS)
    ]
    write_store("django-celery-beat", rows, url)
    return url


def import_rows(made, url, **environment):
    of_row = ("--owner-from", "tests.support.killed_imports:of_row")
    command = ("import", "django-celery-beat", url, *of_row, "--apply")
    process = made.run("dynbeat", *command, **environment)
    status = process.wait(within=60)
    lines = process.text.splitlines()
    return status, sum(line.startswith("create\t") for line in lines), process.text


def written(made):
    """Return the numbers of schedules, of different ones, and of their creations in the audit."""
    keys = select(Schedule.owner, Schedule.name).distinct().subquery()
    with Session(made.dynbeat.context.database.engine) as session:
        tables = (Schedule, keys, Change)
        return [session.scalar(select(func.count()).select_from(each)) for each in tables]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_import_is_continued_by_the_same_command(made, store_url):
    status, shown, text = import_rows(made, store_url, **{BATCH_VARIABLE: "3"})
    assert (status, shown) == (-signal.SIGKILL, 2 * PAGE_SIZE), text
    assert written(made) == [2 * PAGE_SIZE] * 3

    status, shown, text = import_rows(made, store_url)
    assert (status, shown) == (0, ROWS - 2 * PAGE_SIZE), text
    assert f"{ROWS - 2 * PAGE_SIZE:,} created, 0 updated" in text
    assert f"{2 * PAGE_SIZE:,} unchanged, 0 skipped, 0 refused" in text
    assert "no longer in the source" not in text
    assert written(made) == [ROWS] * 3

    status, shown, text = import_rows(made, store_url)
    assert (status, shown) == (0, 0), text
    assert f"0 created, 0 updated, 0 advanced, 0 paused, {ROWS:,} unchanged" in text
    assert written(made) == [ROWS] * 3
