"""The values of a file become declared schedules, or an error with its line."""

import pytest

from celery_dynbeat.cli.declarations.document import declared_file
from celery_dynbeat.cli.declarations.source import DeclarationError, read

DIGEST = "  - name: digest\n    task: mail.digest\n    trigger: PT5M\n"


def found(text, *, owner=None):
    return declared_file(read(text, file="f.yaml"), owner=owner).schedules


def test_the_owner_of_the_file_is_the_default_of_its_schedules():
    text = f"owner: user:42\nschedules:\n{DIGEST}  - {{name: a, task: t, trigger: x, owner: b}}\n"

    assert [(each.owner, each.name) for each in found(text)] == [
        ("user:42", "digest"),
        ("b", "a"),
    ]


def test_the_option_is_the_owner_of_a_file_without_one():
    assert found(f"schedules:\n{DIGEST}", owner="user:7")[0].owner == "user:7"
    assert found(f"schedules:\n{DIGEST}")[0].owner == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.yaml: the file must be a mapping"),
        ("- a", "f.yaml:1: the file must be a mapping"),
        ("schedule: []", "f.yaml:1: there is no such key: 'schedule'; did you mean schedules"),
        ("version: 2\nschedules: []", "f.yaml:1: version 2"),
        ("version: 1", "f.yaml:1: schedules must be a list"),
        ("schedules: {}", "f.yaml:1: schedules must be a list"),
        ("schedules:\n  - 1", "f.yaml:2: 1 must be a mapping"),
        (f"schedules:\n{DIGEST}    tigger: x", "f.yaml:5: .*'tigger'; did you mean trigger"),
        (f"schedules:\n{DIGEST}    7: x", "f.yaml:5: there is no such key: 7; known are"),
        ("schedules:\n  - name: a\n    task: t", "f.yaml:2: schedule 'a' has no trigger"),
        ("schedules:\n  - task: t\n    trigger: PT5M", "f.yaml:2: schedule 0 has no name"),
        ("schedules:\n  - {name: 1, task: t, trigger: PT5M}", "f.yaml:2: name = 1: must be"),
        (f"schedules:\n{DIGEST}    owner: 7", "f.yaml:5: owner = 7: must be a string"),
        ("owner: [a]\nschedules: []", "f.yaml:1: owner = .*must be a string"),
        (f"schedules:\n{DIGEST}{DIGEST}", "f.yaml:5: .*twice, first in line 2"),
    ],
)
def test_an_invalid_file_is_refused_with_line_and_key(text, message):
    with pytest.raises(DeclarationError, match=message):
        found(text)


@pytest.mark.parametrize("text", [f"owner: b\nschedules:\n{DIGEST}", "schedules:\n{}"])
def test_a_file_may_not_name_another_owner_than_the_option(text):
    entry = f"{DIGEST}    owner: b"

    with pytest.raises(DeclarationError, match="--owner allows only 'a'"):
        found(text.replace("{}", entry), owner="a")
