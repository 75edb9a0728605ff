"""Who may change schedules, and the name in the audit."""

from base64 import b64encode
from types import SimpleNamespace

import pytest

from celery_dynbeat.flower.base.access import actor_of, why_read_only


def options(**given):
    defaults = {"auth": "", "basic_auth": [], "dynbeat_unauthenticated_writes": False}
    return SimpleNamespace(**{**defaults, **given})


def basic(text):
    return f"Basic {b64encode(text).decode()}"


@pytest.mark.parametrize(
    "given",
    [
        {"auth": "x"},
        {"basic_auth": ["a:b"]},
        {"dynbeat_unauthenticated_writes": True},
        {"basic_auth": ["a:b"], "read_only": False},
    ],
)
def test_a_login_or_the_option_allows_changes(given):
    assert why_read_only(options(**given)) is None


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "--basic-auth"),
        ({"read_only": True, "auth": "x"}, "--read-only"),
        ({"read_only": True, "dynbeat_unauthenticated_writes": True}, "--read-only"),
    ],
)
def test_otherwise_the_pages_say_why_not(given, reason):
    assert reason in why_read_only(options(**given))


@pytest.mark.parametrize(
    ("header", "actor"),
    [
        (basic(b"alice:secret"), "alice"),
        (basic(b"alice:se:cret"), "alice"),
        (basic("mün:x".encode()), "mün"),
        (basic(b"\xff:x"), ""),
        ("Basic !", ""),
        (basic(b"a" * 300 + b":x"), "a" * 255),
    ],
)
def test_the_actor_of_basic_auth_is_the_name_without_the_password(header, actor):
    assert actor_of(True, header, options(basic_auth=["x:y"])) == actor


def test_the_actor_of_oauth_is_the_address():
    assert actor_of("alice@example.com", "", options(auth="x")) == "alice@example.com"


def test_the_actor_without_a_login_says_so():
    given = options(dynbeat_unauthenticated_writes=True)
    assert actor_of(True, basic(b"mallory:x"), given) == "flower (not authenticated)"
