"""Open, fill in and send the form of a schedule."""

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from celery_dynbeat.api import OwnerSchedules
from celery_dynbeat.api.results import ChangeInfo
from tests.support.flower_pages import Answer, Pages
from tests.support.html_forms import HtmlForm, form_of

NEW, SAVE, PREVIEW = "/dynbeat/new", "/dynbeat/save", "/dynbeat/preview"
OWNER = "user:42"


def edit_url(name: str, owner: str = OWNER) -> str:
    """Return the URL of the form of a stored schedule."""
    return f"/dynbeat/edit?{urlencode({'owner': owner, 'name': name})}"


def open_form(pages: Pages, name: str, owner: str = OWNER) -> HtmlForm:
    """Return the form of a stored schedule."""
    answer = pages.get(edit_url(name, owner))
    assert answer.status == 200, answer.text
    return form_in(answer)


def form_in(answer: Answer) -> HtmlForm:
    """Return the form of a page."""
    return form_of(answer.text, form_id="db-editor")


def save(pages: Pages, form: HtmlForm, **changes: str | Sequence[str]) -> Answer:
    """Return the answer to the form after ``changes`` of its fields."""
    return pages.post(SAVE, form.sent(**changes))


def preview(pages: Pages, form: HtmlForm, **changes: str | Sequence[str]) -> dict[str, Any]:
    """Return the preview of the form after ``changes`` of its fields."""
    answer = pages.post(PREVIEW, form.sent(**changes))
    assert answer.status == 200, answer.text
    shown: dict[str, Any] = json.loads(answer.text)
    return shown


def edits(mine: OwnerSchedules, name: str = "digest") -> Sequence[ChangeInfo]:
    """Return the updates of a schedule in the audit."""
    return [change for change in mine.changes(name) if change.action == "update"]
