"""Write the table of fields to docs/reference/api.md: `make docs`.

tests/unit/api/test_field_table.py fails if the page differs from what this script writes.
"""

from pathlib import Path

from celery_dynbeat.api.fields import FIELDS, Field

PAGE = Path(__file__).parent / "reference" / "api.md"
BEGIN, END = "<!-- begin: docs/generate_fields.py -->\n", "<!-- end -->\n"


def page() -> str:
    """Return the text of the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


def table() -> str:
    """Return a row for each field."""
    rows = [
        f"| `{name}` | {field.type.values} | {_default(field)} | {field.help} |"
        for name, field in FIELDS.items()
    ]
    head = ["| field | value | default | meaning |", "|---|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def _default(field: Field) -> str:
    if field.is_required:
        return "required"
    if field.setting is not None:
        return f"`{field.setting}`"
    return field.unset if field.default is None else "empty"


if __name__ == "__main__":
    PAGE.write_text(page())
