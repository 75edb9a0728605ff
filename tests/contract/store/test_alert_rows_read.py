"""The rows that the lists of alerts read of many alerts."""

import pytest

from celery_dynbeat.store.alerts import alerts
from celery_dynbeat.testing import FrozenClock
from tests.contract.store.test_rerun_rows_read import SECONDS
from tests.support.applications import START, application, execute
from tests.support.executed_statements import record_statements
from tests.support.number_rows import numbers

LIMIT = 10
ALERTS = 30_000
#: One alert in 1,000 is open, and the newest 200.
INSERT = """
    INSERT INTO dynbeat_alert (schedule_id, owner, name, kind, opened_at, last_at, target,
        checked_at, recovered_at)
    SELECT n, 'user:42', 'n', 'failed', {at}, {at}, 'default',
        CASE WHEN n % 1000 = 0 OR n > {newest} THEN {at} END,
        CASE WHEN n % 1000 = 0 OR n > {newest} THEN NULL ELSE {at} END
    FROM {sequence}
"""


@pytest.fixture(params=["postgresql", "mariadb"])
def dynbeat(request):
    kind = request.param
    url = request.getfixturevalue(f"{kind}_url")
    with application(url, clock=FrozenClock(START)) as dynbeat:
        dynbeat.context.prepare()
        at = SECONDS[kind].format(start=f"{START:%Y-%m-%d %H:%M:%S}")
        insert = INSERT.format(at=at, sequence=numbers(kind, rows=ALERTS), newest=ALERTS - 200)
        execute(dynbeat, insert)
        execute(dynbeat, f"ANALYZE {'TABLE' if kind == 'mariadb' else ''} dynbeat_alert")
        yield dynbeat


@pytest.mark.parametrize("read", [alerts.some_open, alerts.newest_recovered])
def test_a_list_of_alerts_reads_only_its_rows(dynbeat, read):
    database = dynbeat.context.database
    with record_statements(database.engine) as statements:
        rows = database.read(lambda session: read(session, limit=LIMIT))

    assert len(rows) == LIMIT
    # A row of the index, the alert, and the message that it does not have. MariaDB looks ahead.
    assert 0 < sum(each.rows for each in statements) <= 4 * LIMIT + 1
    is_open = read is alerts.some_open
    assert all((row.Alert.recovered_at is None) == is_open for row in rows)


def test_the_open_alerts_of_an_owner_are_read_without_its_recovered_ones(dynbeat):
    database = dynbeat.context.database

    def read(session):
        given = {"owner": "user:42", "only_open": True, "limit": LIMIT}
        return alerts.page(session, after=ALERTS // 2, **given)

    with record_statements(database.engine) as statements:
        rows = database.read(read)

    first = ALERTS // 2 + 1_000
    assert [row.Alert.schedule_id for row in rows] == list(range(first, first + 10_000, 1_000))
    assert 0 < sum(each.rows for each in statements) <= 4 * LIMIT + 1
