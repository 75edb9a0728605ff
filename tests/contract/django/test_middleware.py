"""The user of a request is the actor of the calls in it."""

import asyncio
from types import SimpleNamespace

import pytest
from django.core.exceptions import ImproperlyConfigured

from celery_dynbeat.api.audit import current_actor
from celery_dynbeat.django.middleware import acting_user


def request(method, name):
    return SimpleNamespace(method=method, user=SimpleNamespace(get_username=lambda: name))


def view(_request):
    return current_actor().actor


async def async_view(_request):
    return current_actor().actor


@pytest.mark.parametrize(
    ("method", "name", "actor"),
    [
        ("POST", "ann", "ann"),
        ("POST", "", ""),
        ("POST", None, ""),
        ("POST", "ann\n", r"'ann\n'"),
        ("POST", " ann", "' ann'"),
        ("DELETE", "x" * 300, "x" * 255),
        ("GET", "ann", ""),
    ],
    ids=["user", "anonymous", "null", "control-character", "space", "long-name", "safe"],
)
def test_the_user_of_a_request_that_changes_something_is_the_actor(method, name, actor):
    asked = request(method, name)

    assert acting_user(view)(asked) == actor
    assert asyncio.run(acting_user(async_view)(asked)) == actor
    # It ends with the request.
    assert not current_actor().actor


def test_a_safe_request_does_not_read_the_user():
    assert acting_user(view)(SimpleNamespace(method="HEAD")) == ""


def test_an_actor_is_never_a_value_that_a_call_refuses():
    assert acting_user(view)(request("POST", " " * 255)) == "'"
    # The cut is at a space.
    assert acting_user(view)(request("POST", " " + "x " * 150)).endswith("x")


def test_the_error_for_a_request_without_a_user_names_the_order_of_middleware():
    with pytest.raises(ImproperlyConfigured, match="acting_user after AuthenticationMiddleware"):
        acting_user(view)(SimpleNamespace(method="POST"))
