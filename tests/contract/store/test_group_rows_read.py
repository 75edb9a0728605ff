"""The rows that the lists of a group read: those of its owners, at any position."""

import pytest

from celery_dynbeat.common.states import Action
from celery_dynbeat.common.text import EARLIEST
from celery_dynbeat.store import group_pages
from celery_dynbeat.store.runs import run_pages
from celery_dynbeat.store.runs.run_filters import RunFilter
from celery_dynbeat.store.schedules import moves
from celery_dynbeat.testing import FrozenClock
from tests.contract.store.test_rerun_rows_read import HEX, ID, SECONDS
from tests.contract.store.test_run_pages_read import read_pages, rows_of
from tests.support.applications import START, application, execute
from tests.support.executed_statements import record_statements
from tests.support.number_rows import numbers

ROWS = 30_000
#: The owners of one part, and the owners of the group.
PART, OWNERS = 5, 20
SCANNED = 100
LIMIT = 10
# One row in ten is of the group. The others are of owners before and after it.
OWNER = f"""
    CASE WHEN n % 10 = 0 THEN CONCAT('org:7/user:', n % {10 * OWNERS})
         WHEN n % 2 = 0 THEN 'org:70/user:1' ELSE 'org:6/user:1' END
"""
RUNS = f"""
    INSERT INTO dynbeat_run
        (id, owner, name, task, scheduled_for, status, origin, created_at, finished_at)
    SELECT {{id}}, {OWNER}, 'n', CASE WHEN n % 500 = 0 THEN 'rare' ELSE 't' END, {{at}},
        CASE WHEN n % 1000 = 0 THEN 'failed' ELSE 'succeeded' END, 'schedule', {{at}}, {{at}}
    FROM {{sequence}}
"""
CHANGES = f"""
    INSERT INTO dynbeat_change (changed_at, owner, name, action, actor)
    SELECT {{at}}, {OWNER}, 'n', 'update', 'alice' FROM {{sequence}}
"""
# One alert in fifty is open.
ALERTS = f"""
    INSERT INTO dynbeat_alert (schedule_id, owner, name, kind, opened_at, last_at, target,
        checked_at, recovered_at)
    SELECT n, {OWNER}, 'n', 'failed', {{at}}, {{at}}, 'default',
        CASE WHEN n % 50 = 0 THEN {{at}} END, CASE WHEN n % 50 = 0 THEN NULL ELSE {{at}} END
    FROM {{sequence}}
"""


@pytest.fixture(params=["postgresql", "mariadb"])
def dynbeat(request):
    kind = request.param
    with application(request.getfixturevalue(f"{kind}_url"), clock=FrozenClock(START)) as dynbeat:
        dynbeat.context.prepare()
        run_id = ID.format(hex=HEX[kind])
        given = {
            "id": f"CAST({run_id} AS uuid)" if kind == "postgresql" else run_id,
            "at": SECONDS[kind].format(start=f"{START:%Y-%m-%d %H:%M:%S}"),
            "sequence": numbers(kind, rows=ROWS),
        }
        for statement in (RUNS, CHANGES, ALERTS):
            execute(dynbeat, statement.format(**given))
        for table in ("run", "change", "alert"):
            execute(dynbeat, f"ANALYZE {'TABLE' if kind == 'mariadb' else ''} dynbeat_{table}")
        yield dynbeat


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(group_pages, "MAX_OWNERS", PART)
    monkeypatch.setattr(run_pages, "MAX_SCANNED", SCANNED)


def excessive(dynbeat, call, filters, *, most):
    """Return the filters for which a page reads more than ``most`` rows."""
    of_group = dynbeat.schedules.for_group("org:7/")
    getattr(of_group, call)()
    found = {}
    with record_statements(dynbeat.context.database.engine) as statements:
        for how in filters:
            pages, rows = read_pages(
                statements, getattr(of_group, call), number=12, limit=LIMIT, **how
            )
            assert {each.owner[:6] for page in pages for each in page} <= {"org:7/"}
            if rows > most:
                found[str(how)] = rows
        assert statements
    return found


def test_each_page_of_runs_reads_the_first_rows_of_its_owners(dynbeat):
    filters = ({}, {"status": "failed"}, {"task": "rare"}, {"since": START}, {"name": "n"})

    # The owners of a part, the ends of their scans, their rows, and the page.
    assert excessive(dynbeat, "runs", filters, most=6 * SCANNED) == {}


def test_each_count_of_runs_reads_a_bounded_number_of_rows(dynbeat):
    of_group = dynbeat.schedules.for_group("org:7/")
    of_group.count_runs()
    found = {}
    with record_statements(dynbeat.context.database.engine) as statements:
        for how in ({}, {"status": "failed"}, {"since": START}, {"task": "rare"}):
            _, rows = rows_of(statements, of_group.count_runs, **how)
            if rows > 5 * SCANNED:
                found[str(how)] = rows

    assert found == {}


@pytest.mark.parametrize("statuses", [("failed", "lost"), ()])
def test_the_runs_of_a_statistic_are_a_bounded_number_of_rows(dynbeat, statuses):
    matching = RunFilter(owner="org:7/", statuses=statuses, since=START)
    with record_statements(dynbeat.context.database.engine) as statements:
        found = dynbeat.context.database.read(
            lambda session: run_pages.newest(session, matching=matching)
        )

    assert len(found.rows) <= SCANNED
    # Its owners, and for each owner the end of the search and the rows. PostgreSQL prefers to read
    # the 30 failed runs of all owners by their index.
    assert 0 < sum(each.rows for each in statements) <= 8 * SCANNED


def test_each_page_of_changes_reads_the_first_rows_of_its_owners(dynbeat):
    filters = ({}, {"since": START}, {"actor": "alice"}, {"action": Action.UPDATE.value})

    # Each owner of the part has a page and one row more; PART * LIMIT = 50.
    assert excessive(dynbeat, "changes", filters, most=6 * PART * LIMIT) == {}


def test_each_page_of_alerts_reads_the_first_rows_of_its_owners(dynbeat):
    filters = ({}, {"only_open": False})

    # An alert and the message that it does not have.
    assert excessive(dynbeat, "alerts", filters, most=6 * PART * LIMIT) == {}


def test_a_batch_of_a_move_reads_its_runs_and_no_others(dynbeat):
    dynbeat.schedules.for_owner("org:6/user:1").create("n", task="t", trigger="@daily")
    linked = "UPDATE dynbeat_run SET schedule_id = (SELECT id FROM dynbeat_schedule)"
    execute(dynbeat, f"{linked} WHERE owner = 'org:6/user:1'")

    def move(session):
        (schedule,) = dynbeat.schedules.list(session=session)
        given = {"schedule_id": schedule.id, "after": EARLIEST, "limit": LIMIT}
        return moves.move_ended(session, owner="org:6/user:1", to="user:1", **given)

    with record_statements(dynbeat.context.database.engine) as statements:
        dynbeat.context.database.run(move)

    assert dynbeat.schedules.count_runs(owner="user:1").count == LIMIT
    # The list of schedules, the ids, and the runs by their ids.
    assert 0 < sum(each.rows for each in statements) <= 4 * LIMIT
