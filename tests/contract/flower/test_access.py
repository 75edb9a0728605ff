"""Each page needs the login of Flower. Each change needs a login, a token and this site."""

import pytest

from celery_dynbeat.flower.application import routes
from celery_dynbeat.flower.base.action import ActionHandler
from celery_dynbeat.flower.base.handler import DynbeatHandler

RELEASE = "/dynbeat/release"
PAGES = [
    route.name
    for route in routes()
    if issubclass(route.handler_class, DynbeatHandler)
    and not issubclass(route.handler_class, ActionHandler)
]
ACTIONS = [route.name for route in routes() if issubclass(route.handler_class, ActionHandler)]


def path_of(name):
    [route] = [each for each in routes() if each.name == name]
    pattern = route.regex.pattern.removesuffix("$")
    return pattern.replace("(.+)", "x").replace("([^/]+)", "x")


def holds(dynbeat):
    return list(dynbeat.schedules.holds())


@pytest.mark.parametrize("name", [*PAGES, *ACTIONS])
def test_each_route_refuses_a_wrong_password(pages, name):
    pages.password = "wrong"

    assert pages.get(path_of(name)).status in {401, 405}
    assert pages.post(path_of(name), token="x").status in {401, 405}


@pytest.mark.parametrize("name", [*PAGES, *ACTIONS])
def test_each_route_redirects_to_the_login_of_oauth(serve, name):
    client = serve(auth=r".*@example\.com")

    answer = client.get(path_of(name))

    assert (answer.status, answer.location.partition("?")[0]) == (302, "/login")
    assert client.post(path_of(name), token="x").status == 403


@pytest.mark.parametrize("name", ACTIONS)
def test_each_action_is_refused_without_a_token(dynbeat, pages, name):
    dynbeat.schedules.hold(reason="maintenance")
    pages.get("/dynbeat/schedules")

    assert pages.post(path_of(name), token="").status == 403
    assert pages.post(path_of(name), token="2|aaaaaaaa|bbbb|1").status == 403
    assert len(holds(dynbeat)) == 1


def test_each_route_refuses_the_name_of_another_site(dynbeat, serve):
    # A page of evil.example whose name resolves to this Flower can read its own cookies.
    dynbeat.schedules.hold(reason="maintenance")
    client = serve(dynbeat_unauthenticated_writes=True)
    client.token()

    body = f"_xsrf={client.token()}&confirmed=yes"

    for path in map(path_of, [*PAGES, *ACTIONS]):
        for host in ("evil.example:5555", "127.0.0.1.evil.example"):
            read = client.get(path, Host=host)
            written = client.post_raw(path, body, Host=host)
            assert (read.status, written.status) == (403, 403)
            assert "--dynbeat-allowed-hosts" in written.text
    assert len(holds(dynbeat)) == 1


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize(
    "options",
    [{}, {"read_only": True, "basic_auth": ["alice:secret"]}],
    ids=["no login", "read-only"],
)
def test_each_action_is_refused_in_read_only_mode(dynbeat, serve, name, options):
    dynbeat.schedules.hold(reason="maintenance")
    client = serve(**options)
    client.user, client.password = "alice", "secret"

    answer = client.post(path_of(name), {"confirmed": "yes"})

    assert (answer.status, len(holds(dynbeat))) == (403, 1)


@pytest.mark.parametrize("name", ACTIONS)
def test_each_action_is_refused_for_another_site(dynbeat, pages, name):
    dynbeat.schedules.hold(reason="maintenance")
    body = f"_xsrf={pages.token()}&confirmed=yes"

    assert pages.post_raw(path_of(name), body, Sec_Fetch_Site="cross-site").status == 403
    assert len(holds(dynbeat)) == 1


def test_a_change_is_recorded_with_the_user(dynbeat, pages):
    dynbeat.schedules.hold(reason="maintenance")

    answer = pages.post(RELEASE, {"confirmed": "yes", "reason": "done"})

    [change] = [each for each in dynbeat.schedules.changes() if each.action == "release"]
    assert (answer.status, holds(dynbeat)) == (303, [])
    assert (change.actor, change.reason) == ("alice", "done")


def test_writes_without_a_login_must_be_allowed(dynbeat, serve):
    dynbeat.schedules.hold(reason="maintenance")
    client = serve(dynbeat_unauthenticated_writes=True)

    assert client.post(RELEASE, {"confirmed": "yes"}).status == 303

    [change] = [each for each in dynbeat.schedules.changes() if each.action == "release"]
    assert change.actor == "flower (not authenticated)"
    assert client.post(RELEASE, {"confirmed": "yes"}, token="").status == 403


@pytest.mark.parametrize(
    "target",
    [
        *("https://evil.example/", "//evil.example", "/tasks", ""),
        *("/dynbeat/../x", "/dynbeat/%2E%2e/x", "/dynbeat/..#x", "/dynbeat/\\evil"),
    ],
)
def test_an_action_returns_to_a_page_of_ours_only(dynbeat, pages, target):
    dynbeat.schedules.hold(reason="maintenance")

    answer = pages.post(RELEASE, {"confirmed": "yes", "next": target})

    assert (answer.status, answer.location) == (303, "/dynbeat/schedules")


def test_no_other_site_can_read_or_frame_a_page(serve, monkeypatch):
    monkeypatch.setenv("FLOWER_UNAUTHENTICATED_API", "true")
    answer = serve().get("/dynbeat/schedules")

    assert answer.status == 200
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
    assert "unsafe" not in answer.headers["Content-Security-Policy"]
    assert answer.headers["Cache-Control"] == "no-store"


def test_the_prefix_of_flower_applies_to_each_link(dynbeat, serve):
    dynbeat.schedules.hold(reason="maintenance")
    client = serve(url_prefix="/mon/", dynbeat_unauthenticated_writes=True)

    text = client.get("/mon/dynbeat/schedules").text
    client.cookies.pop("_xsrf", None)
    client.get("/mon/dynbeat/schedules")
    answer = client.post("/mon/dynbeat/release", {"next": "/mon/dynbeat/runs?a=1"})

    assert 'href="/dynbeat' not in text
    assert 'action="/dynbeat' not in text
    assert (answer.status, answer.location) == (303, "/mon/dynbeat/runs?a=1")
