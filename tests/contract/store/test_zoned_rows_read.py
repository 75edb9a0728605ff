"""A change of an owner's zone reads the schedules of that owner only."""

import pytest

from celery_dynbeat import Cron
from tests.support.applications import application, execute
from tests.support.executed_statements import record_statements
from tests.support.number_rows import numbers

ROWS = 20_000
OWN = 20
OTHERS = """
    INSERT INTO dynbeat_schedule
        (owner, name, task, trigger_kind, trigger_spec, timezone, inherits_timezone, enabled)
    SELECT CONCAT('user:', n % 100), CONCAT('n', n), 't', 'cron', '0 9 * * *', 'UTC', TRUE, FALSE
    FROM {sequence}
"""


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_change_of_the_zone_reads_the_schedules_of_its_owner(request, kind):
    with application(request.getfixturevalue(f"{kind}_url")) as dynbeat:
        dynbeat.context.prepare()
        execute(dynbeat, OTHERS.format(sequence=numbers(kind, rows=ROWS)))
        mine = dynbeat.schedules.for_owner("user:1234")
        for number in range(OWN):
            mine.create(f"n{number}", task="t", trigger=Cron("0 9 * * *"))

        with record_statements(dynbeat.context.database.engine) as statements:
            assert mine.set_timezone("Asia/Seoul") == OWN

        assert statements
        assert sum(each.rows for each in statements) <= 10 * OWN
        assert {row.timezone for row in mine.list()} == {"Asia/Seoul"}


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_quiet_hours_read_the_schedules_of_their_owner(request, kind):
    with application(request.getfixturevalue(f"{kind}_url")) as dynbeat:
        dynbeat.context.prepare()
        execute(dynbeat, OTHERS.format(sequence=numbers(kind, rows=ROWS)))
        mine = dynbeat.schedules.for_owner("user:1234")
        for number in range(OWN):
            mine.create(f"n{number}", task="t", trigger=Cron("0 9 * * *"))

        with record_statements(dynbeat.context.database.engine) as statements:
            assert mine.set_quiet_hours(["22:00-07:00"]) == OWN

        assert statements
        assert sum(each.rows for each in statements) <= 10 * OWN
