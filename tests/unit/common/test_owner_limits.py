"""The limits that dynbeat_owner_limits gives to an owner."""

import logging
from datetime import timedelta

import pytest

from celery_dynbeat import ConfigurationError, InvalidArgumentError, OwnerLimits
from celery_dynbeat.common.settings import Settings

OWNER = "org:7/user:42"
TABLE = {OWNER: {"max_schedules": 5, "min_interval": 60, "allowed_tasks": ["mail.*"]}}


def settings(owner_limits=TABLE, **given):
    conf = {f"dynbeat_{name}": value for name, value in given.items()}
    return Settings.read({**conf, "dynbeat_owner_limits": owner_limits}, timezone="UTC")


OF_EVERY_OWNER = OwnerLimits(max_running=3)


def limits_of(name):
    """Be the function of another test, imported by its path."""
    return {"max_schedules": len(name)}


def of(given, owner):
    return settings(given).owner_limits.of(owner)


def test_the_value_of_an_owner_replaces_that_of_all_others_also_with_a_larger_one():
    table = {"user:42": OwnerLimits(max_schedules=50), "*": {"max_schedules": 2}}

    assert of(table, "user:42").max_schedules == 50
    assert of(table, "user:43").max_schedules == 2
    assert of({}, "user:43").max_schedules is None


def test_what_an_owner_does_not_set_follows_the_limits_of_all_others():
    others = {"max_schedules": 2, "min_interval": 60, "allowed_tasks": ["t"], "max_running": 3}
    table = {"user:42": {"max_running": 5}, "user:43": None, "*": others}

    assert of(table, "user:42") == OwnerLimits(**{**others, "max_running": 5})
    assert of(table, "user:43") == of(table, "user:44") == OwnerLimits(**others)


@pytest.mark.parametrize("given", [OwnerLimits(max_running=3), f"{__name__}.OF_EVERY_OWNER"])
def test_limits_alone_are_those_of_every_owner(given):
    assert of(given, "user:42") == OwnerLimits(max_running=3)
    assert of(given, "") == OwnerLimits()


def test_the_limits_that_a_function_returns_are_final():
    def limits(name):
        return {"max_running": 1} if name == "user:42" else None

    assert of(limits, "user:42") == OwnerLimits(max_running=1)
    assert of(limits, "*") == OwnerLimits()


@pytest.mark.parametrize(
    ("table", "seconds"),
    [
        ({}, 300),
        ({OWNER: {"min_interval": timedelta(seconds=90)}}, 90),
        ({OWNER: {"min_interval": 0}}, 0),
    ],
)
def test_the_interval_of_the_owner_applies_and_the_setting_only_without_one(table, seconds):
    made = settings({**table, "org:7/": {"min_interval": 600}}, min_interval=300)

    assert made.min_interval_of(OWNER) == timedelta(seconds=seconds)
    assert made.for_pass().min_interval_of(OWNER) == timedelta(seconds=seconds)


def test_a_task_must_match_the_patterns_of_the_owner_or_else_of_all_others():
    table = {OWNER: {"allowed_tasks": ["*.send"]}, "*": {"allowed_tasks": ["report"]}}
    limits = settings(table).owner_limits

    limits.check_task(owner=OWNER, task="mail.send")
    limits.check_task(owner="user:1", task="report")
    for owner, task, patterns in ((OWNER, "report", "*.send"), ("user:1", "mail.send", "report")):
        with pytest.raises(InvalidArgumentError, match="does not let") as caught:
            limits.check_task(owner=owner, task=task)
        named = f"dynbeat_owner_limits: allowed_tasks of owner {owner!r} = [{patterns!r}]"
        assert named in str(caught.value)


def test_a_function_is_asked_for_an_owner_once_in_a_pass():
    asked = []

    made = settings(asked.append)
    of_pass = made.for_pass()
    for _ in range(3):
        of_pass.min_interval_of("a/b/c")
        of_pass.owner_limits.check_task(owner="a/b/c", task="t")

    assert asked == ["a/b/c"]
    assert of_pass.for_pass().owner_limits is of_pass.owner_limits
    assert made.for_pass().owner_limits is not of_pass.owner_limits


