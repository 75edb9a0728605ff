"""What the form shows, and who sees it."""

import json

import pytest

from tests.support.applications import MINUTELY
from tests.support.editor_form import (
    NEW,
    edit_url,
    open_form,
    save,
)

HOSTILE = '</textarea>"><script>alert(1)</script>\u202e&amp;'


@pytest.mark.usefixtures("digest")
def test_hidden_arguments_are_neither_shown_nor_changed(serve, mine):
    pages = serve(basic_auth=["alice:secret"], dynbeat_hide_arguments=True)
    pages.user, pages.password = "alice", "secret"
    mine.update("digest", kwargs={"password": "hunter2"})

    form = open_form(pages, "digest")
    answer = save(pages, form, kwargs="{}", args="[1]", description="x")

    assert "hunter2" not in pages.get(edit_url("digest")).text
    assert "kwargs" not in form.values
    assert answer.status == 303
    info = mine.get("digest")
    assert (info.kwargs, info.args, info.description) == ({"password": "hunter2"}, [], "x")


def test_texts_of_users_are_shown_as_text(pages, mine):
    name = f"n {HOSTILE}"
    mine.create(
        name,
        task=HOSTILE,
        trigger=MINUTELY,
        description=HOSTILE,
        tags=[HOSTILE],
        kwargs={"a": HOSTILE},
        queue=HOSTILE,
    )

    text = pages.get(edit_url(name)).text

    assert "<script>alert" not in text
    assert json.loads(open_form(pages, name).values["kwargs"]) == {"a": HOSTILE}
    # In JSON a character that reverses the direction of the text is an escape.
    assert "\u202e" not in open_form(pages, name).values["kwargs"]
    typed = save(pages, open_form(pages, name), rule=HOSTILE)
    assert "<script>alert" not in typed.text


@pytest.mark.parametrize("path", [NEW, edit_url("digest")])
def test_without_write_access_there_is_no_form(serve, path):
    answer = serve().get(path)

    assert answer.status == 403
    assert "<form" not in answer.text
    assert "Flower requires no login" in answer.text
