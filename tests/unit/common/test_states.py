"""The transitions of a run, and the page that draws them."""

from pathlib import Path

import pytest

from celery_dynbeat.common import states
from celery_dynbeat.common.states import OWNED, UNFINISHED, Status, Transition

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "run-states.md"
TRANSITIONS = {name: value for name, value in vars(states).items() if isinstance(value, Transition)}


@pytest.mark.parametrize("name", TRANSITIONS)
def test_the_page_names_each_transition(name):
    assert f"`{name}`" in PAGE.read_text()


def test_a_run_that_has_ended_never_changes_again():
    sources = {source for transition in TRANSITIONS.values() for source in transition.sources}

    assert sources == {*UNFINISHED, *OWNED}


def test_a_transition_leads_to_each_status():
    targets = {target for transition in TRANSITIONS.values() for target in transition.targets}

    assert targets == set(Status)
