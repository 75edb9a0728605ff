"""The rows that a page and a count of runs read of a long history: bounded, at any position."""

import itertools

import pytest

from celery_dynbeat.common.filters import RunFilter
from celery_dynbeat.store import scans
from celery_dynbeat.store.runs import run_pages
from celery_dynbeat.testing import FrozenClock
from tests.contract.store.test_rerun_rows_read import HEX, ID, ROWS, SECONDS
from tests.support.applications import MINUTELY, START, application, execute
from tests.support.executed_statements import record_statements
from tests.support.number_rows import numbers

UNFINISHED = ("pending", "sent", "running", "retrying")
#: Unfinished runs among the 30,000: one in 500, and the 119 oldest.
NUMBER = 60 + 119
#: Rows that one page may scan. Less than the unfinished runs, and far less than all runs.
SCANNED = 100
LIMIT = 10
HISTORY = """
    INSERT INTO dynbeat_run
        (id, schedule_id, owner, name, task, fire_at, status, origin, created_at, finished_at)
    SELECT {id}, schedule.id, schedule.owner, schedule.name,
        CASE WHEN n % 50 = 3 THEN 'rare' ELSE 't' END, {at},
        CASE WHEN n < 120 OR n % 500 = 0 THEN 'sent'
             WHEN n % 1000 = 7 THEN 'failed' ELSE 'succeeded' END,
        'schedule', {at}, CASE WHEN n < 120 OR n % 500 = 0 THEN NULL ELSE {at} END
    FROM {sequence} JOIN dynbeat_schedule AS schedule
        ON schedule.owner = CASE WHEN n % 2 = 0 THEN 'user:42' ELSE 'user:7' END
"""
FILTERS = [
    {"status": UNFINISHED},
    {"status": "running"},
    {"status": "sent", "task": "t"},
    {"status": ("failed", "lost")},
    {"status": ("failed", "sent")},
    {"status": "expired", "task": "rare"},
    {"task": "rare"},
    {"since": START},
]


@pytest.fixture(params=["postgresql", "mariadb"])
def dynbeat(request):
    kind = request.param
    url, clock = request.getfixturevalue(f"{kind}_url"), FrozenClock(START)
    with application(url, clock=clock) as dynbeat:
        dynbeat.context.prepare()
        for owner in ("user:42", "user:7"):
            dynbeat.schedules.for_owner(owner).create("n", task="t", trigger=MINUTELY)
        run_id = ID.format(hex=HEX[kind])
        given = {
            "id": f"CAST({run_id} AS uuid)" if kind == "postgresql" else run_id,
            "at": SECONDS[kind].format(start=f"{START:%Y-%m-%d %H:%M:%S}"),
            "sequence": numbers(kind, rows=ROWS),
        }
        execute(dynbeat, HISTORY.format(**given))
        execute(dynbeat, f"ANALYZE {'TABLE' if kind == 'mariadb' else ''} dynbeat_run")
        yield dynbeat


def scopes(dynbeat):
    mine = dynbeat.schedules.for_owner("user:42")
    return {
        "all": (dynbeat.schedules.runs, dynbeat.schedules.count_runs, {}),
        "owner": (mine.runs, mine.count_runs, {}),
        "schedule": (mine.runs, mine.count_runs, {"name": "n"}),
    }


def rows_of(statements, call, **how):
    before = len(statements)
    found = call(**how)
    return found, sum(each.rows for each in statements[before:])


def read_pages(statements, call, *, number, **how):
    """Return up to ``number`` pages, and the most rows that one of them read."""
    pages, most, cursor = [], 0, None
    for _ in range(number):
        page, rows = rows_of(statements, call, after=cursor, **how)
        pages.append(page)
        cursor, most = page.cursor, max(most, rows)
        if cursor is None:
            break
    return pages, most


def test_each_page_and_count_reads_a_bounded_number_of_rows(dynbeat, monkeypatch):
    monkeypatch.setattr(scans, "MAX_SCANNED", SCANNED)
    dynbeat.schedules.runs()
    excessive = {}
    with record_statements(dynbeat.context.database.engine) as statements:
        for (scope, calls), filters in itertools.product(scopes(dynbeat).items(), FILTERS):
            listed, counted, names = calls
            how = {**filters, **names}
            _, most = read_pages(statements, listed, number=4, limit=LIMIT, **how)
            _, rows = rows_of(statements, counted, **how)
            # A probe of the unfinished runs, the end of the scan, and the page.
            if max(most, rows) > 5 * SCANNED:
                excessive[scope, str(filters)] = (most, rows)
        assert statements

    assert excessive == {}


def test_unfinished_runs_are_found_without_their_history(dynbeat):
    with record_statements(dynbeat.context.database.engine) as statements:
        for scope, (listed, counted, names) in scopes(dynbeat).items():
            how = {"status": UNFINISHED, **names}
            pages, most = read_pages(statements, listed, number=100, limit=LIMIT, **how)
            count, rows = rows_of(statements, counted, **how)
            found = [run.id for page in pages for run in page]
            times = [run.fire_at for page in pages for run in page]
            assert len(found) == len(set(found)) == count.count
            assert times == sorted(times, reverse=True)
            assert {len(page) for page in pages[:-1]} == {LIMIT}
            assert count.count == (NUMBER if scope == "all" else count.count)
            # The unfinished runs twice, and the page. MariaDB also counts the rows of a subquery.
            assert max(most, rows) <= 3 * NUMBER + 3 * LIMIT


def test_many_unfinished_runs_of_all_owners_fill_each_page(dynbeat, monkeypatch):
    monkeypatch.setattr(scans, "MAX_SCANNED", SCANNED)
    with record_statements(dynbeat.context.database.engine) as statements:
        pages, most = read_pages(
            statements, dynbeat.schedules.runs, number=100, limit=LIMIT, status=UNFINISHED
        )

    assert {len(page) for page in pages[:-1]} == {LIMIT}
    assert len({run.id for page in pages for run in page}) == NUMBER
    assert most <= 4 * SCANNED


def test_a_cancel_reads_no_finished_runs(dynbeat):
    mine = dynbeat.schedules.for_owner("user:42")
    number = mine.count_runs(status="sent").count
    with record_statements(dynbeat.context.database.engine) as statements:
        assert mine.cancel_runs() == number

    assert 0 < sum(each.rows for each in statements) <= 12 * NUMBER


@pytest.mark.parametrize("owner", [None, "user:42"])
@pytest.mark.parametrize("statuses", [("failed", "lost"), ()])
def test_the_runs_of_a_statistic_are_a_bounded_number_of_rows(
    dynbeat, monkeypatch, owner, statuses
):
    monkeypatch.setattr(scans, "MAX_SCANNED", SCANNED)
    matching = RunFilter(owner=owner, status=statuses, since=START)
    read = dynbeat.context.database.read
    with record_statements(dynbeat.context.database.engine) as statements:
        found = read(lambda session: run_pages.newest(session, matching=matching))

    assert len(found.rows) <= SCANNED
    # The end of the search, and the rows.
    assert 0 < sum(each.rows for each in statements) <= 3 * SCANNED
