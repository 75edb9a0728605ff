"""The schedules of many owners are found by their names, without a scan of all schedules."""

from celery_dynbeat.store.schedules import imports
from tests.support.applications import application, execute
from tests.support.executed_statements import record_statements
from tests.support.number_rows import numbers

ROWS, WANTED = 10_000, 50
SCHEDULES = """
    INSERT INTO dynbeat_schedule (owner, name, task, trigger_kind, trigger_spec)
    SELECT CONCAT('user:', n % 1000), CONCAT('n', n), 't', 'every', 'PT1H' FROM {sequence}
"""


def test_the_names_of_several_owners_are_searched_in_their_index(postgresql_url):
    with application(postgresql_url) as dynbeat:
        dynbeat.context.prepare()
        execute(dynbeat, SCHEDULES.format(sequence=numbers("postgresql", rows=ROWS)))
        database = dynbeat.context.database
        keys = [(f"user:{number}", f"n{number}") for number in range(1, WANTED + 1)]
        awkward = [('o"{1}', "it's, \\ %s"), ("user:1", "absent")]
        with record_statements(database.engine) as executed:
            found = database.run(
                lambda session: list(imports.named(session, [*keys, *awkward], lock=True))
            )

    assert sorted(found) == sorted(keys)
    assert sum(each.rows for each in executed) <= 2 * WANTED
