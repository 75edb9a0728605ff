"""The FastAPI example over HTTP, with a real beat and a real worker."""

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import quote

import pytest

from tests.support.example_sites import PASSWORDS, running_example
from tests.support.waiting import wait_until

MINUTE = {"kind": "every", "minutes": 1}
HOURLY = {"kind": "every", "minutes": 60}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    with running_example("fastapi", tmp_path_factory.mktemp("fastapi")) as site:
        yield site


@contextmanager
def user_of(site, name):
    """Yield a client with the session of the user, which sends its token."""
    with site.client() as client:
        page = client.post("/login", data={"name": name, "password": PASSWORDS[name]})
        token = re.search(r'name="csrf-token" content="([^"]+)"', page.text)
        client.headers["X-CSRF-Token"] = token[1]
        yield client


@pytest.fixture
def alice(example):
    """Return the client of a user without reminders."""
    with user_of(example, "alice") as client:
        yield client
        for item in client.get("/api/reminders").json():
            client.delete(f"/api/reminders/{quote(item['name'])}")


@pytest.fixture
def bob(example):
    with user_of(example, "bob") as client:
        yield client


@pytest.fixture
def anonymous(example):
    with example.client() as client:
        yield client


def create(client, name="water", rule=HOURLY, **given):
    return client.post(
        "/api/reminders", json={"name": name, "text": "Drink", "rule": rule, **given}
    )


def names(client):
    return [item["name"] for item in client.get("/api/reminders").json()]


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({"rule": {"kind": "cron", "text": "61 * * * *"}}, "rule", "minute '61'"),
        ({"rule": {"kind": "every", "minutes": 0}}, "rule", "greater than or equal to 1"),
        ({"rule": {"kind": "once", "at": "2001-01-01T09:00"}}, "rule", "2001"),
        ({"name": "  "}, "name", "at least 1 character"),
        ({"text": "x" * 501}, "text", "at most 500"),
    ],
    ids=["cron", "interval", "past", "name", "text"],
)
def test_an_error_names_its_field_and_nothing_is_stored(example, alice, body, field, message):
    refused = create(alice, **{"name": "refused", **body})

    assert refused.status_code == 422
    assert message in refused.json()["errors"][field]
    assert names(alice) == []
    assert example.rows("SELECT count(*) FROM reminder") == [(0,)]


def test_a_failed_request_leaves_neither_the_row_nor_the_schedule(example, alice):
    create(alice, "water")

    refused = create(alice, "water")

    assert refused.status_code == 409
    assert "already" in refused.json()["errors"]["name"]
    assert example.rows("SELECT name FROM reminder") == [("water",)]
    owned = "SELECT name FROM dynbeat_schedule WHERE owner = 'user:alice'"
    assert example.rows(owned) == [("water",)]


def test_a_user_has_a_limit_of_reminders(alice):
    assert {create(alice, f"r{number}").status_code for number in range(10)} == {201}

    refused = create(alice, "one-more")

    assert refused.status_code == 409
    assert refused.json()["errors"] == {"name": "You can have at most 10 schedules."}


def test_a_worker_executes_a_due_reminder(alice):
    create(alice, "now", rule=MINUTE)
    alice.post("/api/reminders/now/run")

    def succeeded():
        runs = alice.get("/api/reminders/now/history").json()
        return [run for run in runs if run["status"] == "succeeded"]

    (run,) = wait_until(succeeded, within=30)
    assert run["origin"] == "manual"


def test_a_user_can_neither_see_nor_change_the_reminders_of_another(alice, bob):
    create(alice)
    path = "/api/reminders/water"
    body = {"name": "water", "text": "mine", "rule": MINUTE}

    refused = [
        bob.get(f"{path}/history"),
        bob.put(path, json=body),
        *(bob.post(f"{path}/{action}") for action in ("pause", "resume", "skip-next", "run")),
        bob.delete(path),
    ]

    assert [answer.status_code for answer in refused] == [404] * 7
    assert alice.get(f"{path}/history").json() == []
    assert names(bob) == []
    (kept,) = alice.get("/api/reminders").json()
    assert (kept["text"], kept["state"]) == ("Drink", "active")


def test_a_request_without_a_session_or_its_token_is_refused(example, anonymous, alice, bob):
    del alice.headers["X-CSRF-Token"]
    forged = create(alice)
    alice.headers["X-CSRF-Token"] = bob.headers["X-CSRF-Token"]
    of_another = create(alice)
    without_session = anonymous.get("/api/reminders")
    written_without_session = create(anonymous)
    login = anonymous.post(
        "/login",
        data={"name": "alice", "password": "wonderland"},
        headers={"Origin": "https://evil.example"},
    )

    answers = (forged, of_another, without_session, written_without_session, login)
    assert [answer.status_code for answer in answers] == [403, 403, 401, 401, 403]
    assert "set-cookie" not in login.headers
    with user_of(example, "alice") as again:
        assert names(again) == []


def test_a_large_body_is_refused(alice):
    refused = create(alice, text="x" * 40_000)

    assert refused.status_code == 413
    assert refused.json() == {"errors": {"form": "the body is too large"}}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "field"),
    [
        ("PUT", "timezone", b'{"timezone": "Asia/Soul"}', 422, "timezone"),
        ("PUT", "timezone", b'{"timezone": "\\ud800"}', 422, "timezone"),
        ("POST", "preview", b'{"rule": ', 422, "form"),
        ("POST", "preview", b"[" * 30_000, 400, "form"),
        ("POST", "preview", b'{"rule": {"kind": "cron", "text": "\\u0000"}}', 422, "rule"),
        ("POST", "preview", b'{"rule": {"kind": "every", "minutes": NaN}}', 422, "rule"),
        ("POST", "reminders/none/pause", b"", 404, "name"),
        ("DELETE", "reminders/a%00b", b"", 422, "name"),
    ],
    ids=range(8),
)
def test_a_hostile_request_has_an_error_at_its_field(alice, method, path, body, status, field):
    headers = {"Content-Type": "application/json"}
    refused = alice.request(method, f"/api/{path}", content=body, headers=headers)

    assert refused.status_code == status, refused.text
    assert list(refused.json()["errors"]) == [field]


@pytest.mark.parametrize("name", [".", "..", "a/b", "a\0b"])
def test_a_name_that_no_path_can_have_is_refused(alice, name):
    refused = create(alice, name)

    assert refused.status_code == 422
    assert list(refused.json()["errors"]) == ["name"]


@pytest.mark.parametrize("name", ["<img src=x>", "a?b#c", "100%", "a\\b", "é"])
def test_a_reminder_with_any_other_name_can_be_deleted(alice, name):
    assert create(alice, name).status_code == 201
    assert alice.delete(f"/api/reminders/{quote(name)}").status_code == 204


def test_concurrent_requests_do_not_exceed_the_limit_of_a_user(example, alice):
    with ThreadPoolExecutor(20) as pool:
        answers = pool.map(lambda number: create(alice, f"r{number}"), range(20))

    assert Counter(answer.status_code for answer in answers) == {201: 10, 409: 10}
    assert example.rows("SELECT count(*) FROM reminder") == [(10,)]
