"""PostgreSQL databases with the tables of this version, which tests use one after the other.

To create and drop a database takes the server 350 ms of processor time, to empty its tables 3 ms.
A database is dropped, not used again, if a test left anything but rows: a session, a change of the
schema, statistics, large tables.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, text

from celery_dynbeat.db.indexes import METADATA
from celery_dynbeat.db.names import VERSION_TABLE
from tests.support.databases import (
    administration,
    assert_no_open_transaction,
    database_url,
    new_name,
    open_postgresql_transactions,
)
from tests.support.waiting import wait_until

#: Sessions of closed connections end within this time.
SESSIONS_END_WITHIN = 1.0
#: Larger tables keep traces of their deleted rows: slower scans and other query plans.
MAX_GROWTH_BYTES = 512_000
#: Children first.
TABLES = [table.name for table in reversed(METADATA.sorted_tables)]

SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = :name"
CATALOGS = (
    *("pg_class", "pg_attribute", "pg_attrdef", "pg_constraint", "pg_index", "pg_trigger"),
    *("pg_proc", "pg_type", "pg_namespace", "pg_rewrite", "pg_sequence", "pg_default_acl"),
)
# A changed row has a higher xmin. The oids of tables that are not catalogs start at 16384.
SCHEMA = "SELECT {}, {}, {}".format(
    ", ".join(f"(SELECT (count(*), max(xmin::text::bigint))::text FROM {c})" for c in CATALOGS),
    "(SELECT count(*) FROM pg_statistic WHERE starelid >= 16384)",
    "(SELECT count(*) FROM pg_db_role_setting JOIN pg_database d ON d.oid = setdatabase"
    " WHERE datname = current_database())",
)
VERSION = f"SELECT max(xmin::text::bigint) FROM {VERSION_TABLE}"
SIZE = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND oid >= 16384"
RESTART_SEQUENCES = "SELECT setval(oid::regclass, 1, false) FROM pg_class WHERE relkind = 'S'"


class PostgreSQLPool:
    """Copies of the database ``template`` on one server."""

    def __init__(self, server_url: str, template: str) -> None:
        self._server_url = server_url
        self._template = template
        self._free: list[str] = []
        with administration(database_url(server_url, template)) as connection:
            self._schema = connection.execute(text(SCHEMA)).one()
            self._version = connection.scalar(text(VERSION))
            self._max_size = connection.scalar(text(SIZE)) + MAX_GROWTH_BYTES

    @contextmanager
    def database(self) -> Iterator[str]:
        """Yield the URL of a database without rows.

        Raises AssertionError at the end if a client has an open transaction.
        """
        with administration(self._server_url) as connection:
            name = self._free.pop() if self._free else self._create(connection)
            is_free = False
            try:
                yield database_url(self._server_url, name)
                assert_no_open_transaction(open_postgresql_transactions, connection, name=name)
                is_free = self._has_no_session(connection, name) and self._empty(name)
            finally:
                if is_free:
                    self._free.append(name)
                else:
                    self._drop(connection, name)

    def close(self) -> None:
        """Drop the databases."""
        with administration(self._server_url) as connection:
            while self._free:
                self._drop(connection, self._free.pop())

    def _create(self, connection: Connection) -> str:
        name = new_name()
        connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {self._template}"))
        return name

    def _drop(self, connection: Connection, name: str) -> None:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))

    def _has_no_session(self, connection: Connection, name: str) -> bool:
        def have_ended() -> bool:
            return not connection.scalar(text(SESSIONS), {"name": name})

        try:
            return wait_until(have_ended, within=SESSIONS_END_WITHIN)
        except AssertionError:
            return False

    def _empty(self, name: str) -> bool:
        """Delete all rows. Return False if the database differs from the template in more."""
        with administration(database_url(self._server_url, name)) as connection:
            if connection.execute(text(SCHEMA)).one() != self._schema:
                return False
            if connection.scalar(text(VERSION)) != self._version:
                return False
            if connection.scalar(text(SIZE)) > self._max_size:
                return False
            for table in TABLES:
                connection.execute(text(f"DELETE FROM {table}"))
            connection.execute(text(RESTART_SEQUENCES))
        return True
