"""Who may change schedules, and the name in the audit."""

from base64 import b64encode
from socket import gethostname
from types import SimpleNamespace

import pytest

from celery_dynbeat.flower.base.access import (
    actor_of,
    why_read_only,
    why_wrong_host,
    why_wrong_hosts,
)


def options(**given):
    defaults = {"auth": "", "basic_auth": [], "dynbeat_unauthenticated_writes": False}
    defaults |= {"dynbeat_allowed_hosts": [], "address": "", "oauth2_redirect_uri": None}
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


@pytest.mark.parametrize(
    ("host", "given"),
    [
        *((host, {}) for host in ("localhost:5555", "LOCALHOST.", "a.localhost", gethostname())),
        *((host, {}) for host in ("127.0.0.1", "10.1.2.3:80", "[::1]:5555", "[2001:DB8::1]")),
        ("flower.internal:5555", {"address": "Flower.internal"}),
        ("mon.example.com", {"dynbeat_allowed_hosts": ["a", " MON.example.com "]}),
        ("mon.example.com.:8443", {"dynbeat_allowed_hosts": ["mon.example.com"]}),
        ("mon.example.com:8443", {"dynbeat_allowed_hosts": ["mon.example.com:8443"]}),
        ("mon.example.com", {"dynbeat_allowed_hosts": ["mon.example.com:80"]}),
        ("evil.example", {"dynbeat_allowed_hosts": ["*"]}),
        # The browser of a person who logged in sends no credentials to another name.
        ("mon.example.com", {"basic_auth": ["a:b"]}),
        (
            "mon.example.com",
            {
                "auth": "x",
                "dynbeat_allowed_hosts": ["a"],
                "oauth2_redirect_uri": "https://mon.example.com/login",
            },
        ),
    ],
)
def test_a_host_of_this_flower_is_accepted(host, given):
    assert why_wrong_host(host, "http", options(**given)) is None


@pytest.mark.parametrize(
    ("host", "given"),
    [
        *((host, {}) for host in ("evil.example:5555", "127.0.0.1.evil.example", "")),
        *((host, {}) for host in ("localhost.evil.example", "evil@localhost", "0x7f.1", "a,b")),
        ("x.mon.example.com", {"dynbeat_allowed_hosts": ["mon.example.com"]}),
        ("mon.example.com:80", {"dynbeat_allowed_hosts": ["mon.example.com:8443"]}),
        ("evil.example", {"dynbeat_allowed_hosts": ["a"], "basic_auth": ["a:b"]}),
        ("localhost:5555/@evil.example", {}),
    ],
)
def test_another_host_is_refused_with_the_name_of_the_option(host, given):
    assert "--dynbeat-allowed-hosts" in why_wrong_host(host, "http", options(**given))


def test_an_entry_that_is_no_host_is_an_error():
    assert why_wrong_hosts(["a.example:80", "[::1]", "*", "10.0.0.1"]) is None
    assert "'https://a.example'" in why_wrong_hosts(["b", "https://a.example"])
