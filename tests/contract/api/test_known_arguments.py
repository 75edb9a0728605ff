"""A schedule whose arguments a task of this process refuses is not stored."""

import pytest

from celery_dynbeat import InvalidArgumentError
from tests.support.applications import MINUTELY


@pytest.fixture(autouse=True)
def digest(dynbeat):
    @dynbeat.app.task(name="mail.digest", shared=False, bind=True)
    def digest(task, user_id, kind="short", *, force=False):
        return task, user_id, kind, force

    return digest


@pytest.mark.parametrize(
    ("given", "field", "named"),
    [
        ({}, "kwargs", "missing 1 required positional argument: 'user_id'"),
        ({"kwargs": {"user_id": 1, "colour": 2}}, "kwargs", "unexpected keyword argument 'colour'"),
        ({"args": [1, 2, 3]}, "args", "positional arguments but 4"),
        ({"args": [1], "kwargs": {"user_id": 1}}, "kwargs", "multiple values for argument"),
    ],
)
def test_the_error_names_the_argument_and_the_parameters(given, field, named, mine):
    with pytest.raises(InvalidArgumentError, match=named) as error:
        mine.create("n", task="mail.digest", trigger=MINUTELY, **given)

    assert error.value.field == field
    assert "accepts (user_id, kind=..., *, force=...)" in str(error.value)
    assert not list(mine.list())


@pytest.mark.parametrize(
    "given", [{"args": [1]}, {"kwargs": {"user_id": 1, "force": True}}, {"args": [1, "long"]}]
)
def test_arguments_that_the_task_accepts_are_stored(given, mine):
    assert mine.create("n", task="mail.digest", trigger=MINUTELY, **given).task == "mail.digest"


def test_create_many_checks_each_row(mine):
    rows = [
        {"name": "a", "task": "mail.digest", "trigger": MINUTELY, "args": [1]},
        {"name": "b", "task": "mail.digest", "trigger": MINUTELY},
    ]

    with pytest.raises(InvalidArgumentError, match="'user_id'"):
        mine.create_many(rows)


def test_an_update_checks_the_arguments_together_with_the_stored_ones(mine):
    mine.create("n", task="mail.digest", trigger=MINUTELY, args=[1])

    with pytest.raises(InvalidArgumentError, match="multiple values"):
        mine.update("n", kwargs={"user_id": 2})
    assert mine.update("n", args=[], kwargs={"user_id": 2}).kwargs == {"user_id": 2}


def test_an_update_to_another_task_checks_the_stored_arguments(mine):
    mine.create("n", task="unknown", trigger=MINUTELY, kwargs={"a": 1})

    with pytest.raises(InvalidArgumentError, match="'a'"):
        mine.update("n", task="mail.digest")


def test_a_task_that_changed_since_does_not_prevent_other_edits(dynbeat, mine):
    mine.create("n", task="later", trigger=MINUTELY, kwargs={"a": 1})
    dynbeat.app.task(name="later", shared=False)(no_arguments)

    assert mine.update("n", description="d").description == "d"


def no_arguments():
    """Do nothing."""


def test_a_task_without_typing_and_an_unknown_task_accept_all_arguments(dynbeat, mine):
    dynbeat.app.task(name="loose", shared=False, typing=False)(no_arguments)

    for name in ("loose", "unknown"):
        mine.create(name, task=name, trigger=MINUTELY, kwargs={"a": 1})

    assert len(list(mine.list())) == 2
