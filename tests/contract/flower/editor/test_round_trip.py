"""The form loses nothing that is stored."""

from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_dynbeat import Every
from celery_dynbeat.api.texts import Parsing, parse
from celery_dynbeat.flower.editor.form import texts_of
from celery_dynbeat.testing import FrozenClock
from tests.support.applications import START, execute
from tests.support.editor_form import OWNER, form_in, open_form, save
from tests.support.flower_pages import flower_pages
from tests.support.property_application import (
    EXAMPLE_FACTOR,
    delete_all_rows,
    prepared_application,
)
from tests.support.schedule_strategies import FIELDS, NAMES, OWNERS

SEOUL = ZoneInfo("Asia/Seoul")
DESCRIPTIONS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\x00"))
SCHEDULES = st.tuples(OWNERS, NAMES, FIELDS, DESCRIPTIONS)


@pytest.mark.timeout(300 * EXAMPLE_FACTOR)
def test_saving_an_opened_form_changes_nothing(sqlite_url):
    login = {"basic_auth": ["alice:secret"]}
    with (
        prepared_application(sqlite_url, clock=FrozenClock(START)) as dynbeat,
        flower_pages(dynbeat, **login) as pages,
    ):
        pages.user, pages.password = "alice", "secret"

        @settings(max_examples=60 * EXAMPLE_FACTOR, suppress_health_check=list(HealthCheck))
        @given(schedule=SCHEDULES)
        def each(schedule):
            owner, name, fields, description = schedule
            delete_all_rows(dynbeat)
            mine = dynbeat.schedules.for_owner(owner)
            made = mine.create(name, **{**fields, "description": description})

            answer = save(pages, open_form(pages, name, owner))

            assert answer.status == 303, form_in(answer).errors
            assert mine.get(name) == made
            assert [change.action for change in mine.changes(name)] == ["create"]

        each()


@pytest.mark.timeout(300 * EXAMPLE_FACTOR)
def test_each_text_of_a_form_is_read_back_as_the_stored_value(sqlite_url):
    with prepared_application(sqlite_url, clock=FrozenClock(START)) as dynbeat:
        by = Parsing(SEOUL, limit=65_536, now=dynbeat.context.clock.now)

        @settings(max_examples=100 * EXAMPLE_FACTOR, suppress_health_check=list(HealthCheck))
        @given(fields=FIELDS)
        def each(fields):
            delete_all_rows(dynbeat)
            mine = dynbeat.schedules.for_owner(OWNER)
            mine.set_timezone("Asia/Seoul")
            made = mine.create("n", **fields)

            parsed = parse(texts_of(made, zone=SEOUL), stored={}, by=by)

            assert parsed.errors == {}
            assert mine.update("n", **parsed.changes) == made

        each()


@pytest.mark.usefixtures("digest")
def test_a_damaged_trigger_is_kept_unless_it_is_edited(dynbeat, pages, mine):
    execute(dynbeat, "UPDATE dynbeat_schedule SET trigger_kind = 'moon', trigger_spec = 'full'")
    form = open_form(pages, "digest")
    assert form.values["rule"] == "full"

    assert save(pages, form).status == 303
    assert mine.get("digest").version == 1
    assert save(pages, form, description="x").status == 303
    assert mine.get("digest").stored_trigger["spec"] == "full"
    assert save(pages, open_form(pages, "digest"), rule="5m").status == 303
    assert mine.get("digest").trigger == Every(300)
