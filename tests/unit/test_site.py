"""The site: what docs/conf.py adapts in a page, and how a version is published."""

import json
import re
import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
publish = runpy.run_path(str(DOCS / "publish_site.py"))["publish"]


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
