"""The requests of pings follow the conventions of Healthchecks and Cronitor."""

import pytest

from celery_dynbeat.common.ping_urls import PingUrl
from celery_dynbeat.worker.ping_client import Ping, PingState, ping_request

RUN_ID = "019e0000-0000-7000-8000-000000000001"
HEALTHCHECKS = "https://hc-ping.com:443"
CRONITOR = "https://cronitor.link:443"


def request_of(origin, path, query, state, error=None):
    request = ping_request(PingUrl(origin, path, query), Ping(RUN_ID, PingState(state), error))
    assert request.origin == origin
    return request.method, request.url.removeprefix(origin.removesuffix(":443")), request.body


@pytest.mark.parametrize(
    ("path", "query", "state", "target"),
    [
        ("/u-u", "", "start", f"/u-u/start?rid={RUN_ID}"),
        ("/u-u", "", "success", f"/u-u?rid={RUN_ID}"),
        ("/u-u", "", "fail", f"/u-u/fail?rid={RUN_ID}"),
        # A slug that Healthchecks creates at its first ping.
        ("/key/slug", "create=1", "start", f"/key/slug/start?create=1&rid={RUN_ID}"),
        ("/ping/u-u/", "", "fail", f"/ping/u-u/fail?rid={RUN_ID}"),
        ("/u-u", "rid=other&x=", "success", f"/u-u?x=&rid={RUN_ID}"),
        ("", "", "success", f"/?rid={RUN_ID}"),
    ],
)
def test_healthchecks_gets_the_state_in_the_path_and_the_run_as_rid(path, query, state, target):
    assert request_of(HEALTHCHECKS, path, query, state) == ("POST", target, b"")


@pytest.mark.parametrize(
    ("state", "cronitors"), [("start", "run"), ("success", "complete"), ("fail", "fail")]
)
@pytest.mark.parametrize(
    "origin", [CRONITOR, "https://cronitor.io:443", "https://eu.cronitor.io:443"]
)
def test_cronitor_gets_the_state_and_the_run_as_parameters(origin, state, cronitors):
    found = request_of(origin, "/p/key/digest", "env=prod&state=run", state)

    assert found == ("GET", f"/p/key/digest?env=prod&state={cronitors}&series={RUN_ID}", None)


def test_a_failure_names_the_type_of_the_exception():
    assert request_of(HEALTHCHECKS, "/u", "", "fail", "ValueError")[2] == b"ValueError"
    assert request_of(CRONITOR, "/p/k/m", "", "fail", "ValueError")[1].endswith(
        f"series={RUN_ID}&message=ValueError"
    )


def test_the_host_of_a_request_has_its_port_only_if_it_is_not_the_default():
    urls = {
        origin: ping_request(PingUrl(origin, "/u", ""), Ping("1", PingState.SUCCESS)).url
        for origin in ("https://h:443", "http://h:80", "https://h:80", "http://[::1]:8000")
    }

    assert urls == {
        "https://h:443": "https://h/u?rid=1",
        "http://h:80": "http://h/u?rid=1",
        "https://h:80": "https://h:80/u?rid=1",
        "http://[::1]:8000": "http://[::1]:8000/u?rid=1",
    }


def test_a_host_whose_name_only_ends_like_cronitors_is_another_host():
    assert request_of("https://notcronitor.link:443", "/u", "", "success")[0] == "POST"
