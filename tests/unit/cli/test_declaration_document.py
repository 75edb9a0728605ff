"""The values of a file become declared schedules, or an error with its schedule."""

import pytest

from celery_dynbeat.cli.file_format import DeclarationError, declared_file

DIGEST = "  - name: digest\n    task: mail.digest\n    trigger: PT5M\n"


def found(text, *, owner=None):
    return declared_file(text, file="f.yaml", owner=owner).schedules


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
        ("- a", "f.yaml: the file must be a mapping"),
        ("schedule: []", "f.yaml: there is no such key: 'schedule'; did you mean schedules"),
        ("version: 2\nschedules: []", "f.yaml: version 2"),
        ("version: 1", "f.yaml: schedules must be a list"),
        ("schedules: {}", "f.yaml: schedules must be a list"),
        ("schedules:\n  - 1", "f.yaml: schedule 0: 1 must be a mapping"),
        (
            f"schedules:\n{DIGEST}    tigger: x",
            "'digest': .*'tigger'; did you mean trigger",
        ),
        (f"schedules:\n{DIGEST}    7: x", "f.yaml:5: .*each key must be a text"),
        ("schedules:\n  - name: a\n    task: t", "f.yaml: schedule 'a': it has no trigger"),
        ("schedules:\n  - task: t\n    trigger: PT5M", "f.yaml: schedule 0: it has no name"),
        ("schedules:\n  - {name: 1, task: t, trigger: PT5M}", "schedule 1: name must be a string"),
        (f"schedules:\n{DIGEST}    owner: 7", "schedule 'digest': owner = 7: must be a string"),
        ("owner: [a]\nschedules: []", "f.yaml: owner = .*must be a string"),
        ("owner:\nschedules: []", "f.yaml: owner = None: must be a string"),
        (f"schedules:\n{DIGEST}{DIGEST}", "schedule 'digest': the file has it twice"),
    ],
)
def test_an_invalid_file_is_refused_with_schedule_and_key(text, message):
    with pytest.raises(DeclarationError, match=message):
        found(text)


@pytest.mark.parametrize("text", [f"owner: b\nschedules:\n{DIGEST}", "schedules:\n{}"])
def test_a_file_may_not_name_another_owner_than_the_option(text):
    entry = f"{DIGEST}    owner: b"

    with pytest.raises(DeclarationError, match="--owner allows only 'a'"):
        found(text.replace("{}", entry), owner="a")
