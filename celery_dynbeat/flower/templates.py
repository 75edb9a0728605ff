"""Find the templates of the schedule pages, and Flower's own.

Flower has no extension points. This loader therefore returns Flower's templates with changes where
they must name the schedule pages, so that no module of Flower is patched.

    page.html, schedules.html, ...   ours; a name that starts with ``flower:`` is always Flower's
    base.html, navbar.html           Flower's, with a block in the head, our items, and time zones
    task.html                        ours, which extends Flower's: it links the run of the task
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tornado.escape import to_unicode, xhtml_escape
from tornado.template import BaseLoader, Template

from celery_dynbeat.common.text import escape

FOLDER = Path(__file__).parent / "templates"
#: A name with this prefix means a template of Flower.
FLOWER_PREFIX = "flower:"

# The texts that are inserted into Flower's templates. Its versions differ, so each place is found
# by a tag that all of them have.
_HEAD = "{% block head %}{% end %}</head>"
_ITEMS = '{% set dynbeat_link = "LINK" %}{% include "dynbeat_navbar.html" %}</ul>'
_ZONES = '{% if getattr(handler, "tab", "") %}{% include "dynbeat_zones.html" %}{% end %}'
_LIST = re.compile(r"<ul class=\"[^\"]*navbar-nav[^>]*>")


def show(value: Any) -> str:
    """Return a value as text of HTML, with escapes for control and direction characters."""
    return xhtml_escape(escape(to_unicode(value)))


class DynbeatLoader(BaseLoader):
    """Load our templates first, and Flower's from ``flower_folder`` next."""

    def __init__(self, flower_folder: str, **settings: Any) -> None:
        namespace = {"show": show}
        super().__init__(namespace=namespace, **settings)
        self._flower = Path(flower_folder)

    def resolve_path(self, name: str, parent_path: str | None = None) -> str:
        """Return the name of a template unchanged, because all templates are in one folder."""
        del parent_path
        return name

    def _create_template(self, name: str) -> Template:
        own = FOLDER / name
        if not name.startswith(FLOWER_PREFIX) and own.is_file():
            return Template(own.read_text(), name=name, loader=self, autoescape="show")
        source = (self._flower / name.removeprefix(FLOWER_PREFIX)).read_text()
        return Template(_CHANGES.get(name, str)(source), name=name, loader=self)


def _with_head(source: str) -> str:
    """Return the base of all pages with a block at the end of its head."""
    return source.replace("</head>", _HEAD, 1)


def _with_items(source: str) -> str:
    """Return the navigation bar with our items, and the menu of time zones on our pages."""
    # Flower 2.0 and 2.1 have dark links on a green bar.
    link = "nav-link text-dark" if "nav-link text-dark" in source else "nav-link"
    second = list(_LIST.finditer(source))[1]
    left = source[: second.end()].replace("</ul>", _ITEMS.replace("LINK", link), 1)
    return left + _ZONES + source[second.end() :]


_CHANGES: Mapping[str, Callable[[str], str]] = {"base.html": _with_head, "navbar.html": _with_items}
