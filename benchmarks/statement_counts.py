"""Count the statements, pages and transactions of a PostgreSQL database."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, make_url, text
from sqlalchemy.exc import DBAPIError

#: Statements that control a transaction or the session, and read no rows.
_TRANSACTION_CONTROL = (
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SET",
    "SHOW",
    "LISTEN",
    "UNLISTEN",
    "DISCARD",
)


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement without its values, its number of calls, and the pages that it read."""

    text: str
    calls: int
    pages: int

    @property
    def is_transaction_control(self) -> bool:
        """Whether it only controls a transaction or the session."""
        return self.text.upper().startswith(_TRANSACTION_CONTROL)


def count_from_now(engine: Engine) -> bool:
    """Start to count the statements of new connections; return False if PostgreSQL cannot.

    The counts of this database start at zero.
    """
    name = make_url(str(engine.url)).database
    with _autocommit(engine) as connection:
        try:
            connection.execute(text("CREATE EXTENSION IF NOT EXISTS pg_stat_statements"))
            connection.execute(text("SELECT count(*) FROM pg_stat_statements"))
        except DBAPIError:
            return False
        connection.exec_driver_sql(f'ALTER DATABASE "{name}" SET pg_stat_statements.track = top')
    reset_counts(engine)
    return True


def reset_counts(engine: Engine) -> None:
    """Set the counts of this database to zero."""
    reset = (
        "SELECT pg_stat_statements_reset(0, oid, 0) FROM pg_database"
        " WHERE datname = current_database()"
    )
    with _autocommit(engine) as connection:
        connection.execute(text(reset))


def read_statements(engine: Engine) -> Sequence[Statement]:
    """Return the statements of this database, most calls first."""
    query = """
        SELECT query, sum(calls)::bigint, sum(shared_blks_hit + shared_blks_read)::bigint
        FROM pg_stat_statements JOIN pg_database ON pg_database.oid = dbid
        WHERE datname = current_database()
          AND query NOT LIKE ALL (ARRAY['%pg_stat_%', '%pg_backend_pid%'])
        GROUP BY query ORDER BY 2 DESC
    """
    with _autocommit(engine) as connection:
        return [Statement(*row) for row in connection.execute(text(query))]


def transactions(engine: Engine) -> int:
    """Return the number of transactions that the database has ended, this one included.

    PostgreSQL adds the statements of a connection within a second after the connection is idle.
    """
    query = """
        SELECT xact_commit + xact_rollback FROM pg_stat_database
        WHERE datname = current_database()
    """
    with _autocommit(engine) as connection:
        count: int = connection.execute(text(query)).scalar_one()
        return count


def _autocommit(engine: Engine) -> Connection:
    return engine.connect().execution_options(isolation_level="AUTOCOMMIT")
