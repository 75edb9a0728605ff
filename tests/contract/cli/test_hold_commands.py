"""hold, release, holds."""

import pytest

from tests.support.applications import MINUTELY

OWNER = ("--owner", "user:42")
ALICE = ("--actor", "alice")
BOB = ("--actor", "bob")


def test_a_hold_names_its_actor_reason_and_end(shown, as_json, mine):
    (text,) = shown("hold", *OWNER, *ALICE, "--reason", "ticket 12", "--until", "2h")
    assert text == "held owner 'user:42' until 2026-11-21 11:00:00 UTC, in 2 h"

    assert shown("holds") == [
        "user:42\talice\tticket 12\t2026-11-21T09:00:00Z\t2026-11-21T11:00:00Z"
    ]
    assert as_json("holds", *OWNER) == [each.to_dict() for each in mine.holds()]
    assert shown("holds", "--owner", "user:7") == []


def test_a_hold_of_everything_is_shown_with_each_schedule(shown, mine):
    mine.create("n", task="t", trigger=MINUTELY)
    shown("hold", "--all-owners", *ALICE, "--reason", "migration")

    lines = dict(line.split("\t", 1) for line in shown("show", "n", *OWNER))

    assert lines["held"] == "everything by alice: migration"


def test_a_release_ends_the_hold_of_the_actor_only(shown, refused, command):
    for actor in (ALICE, BOB):
        shown("hold", *OWNER, *actor, "--reason", "x")

    result = command("release", *OWNER, *ALICE)
    assert result.stdout == "released owner 'user:42': held by alice\n"
    assert result.stderr == "still held: owner 'user:42' by bob: x\n"
    status, error = refused("release", *OWNER, *ALICE)
    assert status == 1
    assert "is held by bob; `dynbeat holds` shows why, --all-actors ends these holds" in error
    shown("release", *OWNER, *ALICE, "--all-actors")
    assert shown("holds") == []


def test_a_group_is_held_and_released(shown, as_json, dynbeat):
    owner = dynbeat.schedules.for_owner("org:7/user:1")
    owner.create("n", task="t", trigger=MINUTELY)
    group = ("--owner", "org:7/")

    (text,) = shown("hold", *group, *ALICE, "--reason", "unpaid")
    assert text == "held group 'org:7/'"
    assert as_json("holds", *group) == [each.to_dict() for each in owner.holds()]
    lines = dict(line.split("\t", 1) for line in shown("show", "n", "--owner", owner.owner))
    assert lines["held"] == "group 'org:7/' by alice: unpaid"
    assert [line.split("\t")[:2] for line in shown("list", *group)] == [[owner.owner, "n"]]
    assert shown("list", *group, "--state", "held", "--count") == ["1"]
    (text,) = shown("release", *group, *ALICE)
    assert text == "released group 'org:7/': held by alice"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("hold", "--reason", "x"), 2, "give --owner OWNER or --all-owners"),
        (("hold", "--all-owners"), 2, "Missing option '--reason'"),
        (("hold", *OWNER, "--all-owners", "--reason", "x"), 2, "cannot be combined"),
        (("hold", *OWNER, "--reason", "x", "--until", "2020-01-01T00:00Z"), 1, "later than now"),
        (("release", "--all-owners"), 1, "there is no hold of everything"),
        (("release",), 2, "give --owner OWNER or --all-owners"),
    ],
)
def test_a_refusal_says_what_is_missing(refused, arguments, status, words):
    exit_status, error = refused(*arguments)

    assert exit_status == status
    assert words in error
