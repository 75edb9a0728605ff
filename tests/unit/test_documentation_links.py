"""Each link of the pages has a target, each table is one, and the index names each how-to guide."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: The links of a template are relative to the page that is made of it.
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md")
    for page in ROOT.glob(pattern)
    if not page.stem.endswith("_template")
)
BLOCK = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
DASHES = re.compile(r"\|(\s*:?-+:?\s*\|)+")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def links_of(page):
    """Return the targets of a page within the repository."""
    targets = LINK.findall(BLOCK.sub("", page.read_text()))
    return [each for each in targets if "://" not in each and not each.startswith("mailto:")]


def anchors_of(page):
    """Return the anchors that GitHub makes of the headings of a page."""
    headings = HEADING.findall(BLOCK.sub("", page.read_text()))
    texts = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", each).lower().strip() for each in headings)
    return {re.sub(r"[^\w\- ]", "", each).replace(" ", "-") for each in texts}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_table_has_a_row_of_dashes_after_its_first_row(page):
    blocks = re.split(r"\n(?!\|)", BLOCK.sub("", page.read_text()))
    tables = [block[block.index("\n|") + 1 :] for block in blocks if "\n|" in block]
    wrong = [
        table.partition("\n")[0]
        for table in tables
        if [bool(DASHES.fullmatch(row)) for row in table.split("\n")].count(True) != 1
        or not DASHES.fullmatch(table.split("\n")[1])
    ]
    # A text directly before a table makes its rows a part of that text.
    joined = [block for block in blocks if "\n|" in block and block.partition("\n|")[0].strip()]

    assert wrong == []
    assert joined == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_link_has_a_target(page):
    missing = []
    for link in links_of(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in anchors_of(target)
        ):
            missing.append(link)

    assert missing == []


def test_the_index_names_each_how_to_guide():
    guides = {f"how-to/{page.name}" for page in (ROOT / "docs" / "how-to").glob("*.md")}
    linked = {link.partition("#")[0] for link in links_of(ROOT / "docs" / "README.md")}

    assert guides - linked == set()


def test_the_readme_leads_from_each_other_scheduler_to_its_guide():
    guides = {f"docs/how-to/{each.name}" for each in (ROOT / "docs/how-to").glob("switch-from-*")}

    assert guides - set(links_of(ROOT / "README.md")) == set()
