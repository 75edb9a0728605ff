"""--owner-prefix of the commands that select schedules."""

import pytest

from tests.support.applications import MINUTELY

PREFIX = ("--owner-prefix", "org:7/")
OWNERS = ("org:7/a", "org:7/b")


@pytest.fixture(autouse=True)
def filled(dynbeat):
    for owner in (*OWNERS, "org:70/a"):
        dynbeat.schedules.for_owner(owner).create("n", task="t", trigger=MINUTELY)


def test_a_list_and_a_count_have_the_owners_with_the_prefix(as_json, shown):
    assert [each["owner"] for each in as_json("list", *PREFIX)] == list(OWNERS)
    assert shown("list", *PREFIX, "--count") == ["2"]
    assert {owner for line in shown("list", *PREFIX) for owner in line.split("\t")} >= set(OWNERS)


def test_the_schedules_of_the_owners_are_changed_and_no_others(shown, dynbeat):
    whose = "of the owners that begin with 'org:7/'"
    assert shown("pause", *PREFIX, "--yes") == [f"paused 2 schedules {whose}"]
    (text,) = shown("resume", "--state", "paused", *PREFIX, "--yes")
    assert text == f"resumed 2 schedules with the state 'paused' {whose}"
    (text,) = shown("delete", "--task", "t", *PREFIX, "--yes")
    assert text == f"deleted 2 schedules with the task 't' {whose}"

    (left,) = dynbeat.schedules.list()
    assert (left.owner, left.enabled) == ("org:70/a", True)


@pytest.mark.parametrize("words", [("list",), ("pause", "--yes"), ("delete", "--yes")])
def test_an_empty_prefix_selects_nothing(refused, dynbeat, words):
    own = dynbeat.schedules.for_owner("")
    own.create("own", task="t", trigger=MINUTELY)

    status, error = refused(*words, "--owner-prefix", "", "--name-prefix", "o")

    assert (status, "must not be empty" in error) == (1, True)
    assert own.get("own").enabled
