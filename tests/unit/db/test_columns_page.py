"""docs/reference/columns.md describes each column of each table, and no other."""

import runpy
from pathlib import Path

from celery_dynbeat.db.indexes import METADATA

SCRIPT = runpy.run_path(str(Path(__file__).parents[3] / "docs" / "generate_columns.py"))
TABLES = SCRIPT["TABLES"]


def test_the_page_is_written_by_make_docs():
    assert SCRIPT["PAGE"].read_text() == SCRIPT["page"](), "run `make docs`"


def test_each_column_has_a_meaning_and_each_meaning_a_column():
    described = {name: list(table["columns"]) for name, table in TABLES.items()}

    assert described == {name: list(table.c.keys()) for name, table in METADATA.tables.items()}


def test_the_meaning_of_a_column_that_may_be_null_says_what_null_is():
    nullable = {
        f"{table.key}.{column.name}": TABLES[table.key]["columns"][column.name]
        for table in METADATA.tables.values()
        for column in table.c
        if column.nullable
    }

    assert [name for name, meaning in nullable.items() if "NULL means " not in meaning] == []
