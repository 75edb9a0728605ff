"""The limits that dynbeat_owner_limits gives to an owner and its groups."""

import logging
from datetime import timedelta

import pytest

from celery_dynbeat import ConfigurationError, InvalidScheduleError, OwnerLimits
from celery_dynbeat.common.settings import Settings, check_task_allowed
from celery_dynbeat.common.text import groups_of, is_group

TABLE = {"org:7/": {"max_schedules": 5, "min_interval": 60, "allowed_tasks": ["mail.*"]}}
OWNER = "org:7/user:42"


def settings(owner_limits=TABLE, **given):
    conf = {f"dynbeat_{name}": value for name, value in given.items()}
    return Settings.read({**conf, "dynbeat_owner_limits": owner_limits}, timezone="UTC")


def limits_of(name):
    """Be the function of another test, imported by its path."""
    return {"max_schedules": len(name)}


@pytest.mark.parametrize(
    ("owner", "groups"),
    [
        ("", []),
        ("user:42", []),
        ("org:7/user:42", ["org:7/"]),
        ("a/b/c", ["a/", "a/b/"]),
        ("a//b", ["a/", "a//"]),
        ("org:7/", []),
        ("a/b/", ["a/"]),
    ],
)
def test_the_groups_of_an_owner_are_its_beginnings_up_to_a_slash(owner, groups):
    assert list(groups_of(owner)) == groups
    assert all(map(is_group, groups))


def test_each_number_of_schedules_applies_and_the_default_is_the_owners():
    limits = settings({"a/": {"max_schedules": 5}, "a/b/": {"max_schedules": 3}}).owner_limits

    found = [
        (limit.owner, limit.value, limit.setting)
        for limit in limits.max_schedules("a/b/c", default=2)
    ]

    assert found == [
        ("a/", 5, "dynbeat_owner_limits: max_schedules"),
        ("a/b/", 3, "dynbeat_owner_limits: max_schedules"),
        ("a/b/c", 2, "dynbeat_max_schedules_per_owner"),
    ]


def test_the_value_of_an_owner_replaces_the_default_also_with_a_larger_one():
    limits = settings({"user:42": OwnerLimits(max_schedules=50)}).owner_limits

    assert [each.value for each in limits.max_schedules("user:42", default=2)] == [50]
    assert [each.value for each in limits.max_schedules("user:43", default=2)] == [2]
    assert limits.max_schedules("user:43", default=None) == []


@pytest.mark.parametrize(
    ("table", "seconds"),
    [
        ({}, 300),
        ({"org:7/": {"min_interval": 60}}, 60),
        ({"org:7/": {"min_interval": 60}, OWNER: {"min_interval": timedelta(seconds=90)}}, 90),
        ({"org:7/": {"min_interval": 60}, OWNER: {"min_interval": 0}}, 60),
        ({OWNER: {"min_interval": 0}}, 0),
        ({"org:8/": {"min_interval": 60}}, 300),
    ],
)
def test_the_longest_interval_applies_and_the_setting_only_without_one(table, seconds):
    made = settings(table, min_interval=300)

    assert made.min_interval_of(OWNER) == timedelta(seconds=seconds)
    assert made.for_pass().min_interval_of(OWNER) == timedelta(seconds=seconds)


def test_the_application_has_only_the_single_setting():
    def fail(name):
        raise AssertionError(name)

    made = settings(fail, min_interval=5, allowed_tasks=[])

    assert made.min_interval_of("") == timedelta(seconds=5)
    check_task_allowed(made, owner="", task="any")


def test_a_task_must_be_allowed_by_each_group_and_by_the_owner():
    table = {"org:7/": {"allowed_tasks": ["mail.*"]}, OWNER: {"allowed_tasks": ["*.send"]}}
    made = settings(table, allowed_tasks=["report"])

    check_task_allowed(made, owner=OWNER, task="mail.send")
    check_task_allowed(made, owner="user:1", task="report")
    for owner, task, whose in (
        (OWNER, "mail.read", f"dynbeat_owner_limits: allowed_tasks of owner {OWNER!r}"),
        (OWNER, "sms.send", "dynbeat_owner_limits: allowed_tasks of group 'org:7/'"),
        ("user:1", "mail.send", "dynbeat_allowed_tasks = ['report']"),
    ):
        with pytest.raises(InvalidScheduleError, match="does not let") as caught:
            check_task_allowed(made, owner=owner, task=task)
        assert whose in str(caught.value)


