"""A ping URL is sent to an allowed origin, whatever its spelling."""

import pytest

from celery_dynbeat.common.ping_urls import (
    MAX_LENGTH,
    PingUrl,
    allowed_origin,
    masked,
    parse_ping_url,
)

SECRET = "d7b2-secret"
ALLOWED = frozenset(
    map(allowed_origin, ["hc-ping.com", "hc.example.com:8443", "http://10.0.0.7:8000", "bücher.de"])
)


@pytest.mark.parametrize(
    ("entry", "origin"),
    [
        ("hc-ping.com", "https://hc-ping.com:443"),
        ("HC-Ping.com", "https://hc-ping.com:443"),
        ("https://hc-ping.com", "https://hc-ping.com:443"),
        ("hc.example.com:8443", "https://hc.example.com:8443"),
        ("http://hc.internal", "http://hc.internal:80"),
        ("[::1]:8000", "https://[::1]:8000"),
        ("bücher.de", "https://xn--bcher-kva.de:443"),
    ],
)
def test_an_entry_of_the_setting_names_an_origin(entry, origin):
    assert allowed_origin(entry) == origin


@pytest.mark.parametrize(
    "entry",
    ["", "hc-ping.com/", "hc-ping.com?x", "ftp://hc-ping.com", "u@hc-ping.com", "a b", "a:99999"],
)
def test_an_entry_that_is_no_host_is_rejected(entry):
    with pytest.raises(ValueError, match="must"):
        allowed_origin(entry)


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("https://hc-ping.com/u-u?create=1", ("https://hc-ping.com:443", "/u-u", "create=1")),
        ("HTTPS://HC-PING.COM:443/u-u", ("https://hc-ping.com:443", "/u-u", "")),
        ("https://hc.example.com:8443", ("https://hc.example.com:8443", "", "")),
        ("http://10.0.0.7:8000/ping/u", ("http://10.0.0.7:8000", "/ping/u", "")),
        ("https://BÜCHER.de/u", ("https://xn--bcher-kva.de:443", "/u", "")),
        ("https://xn--bcher-kva.de/u", ("https://xn--bcher-kva.de:443", "/u", "")),
    ],
)
def test_a_url_of_an_allowed_origin_is_accepted(url, parts):
    assert parse_ping_url(url, allowed=ALLOWED) == PingUrl(*parts)


@pytest.mark.parametrize(
    "url",
    [
        # Another scheme or port of an allowed host is another service.
        "http://hc-ping.com/d7b2-secret",
        "https://hc-ping.com:8443/d7b2-secret",
        "https://hc.example.com/d7b2-secret",
        "https://hc-ping.com.evil.example/d7b2-secret",
        "https://evil.hc-ping.com/d7b2-secret",
        "https://hc-ping.com./d7b2-secret",
        "https://169.254.169.254/d7b2-secret",
        "https://hc-ping.com@evil.example/d7b2-secret",
        "https://user:d7b2-secret@hc-ping.com/",
        "https://evil.example\\@hc-ping.com/d7b2-secret",
        "https://evil.example#@hc-ping.com/d7b2-secret",
        "https://hc-ping.com/d7b2-secret#part",
        "https://hc-ping.com/d7b2-secret\r\nHost: evil.example",
        "https://hc-\tping.com/d7b2-secret",
        "https://hc-ping.com/d7b2-secret/ü",
        "https://hc-ping.com:port/d7b2-secret",
        "https://[hc-ping.com/d7b2-secret",
        "file:///etc/passwd/d7b2-secret",
        "//hc-ping.com/d7b2-secret",
        "hc-ping.com/d7b2-secret",
        "https:///d7b2-secret",
        f"https://hc-ping.com/d7b2-secret{'x' * MAX_LENGTH}",
    ],
)
def test_any_other_url_is_rejected_without_its_secret(url):
    with pytest.raises(ValueError, match=r"must|dynbeat_ping_hosts") as caught:
        parse_ping_url(url, allowed=ALLOWED)

    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value.__cause__)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://HC-Ping.com/d7b2-secret?x=1", "https://hc-ping.com/..."),
        ("http://10.0.0.7:8000/d7b2-secret", "http://10.0.0.7:8000/..."),
        ("https://user:d7b2-secret@hc-ping.com", "..."),
        ("d7b2-secret", "..."),
    ],
)
def test_a_masked_url_has_only_scheme_and_host(url, shown):
    assert masked(url) == shown
