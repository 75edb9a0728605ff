"""What the pages say about files and targets of the repository is what these files contain."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs" / "explanation" / "architecture.md",
    ROOT / "docs" / "reference" / "stability.md",
]
#: A path in the code of a sentence. `api/edit/` and `tests/unit` are paths, `<command>` is none.
PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*)`")
#: The folders that a path is relative to.
BASES = [ROOT, ROOT / "celery_dynbeat"]
#: `make` creates these.
BUILT = re.compile(r"build/|dist/|\.venv/|htmlcov/")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_path_in_the_text_exists(page):
    paths = [each for each in PATH.findall(page.read_text()) if not BUILT.match(each)]

    assert paths
    assert [each for each in paths if not any((base / each).exists() for base in BASES)] == []


def test_each_target_of_make_and_session_of_nox_in_the_pages_exists():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
    text = "\n".join(page.read_text() for page in pages)
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    sessions = re.findall(
        r"^def ([a-z]\w*)\(session", (ROOT / "noxfile.py").read_text(), re.MULTILINE
    )

    # A command can be after a variable, and the text can be wrapped in it.
    named = re.findall(r"`(?:\w+=\S+\s)?make\s([a-z-]+)|^make ([a-z-]+)", text, re.MULTILINE)
    assert {each or line for each, line in named} <= {*targets}
    named = re.findall(r"`nox -s ([a-z ]+)", text)
    assert {each for names in named for each in names.split()} <= {*sessions}


def test_the_page_about_monitoring_names_each_rule_with_its_severity():
    page = (ROOT / "docs" / "how-to" / "monitor.md").read_text()
    rules = yaml.safe_load((ROOT / "examples" / "monitoring" / "rules.yml").read_text())

    for severity in ("page", "ticket"):
        (row,) = re.findall(rf"^\| `{severity}` \| (.*?) \|", page, re.MULTILINE)
        assert re.findall(r"\w+", row) == [
            rule["alert"]
            for group in rules["groups"]
            for rule in group["rules"]
            if rule["labels"]["severity"] == severity
        ]
