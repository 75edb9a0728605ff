"""Write docs/reference/columns.md from the models and docs/columns.yaml: `make docs`.

tests/unit/db/test_columns_page.py fails if the page differs from what this script writes, if a
column has no meaning, and if a meaning has no column.
"""

from collections.abc import Iterator
from pathlib import Path

import yaml
from sqlalchemy import Boolean, Column, Double, Integer, String, Table, Text

# The models of alerts and the indexes complete the metadata.
from celery_dynbeat.db.indexes import METADATA
from celery_dynbeat.db.types import (
    ExactText,
    Json,
    LongText,
    RunId,
    RunInstant,
    UtcDateTime,
    Window,
)

PAGE = Path(__file__).parent / "reference" / "columns.md"
HEAD = """# Columns

`make docs` writes this page from the models and `docs/columns.yaml`. [Tables](tables.md) describes
how the tables work together, and what their constraints refuse. A column whose type includes NULL
can be NULL. A column with a default can be left out of an INSERT.

"""
#: Table -> what its ``row`` is, and what its ``columns`` mean, in the order of the page.
TABLES = yaml.safe_load((Path(__file__).parent / "columns.yaml").read_text())


def page() -> str:
    """Return the text of the page."""
    return HEAD + "\n".join(_section(METADATA.tables[name]) for name in TABLES)


def _section(table: Table) -> str:
    return "\n".join([f"## {table.key}\n\n{TABLES[table.key]['row']}\n", *_rows(table), ""])


def _rows(table: Table) -> Iterator[str]:
    meanings = TABLES[table.key]["columns"]
    yield "| column | type | default | meaning |"
    yield "|---|---|---|---|"
    for column in table.columns:
        meaning = meanings[column.name]
        yield f"| `{column.name}` | {_type(column)} | {_default(column)} | {meaning} |"


def _type(column: Column[object]) -> str:
    kinds: list[tuple[type, str]] = [
        (UtcDateTime, "instant"),
        (RunInstant, "instant"),
        (RunId, "UUID"),
        (Json, "JSON"),
        (LongText, "text"),
        (ExactText, "text"),
        (Boolean, "boolean"),
        (Double, "number"),
        (Integer, "integer"),
        (Text, "text"),
        (String, "text"),
        (Window, "text"),
    ]
    kind = next(text for known, text in kinds if isinstance(column.type, known))
    if isinstance(column.type, Json):
        kind = f"JSON {column.type.shape}"
    length = getattr(column.type, "length", None)
    if kind == "text" and length:
        kind = f"text, up to {length:,}"
    for key in column.foreign_keys:
        kind = f"{kind}, [`{key.column.table.key}`](#{key.column.table.key})"
    return f"{kind}, NULL" if column.nullable else kind


def _default(column: Column[object]) -> str:
    default = column.server_default
    if default is None:
        return "automatic" if column.autoincrement is True else ""
    argument = getattr(default, "arg", "")
    text = str(argument).strip("()")
    if text == "CURRENT_TIMESTAMP":
        return "now"
    if isinstance(argument, str):
        return f'`"{argument}"`' if not argument.isdigit() else f"`{argument}`"
    return f"`{text.strip(chr(39))}`"


if __name__ == "__main__":
    PAGE.write_text(page())
