"""changes: who made which edit, and why."""

import json

from tests.support.applications import MINUTELY
from tests.support.suites import each_database

OWNER = ("--owner", "user:42")
ALICE = ("--actor", "alice", "--reason", "ticket 12")


def test_each_command_records_its_actor_and_reason(shown, as_json):
    shown("add", "n", "--task", "t", "--trigger", "60s", *OWNER, *ALICE)
    shown("update", "n", "--window", "5", *OWNER, *ALICE)
    shown("pause", "n", *OWNER, *ALICE)
    shown("resume", "n", *OWNER, "--actor", "bob")
    shown("run", "n", *OWNER, *ALICE)
    shown("hold", *OWNER, *ALICE)
    shown("hold", "--release", *OWNER, *ALICE)
    shown("delete", "n", "--yes", *OWNER, *ALICE)

    found = as_json("changes", *OWNER)

    actions = ["create", "update", "pause", "resume", "run_now", "hold", "release", "delete"]
    assert [each["action"] for each in found] == actions[::-1]
    assert {each["actor"] for each in found if each["action"] != "resume"} == {"alice"}
    assert {each["reason"] for each in found if each["actor"] == "alice"} == {"ticket 12"}
    assert [each["action"] for each in as_json("changes", "--all-owners", "--actor", "bob")] == [
        "resume"
    ]


@each_database
def test_changes_are_read_page_by_page(command, shown, mine):
    mine.create("n", task="t", trigger=MINUTELY)
    for number in range(4):
        mine.update("n", window=number + 1)

    first = command("changes", *OWNER, "--limit", "2")
    rest = shown("changes", *OWNER, "--after", first.stderr.split()[-1])

    assert len(first.stdout.splitlines()) == 2
    assert len(rest) == 3
    assert len(shown("changes", *OWNER, "--limit", "1", "--all")) == 5
    assert json.loads(shown("changes", *OWNER, "--json")[0])["after"]["window"] == 4.0