def test_a_function_can_be_named_by_its_path_and_is_imported_when_it_is_used():
    made = settings(f"{__name__}.limits_of")

    assert made.owner_limits.of("user:42").max_schedules == len("user:42")
    assert "limits_of" in repr(made.owner_limits)


def test_the_key_of_an_owner_is_the_owner_unless_its_limits_name_another():
    table = {
        "a": {"max_running": 2},
        "b": {"running_key": "customer:7"},
        "c": {"max_running": 3, "running_key": "customer:7"},
        "*": {"max_running": 9},
    }
    limits = settings(table).owner_limits

    caps = {owner: limits.cap_of(owner) for owner in ("a", "b", "c", "d", "")}

    assert {owner: cap and (cap.max_running, cap.key) for owner, cap in caps.items()} == {
        "a": (2, "a"),
        "b": (9, "customer:7"),
        "c": (3, "customer:7"),
        "d": (9, "d"),
        "": None,
    }


def test_the_application_has_no_limits_of_an_owner():
    def fail(name):
        raise AssertionError(name)

    of_all = {"allowed_tasks": [], "min_interval": 60, "max_schedules": 0, "max_running": 1}
    for given in (fail, {"*": of_all}, {"a": of_all}):
        made = settings(given, min_interval=5)
        assert made.min_interval_of("") == timedelta(seconds=5)
        assert made.owner_limits.of("") == OwnerLimits()
        made.owner_limits.check_task(owner="", task="any")


@pytest.mark.parametrize("path", ["tests.no_such_module.limits", f"{__name__}.missing"])
def test_a_path_that_cannot_be_imported_is_named(path):
    with pytest.raises(ConfigurationError, match="cannot be imported") as caught:
        settings(path).owner_limits.of("user:42")
    assert path in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (7, "must be OwnerLimits, a dict of limits"),
        ("limits", "dotted path"),
        ({"": {}}, "must be an owner, or '*' for all other owners"),
        ({7: {}}, "must be an owner"),
        ({"a": 7}, "must be OwnerLimits"),
        ({"a": {"max_schedule": 7}}, "did you mean max_schedules"),
        ({"a": {"max_runing": 7}}, "did you mean max_running"),
        ({"a": {"max_running": 0}}, "must be a whole number from 1"),
        ({"a": {"max_running": True}}, "must be a whole number from 1"),
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

    made = settings(fail, min_interval=5)

    with pytest.raises(LookupError):
        made.owner_limits.check_task(owner=OWNER, task="t")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            of_pass = made.for_pass()
            of_pass.owner_limits.check_task(owner=OWNER, task="t")
            assert not of_pass.owner_limits.knows(OWNER)
            assert of_pass.min_interval_of(OWNER) == timedelta(seconds=5)
            assert made.min_interval_of(OWNER) == timedelta(seconds=5)

    [record] = caplog.records
    assert (record.event, record.owner) == ("owner_limits_failed", OWNER)
    assert record.exc_info is not None


def test_a_pass_uses_the_limits_that_a_function_returned_before_it_failed():
    def limits(name):
        if fails:
            raise LookupError(name)
        return {"max_running": 1, "allowed_tasks": ["t"]}

    fails, given = False, settings(limits).owner_limits
    assert given.for_pass().of("user:42").max_running == 1

    fails = True
    now = given.for_pass()
    assert not now.knows("user:42")
    assert now.of("user:42").max_running == 1
    with pytest.raises(InvalidArgumentError):
        now.check_task(owner="user:42", task="other")
    assert now.of("user:43") == OwnerLimits()


def test_the_settings_have_the_same_representation_in_each_process():
    assert repr(settings(limits_of)) == repr(settings(limits_of))
    assert " at 0x" not in repr(settings(limits_of))
