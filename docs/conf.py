"""The configuration of the site: `make site` builds it with Sphinx, MyST and Furo.

The pages are written for GitHub. Two things are adapted to the site when a page is read:

- ``<!-- site: include PATH -->`` is replaced by the text of a page outside this folder, or of a
  page that GitHub shows as the index of its folder.
- A link to a file outside this folder becomes a link to the repository, whose address is the
  environment variable SITE_REPOSITORY (``https://host/owner/name/blob/REVISION``). Without the
  variable, a file that readers copy becomes a download of the site. Of other links the text stays,
  without a target.
"""

import os
import posixpath
import re
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
#: For contributors, in the repository only.
DECISIONS = DOCS / "decisions.md"
ROOT = DOCS.parent
REPOSITORY = os.environ.get("SITE_REPOSITORY", "").rstrip("/")

project = "celery_dynbeat"
author = "The celery_dynbeat maintainers"
copyright = author  # noqa: A001 - Sphinx reads this name
release = os.environ.get("SITE_VERSION") or version_of("celery-dynbeat")
version = release
root_doc = "index"
exclude_patterns = ["README.md", "decisions.md", "*_template.md"]

extensions = ["myst_parser", "sphinx.ext.autodoc"]
# The anchors that GitHub makes of headings.
myst_heading_anchors = 4
suppress_warnings = [
    # Output of programs is no valid input of a lexer.
    "misc.highlighting_failure",
]
highlight_language = "none"
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = f"celery_dynbeat {release}"
html_static_path = ["_static"]
html_favicon = "_static/icon.svg"
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
# Sphinx opens it relative to the current folder.
html_search_scorer = str(DOCS / "search_scorer.js")
templates_path = ["_templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/versions.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
# The sources are the pages of the repository before they are adapted.
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {"color-brand-primary": "#1d5e36", "color-brand-content": "#1a5f7e"},
    "dark_css_variables": {"color-brand-primary": "#7cc48f", "color-brand-content": "#7fbfe0"},
}

#: Files outside this folder that readers copy: the suffixes of configuration.
COPIED = {".yml", ".yaml", ".json", ".service", ".conf"}

INCLUDE = re.compile(r"^<!-- site: include (\S+) -->\n?", re.MULTILINE)
#: Blocks of code stay as they are.
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def adapted(text: str, *, folder: Path, page_folder: Path) -> str:
    """Return the Markdown ``text`` of a file in ``folder`` as it is built in ``page_folder``."""
    text = INCLUDE.sub(lambda match: _included(match[1], folder=folder), text)
    parts = FENCE.split(text)
    parts[::2] = [
        LINK.sub(lambda match: _link(match, folder=folder, page_folder=page_folder), part)
        for part in parts[::2]
    ]
    return "".join(parts)


def _included(path: str, *, folder: Path) -> str:
    target = (folder / path).resolve()
    return adapted(target.read_text(), folder=target.parent, page_folder=folder)


def _link(match: re.Match[str], *, folder: Path, page_folder: Path) -> str:
    image, text, link = match.groups()
    path, hash_sign, anchor = link.partition("#")
    if not path or "://" in link or link.startswith("mailto:"):
        return match[0]
    target = (folder / path).resolve()
    if target == DOCS / "README.md":
        target = DOCS / "index.md"
    if target == ROOT / "CHANGELOG.md":
        target = DOCS / "changelog.md"
    if target.is_relative_to(DOCS) and target.suffix != ".py" and target != DECISIONS:
        here = posixpath.relpath(target, page_folder)
        return f"{image}[{text}]({here}{hash_sign}{anchor})"
    if not target.exists():
        # The builder reports it.
        return match[0]
    if REPOSITORY:
        inside = target.relative_to(ROOT).as_posix()
        return f"[{text}]({REPOSITORY}/{inside}{hash_sign}{anchor})"
    if target.suffix in COPIED:
        label = " ".join(text.replace("`", "").split())
        return f"{{download}}`{label} <{posixpath.relpath(target, page_folder)}>`"
    return text


def adapt(app: Sphinx, docname: str, source: list[str]) -> None:
    """Adapt the text of a page to the site."""
    folder = (Path(app.srcdir) / docname).parent
    source[0] = adapted(source[0], folder=folder, page_folder=folder)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the adaptation of pages."""
    app.connect("source-read", adapt)
    return {"parallel_read_safe": True}
