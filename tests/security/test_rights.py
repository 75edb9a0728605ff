"""The rights that the account in dynbeat_database_url needs when the tables exist."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import OperationalError, ProgrammingError

from celery_dynbeat.api import Dynbeat
from celery_dynbeat.db import VERSION_TABLE
from celery_dynbeat.db.models import Base
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, START, application, execute
from tests.support.databases import administration, new_name

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "database.md"


def blocks():
    """Return the statements of the page: for PostgreSQL, and for MySQL and MariaDB."""
    return re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(params=["postgresql", "mariadb"])
def bounded_account(request):
    """Return an account with only the rights that docs/how-to/database.md names."""
    url = request.getfixturevalue(f"{request.param}_url")
    with application(url) as owner:
        owner.context.prepare()
    yield from {"postgresql": postgresql_account, "mariadb": mariadb_account}[request.param](url)


def postgresql_account(url):
    role = new_name()
    with administration(url) as connection:
        connection.execute(text(f"CREATE ROLE {role} LOGIN"))
        grant(connection, blocks()[0].replace("TO app;", f"TO {role};"))
    yield make_url(url).set(username=role).render_as_string()
    with administration(url) as connection:
        connection.execute(text(f"DROP OWNED BY {role} CASCADE"))
        connection.execute(text(f"DROP ROLE {role}"))


def mariadb_account(url):
    name, database = new_name(), make_url(url).database
    with administration(url) as connection:
        connection.execute(text(f"CREATE USER '{name}'@'%' IDENTIFIED BY 'secret'"))
        statements = blocks()[1].replace("ON app.", f"ON {database}.")
        grant(connection, statements.replace("'app'@'%'", f"'{name}'@'%'"))
    bounded = make_url(url).set(username=name, password="secret")
    yield bounded.render_as_string(hide_password=False)
    with administration(url) as connection:
        connection.execute(text(f"DROP USER '{name}'@'%'"))


def grant(connection, statements):
    for statement in statements.strip().rstrip(";").split(";"):
        connection.execute(text(statement))


def test_rights_on_rows_are_enough(bounded_account, clock):
    # The administrator owns the tables: `schema upgrade` runs with another account.
    with application(
        bounded_account, clock=clock, owner_limits={"*": {"max_schedules": 9}}
    ) as dynbeat:
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
        with pytest.raises((ProgrammingError, OperationalError), match=r"denied|must be owner"):
            execute(dynbeat, statement)


def test_the_page_grants_the_rights_on_each_table():
    postgresql, mysql = blocks()
    statement = postgresql.partition("GRANT SELECT, INSERT")[2].partition(";")[0]

    assert set(re.findall(r"dynbeat_\w+", statement)) == set(Base.metadata.tables)
    granted = re.findall(
        r"^GRANT SELECT, INSERT, UPDATE, DELETE ON app\.(\w+) TO", mysql, re.MULTILINE
    )
    assert sorted(granted) == sorted(Base.metadata.tables)
    assert f"GRANT SELECT ON app.{VERSION_TABLE} TO" in mysql
