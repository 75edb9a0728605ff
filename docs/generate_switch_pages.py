"""Write what the pages about switching share, from docs/switch_template.md: `make docs`.

A page has the marks ``<!-- shared: PART -->`` and ``<!-- end -->`` around a part. The rows of a
table cannot have marks: a row with the first cell of a shared row is replaced by it.
tests/unit/importing/test_switch_pages.py fails if a page differs from what this script writes.
"""

import re
from pathlib import Path

DOCS = Path(__file__).parent
#: Page -> the name that ``dynbeat import`` takes.
PAGES = {
    DOCS / "how-to" / f"switch-from-{name}.md": name
    for name in ("django-celery-beat", "redbeat", "sqlalchemy-celery-beat")
}
MARKED = re.compile(r"<!-- shared: (\w+) -->\n.*?<!-- end -->\n", re.DOTALL)
_, *_SECTIONS = (DOCS / "switch_template.md").read_text().split("\n## ")
PARTS = {title: text.strip() for title, _, text in (each.partition("\n") for each in _SECTIONS)}
#: The first cell of a row -> the row.
ROWS = {row.split("|")[1]: row for row in PARTS.pop("rows").splitlines()}


def page(path: Path) -> str:
    """Return the text of a page with the present shared parts. Raises KeyError for another part."""
    scheduler = PAGES[path]

    def part(match: re.Match[str]) -> str:
        text = PARTS[match[1]].replace("SCHEDULER", scheduler)
        return f"<!-- shared: {match[1]} -->\n{text}\n<!-- end -->\n"

    lines = MARKED.sub(part, path.read_text()).splitlines(keepends=True)
    return "".join(_row(line) for line in lines)


def _row(line: str) -> str:
    first = line.split("|")[1] if line.startswith("| ") and line.count("|") > 1 else ""
    return f"{ROWS[first]}\n" if first in ROWS else line


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(page(each))
