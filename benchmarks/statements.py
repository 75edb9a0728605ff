"""What a database was asked meanwhile, as PostgreSQL counts it: statements, pages, transactions."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, make_url, text
from sqlalchemy.exc import DBAPIError

#: What frames other statements, and asks for no rows.
_FRAMES = ("BEGIN", "COMMIT", "ROLLBACK", "SET", "SHOW", "LISTEN", "UNLISTEN", "DISCARD")


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement without its values: how often it was run, and the pages that it touched."""

    text: str
    calls: int
    pages: int

    @property
    def is_frame(self) -> bool:
        """Whether it only begins or ends a transaction, or concerns the connection itself."""
        return self.text.upper().startswith(_FRAMES)


def count_from_now(engine: Engine) -> bool:
    """Let connections that are opened from now on be counted; return whether they can be.

    The counts of this database begin at zero.
    """
    name = make_url(str(engine.url)).database
    with _autocommit(engine) as connection:
        try:
            connection.execute(text("CREATE EXTENSION IF NOT EXISTS pg_stat_statements"))
            connection.execute(text("SELECT count(*) FROM pg_stat_statements"))
        except DBAPIError:
            return False
        connection.exec_driver_sql(f'ALTER DATABASE "{name}" SET pg_stat_statements.track = top')
    forget(engine)
    return True


def forget(engine: Engine) -> None:
    """Begin to count anew."""
    reset = (
        "SELECT pg_stat_statements_reset(0, oid, 0) FROM pg_database"
        " WHERE datname = current_database()"
    )
    with _autocommit(engine) as connection:
        connection.execute(text(reset))


def counted(engine: Engine) -> Sequence[Statement]:
    """Return what was run on this database, most often first."""
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
    """Return how many transactions the database has ended so far, ours included.

    What a connection did reaches this count within a second of its silence.
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
