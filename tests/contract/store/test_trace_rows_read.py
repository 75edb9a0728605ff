"""The statements for traces read the rows of their runs and schedules only, of a large table."""

import pytest
from sqlalchemy import text

from celery_dynbeat.store.runs import traces
from tests.support.applications import MINUTELY, application
from tests.support.executed_statements import record_statements

SCHEDULES = 2_000
#: Runs of a batch: one hundredth of the rows of each table.
BATCH = 20


@pytest.fixture(params=["postgresql", "mariadb"])
def filled(request):
    """Give an application with 2,000 schedules of one run each, without statistics."""
    with application(request.getfixturevalue(f"{request.param}_url"), traces=True) as dynbeat:
        dynbeat.context.prepare()
        new = {"task": "t", "trigger": MINUTELY}
        dynbeat.schedules.create_many([{**new, "name": f"n{each}"} for each in range(SCHEDULES)])
        new_id = "UUID()" if request.param == "mariadb" else "gen_random_uuid()"
        with dynbeat.context.database.engine.begin() as connection:
            connection.execute(
                text(
                    "INSERT INTO dynbeat_run (id, schedule_id, owner, name, task, scheduled_for,"
                    f" status) SELECT {new_id}, id, owner, name, task, created_at, 'succeeded'"
                    " FROM dynbeat_schedule"
                )
            )
            found = connection.execute(
                text("SELECT id, schedule_id FROM dynbeat_run ORDER BY id LIMIT :n"), {"n": BATCH}
            )
            chosen = [(str(row.id), row.schedule_id) for row in found]
        yield dynbeat.context.database, chosen


def test_a_batch_reads_and_writes_its_rows_only(filled):
    database, chosen = filled
    run_ids, schedule_ids = zip(*chosen, strict=True)
    context = f"00-{'a' * 32}-{'b' * 16}-01"

    with record_statements(database.engine) as statements:
        database.run(lambda session: traces.store(session, dict.fromkeys(run_ids, context)))
        found = database.run(lambda session: traces.of_runs(session, run_ids))
        database.run(lambda session: traces.of_edits(session, schedule_ids))

    assert {each.own for each in found.values()} == {context}
    assert len(found) == BATCH
    read = [each for each in statements if "dynbeat_" in each.sql]
    assert read
    assert max(each.rows for each in read) <= 3 * BATCH
