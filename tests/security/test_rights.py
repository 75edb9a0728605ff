"""The rights that the account in dynbeat_database_url needs when the tables exist."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import ProgrammingError

from celery_dynbeat.api import Dynbeat
from celery_dynbeat.db import VERSION_TABLE
from celery_dynbeat.db.models import Base
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, START, application, execute
from tests.support.databases import administration, new_name


@pytest.fixture
def bounded_account(postgresql_url):
    """Return an account with only the rights that docs/how-to/database-rights.md names."""
    role = new_name()
    with application(postgresql_url) as owner:
        owner.context.prepare()
    with administration(postgresql_url) as connection:
        connection.execute(text(f"CREATE ROLE {role} LOGIN"))
        for table in Base.metadata.tables:
            connection.execute(text(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {role}"))
        connection.execute(text(f"GRANT SELECT ON {VERSION_TABLE} TO {role}"))
        connection.execute(text(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}"))
    yield make_url(postgresql_url).set(username=role).render_as_string()
    with administration(postgresql_url) as connection:
        connection.execute(text(f"DROP OWNED BY {role} CASCADE"))
        connection.execute(text(f"DROP ROLE {role}"))


def test_rights_on_rows_are_enough(bounded_account, clock):
    # The administrator owns the tables: `schema upgrade` runs with another account.
    with application(bounded_account, clock=clock, max_schedules_per_owner=9) as dynbeat:
        dynbeat.app.conf.dynbeat_create_tables = False
        mine, beat = dynbeat.schedules.for_owner("user:1"), ManualBeat(dynbeat)

        mine.create("n", task="t", trigger=MINUTELY)
        clock.advance(timedelta(minutes=3))
        beat.run_until_idle()
        mine.run_now("n")
        mine.backfill("n", since=START, until=clock.now() + timedelta(seconds=1))
        beat.run_until_idle()

        assert len(beat.publisher.sent) > 1
        assert dynbeat.schedules.delete_owner("user:1") == 1
        refuses_other_work(dynbeat)


def refuses_other_work(dynbeat: Dynbeat) -> None:
    for statement in ("DROP TABLE dynbeat_run", "CREATE ROLE other"):
        with pytest.raises(ProgrammingError):
            execute(dynbeat, statement)


def test_the_page_grants_the_rights_on_each_table():
    page = Path(__file__).parents[2] / "docs" / "how-to" / "database-rights.md"
    postgresql, mysql = re.findall(
        r"^```sql\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL
    )
    statement = postgresql.partition("GRANT SELECT, INSERT")[2].partition(";")[0]

    assert set(re.findall(r"dynbeat_\w+", statement)) == set(Base.metadata.tables)
    granted = re.findall(
        r"^GRANT SELECT, INSERT, UPDATE, DELETE ON app\.(\w+) TO", mysql, re.MULTILINE
    )
    assert sorted(granted) == sorted(Base.metadata.tables)
    assert f"GRANT SELECT ON app.{VERSION_TABLE} TO" in mysql
