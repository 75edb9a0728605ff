"""The site: what docs/conf.py adapts in a page, and how a version is published."""

import json
import re
import runpy
import sys
import types
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
publish = runpy.run_path(str(DOCS / "publish_site.py"))["publish"]


@pytest.fixture
def configuration(monkeypatch):
    """Return the names of docs/conf.py, which is executed without Sphinx."""

    def load(repository=""):
        monkeypatch.setenv("SITE_REPOSITORY", repository)
        application = types.ModuleType("sphinx.application")
        monkeypatch.setattr(application, "Sphinx", object, raising=False)
        monkeypatch.setitem(sys.modules, "sphinx", types.ModuleType("sphinx"))
        monkeypatch.setitem(sys.modules, "sphinx.application", application)
        return runpy.run_path(str(DOCS / "conf.py"))

    return load


@pytest.fixture
def adapted(configuration):
    """Return ``adapted`` of docs/conf.py for a page in docs/how-to."""

    def load(repository=""):
        function = configuration(repository)["adapted"]
        return lambda text: function(text, folder=DOCS / "how-to", page_folder=DOCS / "how-to")

    return load


def test_a_link_to_a_file_outside_leads_to_the_repository(adapted):
    text = "see [the\nrows](../../tests/faults/test_poison_rows.py)."

    assert adapted("https://host/a/b/blob/1")(text) == (
        "see [the\nrows](https://host/a/b/blob/1/tests/faults/test_poison_rows.py)."
    )
    assert adapted()(text) == "see the\nrows."


def test_code_is_not_adapted(adapted):
    text = "```python\nx = [a](../../tests/faults/test_poison_rows.py)\n```"

    assert adapted("https://host")(text) == text


def test_each_page_is_in_one_section_of_the_navigation():
    listed = re.findall(r"^((?:[\w-]+/)?[\w-]+)$", (DOCS / "index.md").read_text(), re.MULTILINE)
    pages = {
        str(page.relative_to(DOCS).with_suffix(""))
        for page in DOCS.rglob("*.md")
        if not page.stem.endswith("_template")
    }
    # docs/README.md is the text of the index. The decisions are in the repository only.
    pages -= {"index", "README", "decisions"}

    assert sorted(listed) == sorted(pages)


def test_the_scorer_of_the_search_is_part_of_the_site(configuration):
    scorer = Path(configuration()["html_search_scorer"]).read_text()
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    folders = re.findall(r'^  \["([\w/-]+)", -?\d+\],$', scorer, re.MULTILINE)

    assert "var Scorer = {\n  score: dynbeatScore," in scorer
    assert folders
    for folder in folders:
        assert any(page.startswith(folder) for page in pages), folder


def build_of(folder, text):
    folder.mkdir()
    (folder / "index.html").write_text(text)
    return folder


def test_versions_are_published_beside_each_other(tmp_path):
    site = tmp_path / "site"
    for version in ("main", "0.9.0", "0.10.0"):
        publish(build_of(tmp_path / version, version), site, version)
    publish(build_of(tmp_path / "again", "corrected"), site, "0.9.0")

    assert json.loads((site / "versions.json").read_text()) == ["0.10.0", "0.9.0", "main"]
    assert 'href="0.10.0/"' in (site / "index.html").read_text()
    assert (site / "0.9.0" / "index.html").read_text() == "corrected"
    assert (site / "main" / "index.html").read_text() == "main"


@pytest.mark.parametrize("version", ["", "latest", "../x", "1"])
def test_a_version_is_main_or_a_release(tmp_path, version):
    with pytest.raises(ValueError, match="must be 'main' or a release"):
        publish(build_of(tmp_path / "build", ""), tmp_path / "site", version)
