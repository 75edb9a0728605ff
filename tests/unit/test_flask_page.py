"""docs/how-to/flask.md: its application creates, lists and deletes schedules in a request."""

import importlib
import re
import sys
from pathlib import Path

import pytest
from celery import _state

from tests.support.fixtures import service_is_missing

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "flask.md"
BLOCK = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
KWARGS = {"user_id": 1, "text": "call Bob"}


@pytest.fixture
def flask_modules(tmp_path, monkeypatch):
    """Return the modules ``proj`` and ``web`` of the page, on an SQLite database."""
    try:
        import flask  # noqa: F401
    except ImportError as error:
        service_is_missing(f"{error}: install the dependency group test")
    for name, text in BLOCK.findall(PAGE.read_text()):
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path}/test.sqlite3")
    monkeypatch.setenv("BROKER_URL", "memory://")
    monkeypatch.syspath_prepend(tmp_path)
    # Celery registers a shared task in each application: those of other tests in this one, where
    # one can have the same name, and that of the page in each later one.
    of_celery = {
        each for each in _state._on_app_finalizers if each.__module__ == "celery.app.builtins"
    }
    monkeypatch.setattr(_state, "_on_app_finalizers", of_celery)
    monkeypatch.setattr(_state._tls, "current_app", None)
    for name in ("proj", "web"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    proj, web = map(importlib.import_module, ("proj", "web"))
    # As `dynbeat schema upgrade` does.
    proj.dynbeat.schedules.count()
    yield proj, web
    proj.engine.dispose()
    for name in ("proj", "web"):
        sys.modules.pop(name, None)


def logged_in(web, user_id):
    client = web.web.test_client()
    web.web.secret_key = "test"
    with client.session_transaction() as session:
        session["user_id"] = user_id
    return client


def test_a_request_creates_a_schedule_that_only_its_user_sees(flask_modules):
    _, web = flask_modules
    alice, bob = logged_in(web, 1), logged_in(web, 2)
    body = {"name": "call", "when": "0 9 * * mon-fri", "text": "call Bob"}

    made = alice.post("/reminders", json=body)

    assert made.status_code == 201
    assert made.json["kwargs"] == {"user_id": 1, "text": "call Bob"}
    assert [each["name"] for each in alice.get("/reminders").json["reminders"]] == ["call"]
    assert bob.get("/reminders").json["reminders"] == []
    assert bob.delete("/reminders/call").status_code == 404
    assert alice.delete("/reminders/call").status_code == 204
    assert alice.get("/reminders").json["reminders"] == []


def test_a_request_that_fails_later_leaves_no_schedule(flask_modules):
    proj, web = flask_modules

    @web.web.post("/fails")
    def fails():
        web.mine().create("call", task="mail.reminder", trigger="@daily", kwargs=KWARGS)
        return "the next step failed", 500

    assert logged_in(web, 1).post("/fails").status_code == 500
    assert proj.dynbeat.schedules.count().count == 0
