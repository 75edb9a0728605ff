"""The FastAPI example over HTTP, with a real beat and a real worker."""

import pytest

from tests.support.example_sites import running_example
from tests.support.fastapi_example import user_of
from tests.support.waiting import wait_until

MINUTE = {"kind": "every", "minutes": 1}
HOURLY = {"kind": "every", "minutes": 60}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    with running_example("fastapi", tmp_path_factory.mktemp("fastapi")) as site:
        yield site


@pytest.fixture
def alice(example):
    """Return the client of a user without reminders."""
    with user_of(example, "alice") as client:
        yield client
        for item in client.get("/api/reminders").json():
            client.delete(f"/api/reminders/{item['name']}")


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
    ("rule", "words"),
    [
        ({"kind": "every", "minutes": 5}, "Every 5 minutes"),
        ({"kind": "daily", "at": "09:30"}, "At 09:30 every day, Asia/Seoul"),
        ({"kind": "weekdays", "at": "09:00"}, "At 09:00, Monday to Friday, Asia/Seoul"),
        ({"kind": "monthly", "at": "09:00", "day": 3}, "At 09:00, on day 3 of the month"),
        ({"kind": "once", "at": "2099-01-01T09:00"}, "Once at 2099-01-01 00:00:00 UTC"),
        ({"kind": "cron", "text": "0 9 * * mon"}, "At 09:00, on Monday, Asia/Seoul"),
        ({"kind": "words", "text": "every 2 hours"}, "Every 2 hours"),
        ({"kind": "words", "text": "Weekdays at 5 pm"}, "At 17:00, Monday to Friday"),
        ({"kind": "words", "text": "monday at 12 am"}, "At 00:00, on Monday"),
        ({"kind": "words", "text": "on 2099-01-01 at 9"}, "Once at 2099-01-01 00:00:00 UTC"),
    ],
    ids=(
        "every",
        "daily",
        "weekdays",
        "monthly",
        "once",
        "cron",
        "words",
        "pm",
        "midnight",
        "date",
    ),
)
def test_each_kind_of_rule_is_previewed_and_created_in_the_zone_of_the_user(alice, rule, words):
    assert alice.put("/api/timezone", json={"timezone": "Asia/Seoul"}).status_code == 200

    shown = alice.post("/api/preview", json={"rule": rule}).json()
    made = create(alice, rule=rule)

    assert shown["description"].startswith(words)
    assert made.status_code == 201, made.text
    assert made.json()["rule"].startswith(words)
    assert made.json()["next"][:19] == shown["fire_times"][0]["fire_at"][:19] or "every" in str(
        rule
    )


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({"rule": {"kind": "words", "text": "sometimes"}}, "rule", "is not understood"),
        ({"rule": {"kind": "words", "text": "mondy at 9"}}, "rule", "mean 'monday at 9'?"),
        ({"rule": {"kind": "cron", "text": "61 * * * *"}}, "rule", "minute '61'"),
        ({"rule": {"kind": "every", "minutes": 0}}, "rule", "greater than or equal to 1"),
        ({"rule": {"kind": "once", "at": "2001-01-01T09:00"}}, "rule", "2001"),
        ({"name": "  "}, "name", "at least 1 character"),
        ({"text": "x" * 501}, "text", "at most 500"),
    ],
    ids=["words", "near-miss", "cron", "interval", "past", "name", "text"],
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
    assert refused.json()["errors"] == {"name": "You have 10 already. Delete one first."}


def test_a_reminder_is_paused_skipped_changed_and_deleted(alice):
    first = create(alice).json()["next"]
    path = "/api/reminders/water"

    skipped = alice.post(f"{path}/skip-next").json()
    assert skipped["next"] > first
    (run,) = alice.get(f"{path}/history").json()
    assert (run["status"], run["error"]) == ("skipped", "skipped by alice")
    assert alice.post(f"{path}/pause").json()["state"] == "paused"
    assert alice.post(f"{path}/resume").json()["state"] == "active"
    body = {"name": "water", "text": "Tea", "rule": {"kind": "daily", "at": "08:00"}}
    assert alice.put(path, json=body).json()["rule"].startswith("At 08:00")
    assert [item["text"] for item in alice.get("/api/reminders").json()] == ["Tea"]
    assert alice.delete(path).status_code == 204
    assert names(alice) == []


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
        bob.post(f"{path}/pause"),
        bob.delete(path),
    ]

    assert [answer.status_code for answer in refused] == [404] * 4
    assert names(bob) == []
    (kept,) = alice.get("/api/reminders").json()
    assert (kept["text"], kept["state"]) == ("Drink", "active")


def test_a_request_without_a_session_or_its_token_is_refused(example, anonymous, alice, bob):
    del alice.headers["X-CSRF-Token"]
    forged = create(alice)
    alice.headers["X-CSRF-Token"] = bob.headers["X-CSRF-Token"]
    of_another = create(alice)
    without_session = anonymous.get("/api/reminders")
    login = anonymous.post(
        "/login",
        data={"name": "alice", "password": "wonderland"},
        headers={"Origin": "https://evil.example"},
    )

    answers = (forged, of_another, without_session, login)
    assert [answer.status_code for answer in answers] == [403, 403, 401, 403]
    assert "set-cookie" not in login.headers
    with user_of(example, "alice") as again:
        assert names(again) == []


def test_a_wrong_password_starts_no_session(anonymous):
    answer = anonymous.post("/login", data={"name": "alice", "password": "no"})

    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers


def test_a_large_body_is_refused(alice):
    assert create(alice, text="x" * 40_000).status_code == 413


def test_the_api_is_documented(anonymous):
    paths = anonymous.get("/openapi.json").json()["paths"]

    assert {"/api/reminders", "/api/preview", "/api/reminders/{name}/history"} <= set(paths)
