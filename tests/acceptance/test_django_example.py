"""The Django example over HTTP, with a real beat and a real worker."""

import re
import subprocess
import sys
from contextlib import contextmanager

import pytest

from tests.support.example_sites import EXAMPLES, PASSWORDS, running_example
from tests.support.waiting import wait_until

TOKEN = re.compile(r'name="csrfmiddlewaretoken" value="([^"]+)"')

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    with running_example("django", tmp_path_factory.mktemp("django")) as site:
        yield site


def token_of(page):
    return {"csrfmiddlewaretoken": TOKEN.search(page.text)[1]}


@contextmanager
def user_of(site, name):
    with site.client() as client:
        token = token_of(client.get("/login"))
        data = {**token, "username": name, "password": PASSWORDS[name]}
        page = client.post("/login", data=data)
        assert page.status_code == 200
        yield client


@pytest.fixture
def alice(example):
    with user_of(example, "alice") as client:
        yield client


@pytest.fixture
def bob(example):
    with user_of(example, "bob") as client:
        yield client


def post(client, path="/", **fields):
    return client.post(path, data={**token_of(client.get("/")), **fields})


def ids(example, title):
    return [
        row for (row,) in example.rows(f"SELECT id FROM reports_report WHERE title = '{title}'")
    ]


def schedules(example):
    return example.rows("SELECT owner, name FROM dynbeat_schedule WHERE owner <> '' ORDER BY name")


def test_a_report_and_its_schedule_are_created_executed_and_deleted(example, alice):
    page = post(alice, title="Sales <b>", rule="0 9 * * mon-fri")

    assert page.status_code == 200
    assert "Sales &lt;b&gt;" in page.text
    assert "At 09:00, Monday to Friday" in page.text
    (report,) = ids(example, "Sales <b>")
    assert schedules(example) == [("user:1", f"report-{report}")]
    history = f"/reports/{report}/history"
    post(alice, f"/reports/{report}/run")
    wait_until(lambda: "succeeded" in alice.get(history).text, within=30)

    assert "(paused)" in post(alice, f"/reports/{report}/pause").text
    assert "(paused)" not in post(alice, f"/reports/{report}/pause").text
    post(alice, f"/reports/{report}/delete")
    assert ids(example, "Sales <b>") == schedules(example) == []


def test_a_user_can_neither_see_nor_change_the_reports_of_another(example, alice, bob):
    post(alice, title="private", rule="0 9 * * mon-fri")
    (report,) = ids(example, "private")

    assert bob.get(f"/reports/{report}/history").status_code == 404
    assert post(bob, f"/reports/{report}/delete").status_code == 404
    assert post(bob, f"/reports/{report}/pause").status_code == 404
    assert "private" not in bob.get("/").text
    post(alice, f"/reports/{report}/delete")


def test_its_own_tests_pass():
    command = [sys.executable, "manage.py", "test", "--parallel", "2"]
    done = subprocess.run(
        command, cwd=EXAMPLES / "django", capture_output=True, text=True, timeout=100, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "Ran 3 tests" in done.stderr


def test_a_forged_or_anonymous_request_is_refused(example, alice):
    forged = alice.post("/", data={"title": "forged", "rule": "0 9 * * *"})
    with example.client() as anonymous:
        page = anonymous.get("/")

    assert forged.status_code == 403
    assert page.url.path == "/login"
    assert ids(example, "forged") == []
