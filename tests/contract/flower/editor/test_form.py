"""What the form shows, and who sees it."""

import json
from datetime import date

import pytest

from celery_dynbeat import Cron
from tests.support.applications import MINUTELY, execute
from tests.support.editor_form import (
    NEW,
    edit_url,
    form_in,
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


@pytest.mark.usefixtures("digest")
def test_an_entry_of_beat_schedule_says_where_to_edit_it(dynbeat, pages):
    assert "Celery configuration" not in pages.get(edit_url("digest")).text
    execute(dynbeat, "UPDATE dynbeat_schedule SET managed_by = 'config'")

    assert (
        "Edits that you make here are overwritten when a beat starts."
        in pages.get(edit_url("digest")).text
    )


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


@pytest.mark.usefixtures("digest")
def test_the_list_leads_to_the_form_of_a_new_schedule(pages, serve):
    assert f'href="{NEW}"' in pages.get("/dynbeat/schedules").text
    assert f'href="{NEW}"' not in serve().get("/dynbeat/schedules").text


@pytest.mark.parametrize("path", [NEW, edit_url("digest")])
def test_without_write_access_there_is_no_form(serve, path):
    answer = serve().get(path)

    assert answer.status == 403
    assert "<form" not in answer.text
    assert "Flower requires no login" in answer.text


@pytest.mark.usefixtures("mine")
def test_a_schedule_that_does_not_exist_is_404(pages):
    assert pages.get(edit_url("nope")).status == 404


def test_a_rule_is_shown_and_read_as_its_text(dynbeat, mine, pages):
    dynbeat.calendars.upsert("holidays", dates=[date(2026, 12, 25)])
    trigger = Cron("0 9 * * mon-fri", timezone="Europe/Berlin").excluding(calendar="holidays")
    mine.create("n", task="t", trigger=trigger)

    form = open_form(pages, "n")
    assert form.values["rule"] == str(trigger) == mine.get("n").rule
    assert save(pages, form, rule=form.values["rule"].replace("9", "10", 1)).status == 303
    later = Cron("0 10 * * mon-fri", timezone="Europe/Berlin").excluding(calendar="holidays")
    assert mine.get("n").given_trigger == later


def test_an_unknown_calendar_is_an_error_of_the_rule(mine, pages):
    mine.create("n", task="t", trigger=MINUTELY)

    answer = save(pages, open_form(pages, "n"), rule="5m except calendar holiday")

    assert answer.status == 422
    assert "holiday" in form_in(answer).errors["rule"]
