"""hold, and its end."""

import pytest

OWNER = ("--owner", "user:42")
ALICE = ("--actor", "alice")
BOB = ("--actor", "bob")


def test_a_hold_names_its_actor_reason_and_end(shown, as_json, mine):
    (text,) = shown("hold", *OWNER, *ALICE, "--reason", "ticket 12", "--until", "2h")
    assert text == "held owner 'user:42' until 2026-11-21 11:00:00 UTC, in 2 h"

    described = "owner 'user:42' by alice: ticket 12, until 2026-11-21 11:00:00 UTC, in 2 h"
    assert f"held\t{described}" in shown("owner", "user:42")
    assert as_json("owner", "user:42")[0]["holds"] == [each.to_dict() for each in mine.holds()]
    assert as_json("owner", "user:7")[0]["holds"] == []


def test_a_second_hold_replaces_the_first_and_any_actor_releases_it(shown, refused, command, mine):
    shown("hold", *OWNER, *ALICE, "--reason", "x")
    shown("hold", *OWNER, *BOB, "--reason", "y")
    shown("hold", "--all-owners", *BOB, "--reason", "migration")

    result = command("hold", "--release", *OWNER, *ALICE)

    assert result.stdout == "released owner 'user:42': held by bob\n"
    assert result.stderr == "still held: everything by bob: migration\n"
    status, error = refused("hold", "--release", *OWNER, *ALICE)
    assert status == 1
    assert "there is no hold of owner 'user:42'" in error
    assert len(mine.holds()) == 1


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("hold", "--reason", "x"), 2, "give --owner OWNER or --all-owners"),
        (("hold", "--all-owners"), 2, "Missing option '--reason'"),
        (("hold", *OWNER, "--all-owners", "--reason", "x"), 2, "cannot be combined"),
        (("hold", *OWNER, "--reason", "x", "--until", "2020-01-01T00:00Z"), 1, "later than now"),
        (("hold", "--release", "--all-owners"), 1, "there is no hold of everything"),
        (("hold", "--release"), 2, "give --owner OWNER or --all-owners"),
    ],
)
def test_a_refusal_says_what_is_missing(refused, arguments, status, words):
    exit_status, error = refused(*arguments)

    assert exit_status == status
    assert words in error