def test_a_function_is_asked_for_the_owner_and_each_group_and_once_in_a_pass():
    asked = []

    def limits(name):
        asked.append(name)

    made = settings(limits)
    of_pass = made.for_pass()
    for _ in range(3):
        of_pass.min_interval_of("a/b/c")
        check_task_allowed(of_pass, owner="a/b/c", task="t")

    assert asked == ["a/", "a/b/", "a/b/c"]
    assert of_pass.for_pass().owner_limits is of_pass.owner_limits
    assert made.for_pass().owner_limits is not of_pass.owner_limits


def test_a_function_can_be_named_by_its_path_and_is_imported_when_it_is_used():
    made = settings(f"{__name__}.limits_of")

    found = made.owner_limits.max_schedules("user:42", default=None)

    assert [each.value for each in found] == [len("user:42")]
    assert "limits_of" in repr(made.owner_limits)


@pytest.mark.parametrize("path", ["tests.no_such_module.limits", f"{__name__}.missing"])
def test_a_path_that_cannot_be_imported_is_named(path):
    with pytest.raises(ConfigurationError, match="cannot be imported") as caught:
        settings(path).owner_limits.of("user:42")
    assert path in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (7, "must be a dict of limits"),
        ("limits", "dotted path"),
        ({"": {}}, "for all owners use the single settings"),
        ({7: {}}, "must be an owner"),
        ({"a": 7}, "must be OwnerLimits"),
        ({"a": {"max_schedule": 7}}, "did you mean max_schedules"),
        ({"a": {"max_runing": 7}}, "did you mean max_running"),
        ({"a": {"max_running": 0}}, "must be a whole number from 1"),
        ({"a": {"max_starts_per_minute": True}}, "must be a whole number from 1"),
        ({"a": {"max_schedules": -1}}, "max_schedules = -1"),
        ({"a": {"max_schedules": True}}, "must be a whole number"),
        ({"a": {"min_interval": -1}}, "min_interval = -1"),
        ({"a": {"min_interval": "5"}}, "timedelta or a number of seconds"),
        ({"a": {"allowed_tasks": "mail.*"}}, "allowed_tasks = 'mail"),
        ({"a": {"allowed_tasks": [""]}}, "must be a list of names"),
        ({"a": {"allowed_tasks": 7}}, "must be a list of names"),
    ],
)
def test_a_wrong_value_is_refused_when_the_settings_are_read(wrong, message):
    with pytest.raises(ConfigurationError, match="dynbeat_owner_limits") as caught:
        settings(wrong)
    assert message in str(caught.value)


def test_what_a_function_returns_is_checked_when_it_is_used():
    def limits(name):
        return {"max_schedule": name}

    with pytest.raises(ConfigurationError, match="did you mean"):
        settings(limits).owner_limits.of("a")


def test_a_function_that_fails_raises_in_a_call_but_not_in_a_pass(caplog):
    def fail(name):
        raise LookupError(name)

    made = settings(fail, min_interval=5, allowed_tasks=["t"])

    with pytest.raises(LookupError):
        check_task_allowed(made, owner=OWNER, task="t")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            of_pass = made.for_pass()
            check_task_allowed(of_pass, owner=OWNER, task="t")
            assert of_pass.min_interval_of(OWNER) == timedelta(seconds=5)
            assert made.min_interval_of(OWNER) == timedelta(seconds=5)

    [record] = caplog.records
    assert (record.event, record.owner) == ("owner_limits_failed", "org:7/")
    assert record.exc_info is not None


def test_the_settings_have_the_same_representation_in_each_process():
    assert repr(settings(limits_of)) == repr(settings(limits_of))
    assert " at 0x" not in repr(settings(limits_of))
