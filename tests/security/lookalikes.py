"""Owners that a careless comparison mistakes for another, and the content of the tables."""

import unicodedata

from sqlalchemy import text

from celery_dynbeat.db.indexes import METADATA

VICTIM = "usér:1"
#: Causes of a mistake: collations, LIKE, prefixes, normal forms, case.
ALIKE = [
    *("USÉR:1", "Usér:1", "user:1", "usér:10", "usér:", "usér:1:1", "xusér:1", ""),
    *("%", "usér:%", "usér:_", "_____:1", "us*", "usér:1%", "\\usér:1"),
    *(unicodedata.normalize("NFD", VICTIM), "usér:\uff11", "usér:\u00b9", "usér:1\u200b"),
    *("usér:1' OR '1'='1", "usér:1'; DROP TABLE dynbeat_run; --", 'usér:1"'),
]
#: Values that are not valid owners.
INVALID_OWNERS = [
    *("usér:1 ", " usér:1", "usér:1\n", "usér:1\t", "usér:1\x00", "usér:1\u00a0", "usér:1\x7f"),
    *("usér:1\ud800", "usér:1\x1b[0m", "x" * 256, None, 1, b"us\xc3\xa9r:1", ["usér:1"]),
]


def everything(dynbeat):
    """Return each row of each table as text."""
    with dynbeat.context.database.engine.connect() as connection:
        return {
            f"{table.name}: {tuple(row)!r}"
            for table in METADATA.sorted_tables
            for row in connection.execute(text(f"SELECT * FROM {table.name}"))
        }
