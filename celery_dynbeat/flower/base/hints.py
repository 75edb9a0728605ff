"""The hints of explanations and of the health report, as HTML. PURE.

Their commands stand in backticks: ``End the hold: `celery -A app dynbeat release --owner a`.``
"""

import re
from collections.abc import Mapping

from celery_dynbeat.flower.templates import show

#: A command of ``celery dynbeat`` -> the button or the page that does the same.
_IN_THE_PAGES: Mapping[str, str] = {
    "errors": "the page Runs",
    "list": "the page Schedules",
    "quiet-hours": "the page of the owner",
    "release": "the button Release",
    "rerun": "the button Rerun",
    "resume": "the button Resume",
    "run": "the button Run now",
    "show-run": "the page of the run",
    "status": "the page Beats",
    "usage": "the page of the owner",
}
_COMMAND = re.compile(r"`(?P<code>(?:celery -A \S+ dynbeat )?(?P<verb>[\w-]+)[^`]*)`")


def hint_html(text: str) -> str:
    """Return a hint, with names of buttons and pages in place of the commands that they replace.

    Other commands, such as the start of a beat, stay as code.
    """
    parts, at = [], 0
    for match in _COMMAND.finditer(text):
        before = text[at : match.start()]
        parts.append(show(before))
        named = _IN_THE_PAGES.get(match["verb"])
        is_first = (not before.strip() and at == 0) or before.endswith(". ")
        if named is None:
            parts.append(f"<code>{show(match['code'])}</code>")
        else:
            parts.append(named[0].upper() + named[1:] if is_first else named)
        at = match.end()
    return "".join([*parts, show(text[at:])])
