"""Read the sizes and dead rows of the tables. PostgreSQL only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Engine, text

_TABLES = """
    SELECT relname, n_live_tup, n_dead_tup, pg_relation_size(relid)
    FROM pg_stat_user_tables WHERE relname IN ('dynbeat_schedule', 'dynbeat_run') ORDER BY relname
"""
_INDEXES = """
    SELECT relname, indexrelname, pg_relation_size(indexrelid)
    FROM pg_stat_user_indexes ORDER BY indexrelname
"""


@dataclass(frozen=True, slots=True)
class Table:
    """The statistics of a table: live and dead rows, and sizes in bytes."""

    name: str
    live: int
    dead: int
    bytes: int
    indexes: Mapping[str, int]


def read_tables(engine: Engine) -> Sequence[Table]:
    """Return the present statistics of the tables of schedules and runs."""
    with engine.connect() as connection:
        indexes = connection.execute(text(_INDEXES)).all()
        return [
            Table(name, live, dead, size, {each[1]: each[2] for each in indexes if each[0] == name})
            for name, live, dead, size in connection.execute(text(_TABLES))
        ]
