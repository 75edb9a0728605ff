"""Single statements keep a connection of the pool unless another thread needs it."""

import os
import threading

import pytest
from sqlalchemy import bindparam, update
from sqlalchemy.pool import NullPool

from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.models import APPLICATIONS
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("dynbeat")
STATEMENT = (
    update(APPLICATIONS)
    .where(APPLICATIONS.c.name == bindparam("wanted"))
    .values(name=bindparam("wanted"))
)
VALUES = {"wanted": "nothing"}


@pytest.fixture
def make(database_url):
    if not database_url.startswith("postgresql"):
        pytest.skip("the other databases use a session")
    made = []

    def database(**options):
        made.append(Database(database_url, engine_options=options))
        return made[-1]

    yield database
    for each in made:
        each.dispose()


def kept(database):
    return [connection for connection, _ in database._single_statements._kept]


def test_a_connection_is_kept_and_returned_before_a_session(make):
    database = make()
    assert database.execute(STATEMENT, VALUES) == 0
    [connection] = kept(database)

    database.execute(STATEMENT, VALUES)

    assert kept(database) == [connection]
    database.read(lambda session: session.connection())
    assert kept(database) == []


def test_after_a_statement_the_pooled_connection_has_its_isolation_level(make):
    database = make()
    database.execute(STATEMENT, VALUES)

    with database.engine.connect() as connection:
        assert connection.get_isolation_level() == "READ COMMITTED"


@pytest.mark.parametrize("options", [{"poolclass": NullPool}, {"pool_recycle": 60}])
def test_pools_whose_connections_must_return_keep_none(make, options):
    database = make(**options)

    database.execute(STATEMENT, VALUES)

    assert kept(database) == []


def test_a_thread_that_waits_for_a_connection_gets_it_when_a_statement_ends(make):
    database = make(pool_size=2, max_overflow=0, pool_timeout=20)
    database.execute(STATEMENT, VALUES)
    single = database._single_statements
    may_end, ended = [threading.Event(), threading.Event()], threading.Event()
    begun = threading.Barrier(3)

    def execute(until):
        def read(result):
            begun.wait()
            until.wait()
            return result.rowcount

        single._execute(STATEMENT, VALUES, read)

    def wait():
        database.read(lambda session: session.connection())
        ended.set()

    statements = [threading.Thread(target=execute, args=(until,)) for until in may_end]
    waiting = threading.Thread(target=wait)
    for thread in statements:
        thread.start()
    begun.wait()
    waiting.start()
    wait_until(lambda: single._others, within=10)
    may_end[0].set()

    # The other statement still uses its connection.
    assert ended.wait(10)
    may_end[1].set()
    for thread in (*statements, waiting):
        thread.join()


def test_a_disposed_engine_keeps_no_connection_open(make):
    database = make()
    database.execute(STATEMENT, VALUES)
    engine, [connection] = database._engine, kept(database)
    driver = connection.connection.driver_connection

    engine.dispose()

    assert driver.closed
    assert kept(database) == []


def test_a_thread_that_ends_a_statement_while_another_waits_keeps_nothing(make):
    database = make()
    single = database._single_statements

    with single.keeping_none():
        database.execute(STATEMENT, VALUES)
        assert kept(database) == []

    database.execute(STATEMENT, VALUES)
    assert len(kept(database)) == 1


def test_a_child_does_not_use_what_a_thread_kept_during_the_fork(make, monkeypatch):
    database = make()
    database.execute(STATEMENT, VALUES)
    kind = "celery_dynbeat.db.connections.SingleStatements"
    with monkeypatch.context() as patched:
        # A thread of the parent keeps its connection after the function that runs before the fork.
        patched.setattr(f"{kind}.return_kept", lambda _: None)
        # Another thread waits for a connection. It does not exist in the child.
        database._single_statements._others.append(None)
        child = os.fork()
        if not child:
            state = database._single_statements
            os._exit(len(state._kept) + len(state._others))
        database._single_statements._others.pop()

    assert os.waitpid(child, 0)[1] == 0
    assert len(kept(database)) == 1


def test_a_map_of_schemas_applies(make):
    database = make(execution_options={"schema_translate_map": {None: "missing"}})

    with pytest.raises(Exception, match="missing"):
        database.execute(STATEMENT, VALUES)
