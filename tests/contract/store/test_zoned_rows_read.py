"""A change of the zone or the quiet hours of an owner reads the schedules of that owner only."""

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


CHANGES = {
    "zone": lambda mine: mine.set_timezone("Asia/Seoul"),
    "quiet hours": lambda mine: mine.set_quiet_hours(["22:00-07:00"]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_change_of_the_clock_of_an_owner_reads_its_schedules(request, kind, change):
    with application(request.getfixturevalue(f"{kind}_url")) as dynbeat:
        dynbeat.context.prepare()
        execute(dynbeat, OTHERS.format(sequence=numbers(kind, rows=ROWS)))
        mine = dynbeat.schedules.for_owner("user:1234")
        for number in range(OWN):
            mine.create(f"n{number}", task="t", trigger=Cron("0 9 * * *"))

        with record_statements(dynbeat.context.database.engine) as statements:
            assert change(mine) == OWN

        assert statements
        assert sum(each.rows for each in statements) <= 10 * OWN
