"""A schedule that someone else saved first is overwritten on request only."""

import pytest

from celery_dynbeat import Cron
from tests.support.editor_form import form_in, open_form, save


@pytest.mark.usefixtures("digest")
def test_an_edit_of_a_schedule_that_was_edited_meanwhile_shows_both(dynbeat, pages, mine):
    form, before = open_form(pages, "digest"), mine.get("digest").given_trigger
    with dynbeat.acting(actor="bob", reason="quieter"):
        mine.update("digest", trigger=Cron("0 10 * * mon-fri"), description="bob's")

    answer = save(pages, form, description="alice's")

    assert answer.status == 409
    assert "Someone else saved this schedule first" in answer.text
    assert "bob" in answer.text
    assert "quieter" in answer.text
    shown = form_in(answer).values
    # What alice typed. The table shows what bob stored.
    assert (shown["rule"], shown["description"]) == (form.values["rule"], "alice's")
    assert "0 10 * * mon-fri" in answer.text
    assert mine.get("digest").description == "bob's"

    assert save(pages, form_in(answer)).status == 303
    info = mine.get("digest")
    assert (info.description, info.given_trigger) == ("alice's", before)


@pytest.mark.usefixtures("digest")
def test_a_schedule_that_was_deleted_meanwhile_is_created_again_on_request_only(pages, mine):
    form = open_form(pages, "digest")
    mine.delete("digest")

    answer = save(pages, form, description="kept")

    assert "was deleted in the meantime" in answer.text
    assert list(mine.list()) == []
    assert save(pages, form_in(answer)).status == 303
    assert mine.get("digest").description == "kept"


@pytest.mark.usefixtures("digest")
def test_a_form_without_a_version_overwrites_nothing(pages, mine):
    form = open_form(pages, "digest")

    answer = save(pages, form, version="", description="forged")

    assert answer.status == 409
    assert mine.get("digest").description == ""
