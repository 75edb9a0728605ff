"""An import that is killed leaves whole batches. The same command then writes the rest."""

import signal

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from celery_dynbeat.db.models import Change, Schedule
from celery_dynbeat.importing.crontab_file import PAGE_SIZE
from tests.support.killed_imports import BATCH_VARIABLE
from tests.support.sites import site

LINES = 3 * PAGE_SIZE + 200


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def made(request, site_folder):
    url = request.getfixturevalue(f"{request.param}_url")
    settings = {"broker_url": "memory://", "dynbeat_notifier": "polling"}
    with site(site_folder, database_url=url, **settings) as made:
        yield made


def import_file(made, **environment):
    file = made.folder / "crontab"
    file.write_text("".join(f"{line % 60} 9 * * * /bin/report {line}\n" for line in range(LINES)))
    of_row = ("--owner-from", "tests.support.killed_imports:of_row")
    task = ("--task", "probe.record", "--timezone", "UTC")
    command = ("import", "crontab", str(file), *task, *of_row, "--apply")
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
@pytest.mark.timeout(180)
def test_a_killed_import_is_continued_by_the_same_command(made):
    status, shown, text = import_file(made, **{BATCH_VARIABLE: "3"})
    assert (status, shown) == (-signal.SIGKILL, 2 * PAGE_SIZE), text
    assert written(made) == [2 * PAGE_SIZE] * 3

    status, shown, text = import_file(made)
    assert (status, shown) == (0, LINES - 2 * PAGE_SIZE), text
    assert f"{LINES - 2 * PAGE_SIZE:,} created, 0 updated" in text
    assert f"{2 * PAGE_SIZE:,} unchanged, 0 skipped, 0 refused" in text
    assert "no longer in the source" not in text
    assert written(made) == [LINES] * 3

    status, shown, text = import_file(made)
    assert (status, shown) == (0, 0), text
    assert f"0 created, 0 updated, 0 advanced, 0 paused, {LINES:,} unchanged" in text
    assert written(made) == [LINES] * 3
