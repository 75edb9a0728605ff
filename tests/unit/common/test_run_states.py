"""The state machine as a table, and the page that draws it."""

from pathlib import Path

import pytest

from celery_dynbeat.common.run_states import OWNED, TRANSITIONS, UNFINISHED, Status

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "run-states.md"


@pytest.mark.parametrize("name", TRANSITIONS)
def test_the_page_tells_of_each_transition(name):
    assert f"`{name}`" in PAGE.read_text()


def test_what_has_ended_never_changes_again():
    sources = {source for way in TRANSITIONS.values() for source in way.sources}

    assert sources == {*UNFINISHED, *OWNED}


def test_each_state_that_is_not_recorded_at_once_is_reached():
    targets = {target for way in TRANSITIONS.values() for target in way.targets}

    assert targets == set(Status) - {Status.SKIPPED}
