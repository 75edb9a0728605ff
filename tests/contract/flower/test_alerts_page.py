"""The page of alerts: what it lists, and who may acknowledge and snooze."""

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from celery_dynbeat.db.alert_models import Alert, AlertMessage
from celery_dynbeat.flower.pages.alerts import SNOOZES
from celery_dynbeat.insights.statistics import alert_lists
from tests.support.applications import MINUTELY

PAGE = "/dynbeat/alerts"
ACKNOWLEDGE, SNOOZE = "/dynbeat/acknowledge_alerts", "/dynbeat/snooze_alerts"
HOSTILE = '"><script>alert(1)</script>\u202e'
HOUR = timedelta(hours=1)


@pytest.fixture
def add(dynbeat, clock):
    """Return a function that inserts an alert of a new schedule; it returns the id."""

    def add(name="n", *, owner="user:42", message=None, **columns):
        created = dynbeat.schedules.for_owner(owner).create(name, task="t", trigger=MINUTELY)
        values = {
            "kind": "failed",
            "opened_at": clock.now() - HOUR,
            "last_at": clock.now(),
            "target": "default",
            "checked_at": None if columns.get("recovered_at") else clock.now(),
            **columns,
        }
        with Session(dynbeat.context.database.engine) as session, session.begin():
            if message is not None:
                row = AlertMessage(
                    target="default",
                    previous_id=len(dynbeat.schedules.alerts(only_open=False)),
                    severity="error",
                    payload={},
                    created_at=clock.now(),
                    **message,
                )
                session.add(row)
                session.flush()
                values["message_id"] = row.id
            alert = Alert(schedule_id=created.id, owner=owner, name=name, **values)
            session.add(alert)
            session.flush()
            return alert.id

    return add


def open_alert(dynbeat):
    (alert,) = dynbeat.schedules.alerts()
    return alert


def test_open_and_recovered_alerts_are_listed_with_their_messages(add, pages, clock):
    add("first", message={"next_try_at": clock.now(), "error": "error=403"})
    add("second", kind="late", value=90.0, message={"sent_at": clock.now()})
    add("third", owner="a/b %", unsent="opened", unsent_at=clock.now())
    add("recent", recovered_at=clock.now() - HOUR)
    add("old", recovered_at=clock.now() - 30 * HOUR)

    text = pages.get(PAGE).text
    opened, _, recovered = text.partition("Recovered in the last 24 hours")

    # Errors come first.
    places = [opened.index(f">{name}</a>") for name in ("first", "third", "second")]
    assert places == sorted(places)
    assert "error=403" in opened
    assert "90 s" in opened
    assert "with the next message" in opened
    assert "/dynbeat/owner?owner=a%2Fb+%25" in opened
    assert ">recent</a>" in recovered
    assert ">old</a>" not in text
    assert "failing" in recovered.partition("Deliveries")[2].lower()
    assert ">second<" not in pages.get(f"{PAGE}?kind=failed").text.partition("Recovered")[0]


def test_without_alerts_the_page_says_why(pages):
    text = pages.get(PAGE).text

    assert "Alerts are off" in text
    assert "There are no targets" in text


def test_a_selected_alert_is_acknowledged_by_the_viewer(dynbeat, add, pages):
    add()
    alert = open_alert(dynbeat)

    answer = pages.post(ACKNOWLEDGE, {"alert": alert.id, "next": f"{PAGE}?kind=failed"})

    assert (answer.status, answer.location) == (303, f"{PAGE}?kind=failed")
    assert open_alert(dynbeat).acknowledged_by == "alice"
    text = pages.get(PAGE).text
    assert "1 alert is acknowledged." in text
    assert "acknowledged by <strong>alice</strong>" in text


@pytest.mark.parametrize("label", SNOOZES)
def test_selected_alerts_are_snoozed_for_a_time(dynbeat, add, pages, clock, label):
    ids = [add("a"), add("b")]

    pages.post(SNOOZE, {"alert": ids, "for": label, "next": PAGE})

    until = clock.now() + SNOOZES[label]
    assert [each.snoozed_until for each in dynbeat.schedules.alerts()] == [until, until]
    assert pages.get(PAGE).text.count("snoozed by <strong>alice</strong>") == 4
    pages.post(SNOOZE, {"alert": ids, "for": "", "next": PAGE})
    assert [each.snoozed_until for each in dynbeat.schedules.alerts()] == [None, None]


def test_an_alert_that_recovered_since_is_named_and_the_others_are_changed(
    dynbeat, add, pages, clock
):
    ids = [add("a"), add("b", recovered_at=clock.now())]

    pages.post(ACKNOWLEDGE, {"alert": ids, "next": PAGE})

    text = pages.get(PAGE).text
    assert "1 alert is acknowledged. 1 failed: there is no open alert" in text
    assert open_alert(dynbeat).acknowledged_by == "alice"


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        (ACKNOWLEDGE, {"alert": "x"}, 400),
        (ACKNOWLEDGE, {}, 400),
        (ACKNOWLEDGE, {"alert": "9" * 18}, 404),
        (ACKNOWLEDGE, {"alert": range(1, 300)}, 400),
        (SNOOZE, {"alert": 1, "for": "9 y"}, 400),
    ],
)
def test_a_wrong_form_changes_nothing(dynbeat, add, pages, path, fields, status):
    add()

    assert pages.post(path, fields).status == status
    alert = open_alert(dynbeat)
    assert (alert.acknowledged_at, alert.snoozed_until) == (None, None)


@pytest.mark.parametrize("path", [ACKNOWLEDGE, SNOOZE])
def test_a_change_needs_a_login_a_token_and_the_name_of_this_flower(dynbeat, add, serve, path):
    fields = {"alert": add(), "for": "1 h"}
    anonymous = serve(basic_auth=["alice:secret"])
    assert anonymous.post(path, fields, token="x").status == 401
    unprotected = serve()
    assert unprotected.post(path, fields).status == 403
    assert "data-needs-selection" not in unprotected.get(PAGE).text
    alice = serve(basic_auth=["alice:secret"])
    alice.user, alice.password = "alice", "secret"
    assert alice.post(path, fields, token="").status == 403
    rebound = serve(dynbeat_unauthenticated_writes=True)
    body = f"_xsrf={rebound.token()}&alert={fields['alert']}&for=1+h"
    assert rebound.post_raw(path, body, Host="evil.example").status == 403

    alert = open_alert(dynbeat)
    assert (alert.acknowledged_at, alert.snoozed_until) == (None, None)
    assert rebound.post_raw(path, body).status == 303
    assert open_alert(dynbeat) != alert


def test_names_and_errors_are_escaped(add, pages):
    add(HOSTILE.replace("\u202e", ""), owner=HOSTILE, detail=HOSTILE, acknowledged_by=HOSTILE)

    text = pages.get(PAGE).text

    assert "<script>alert" not in text
    assert "\u202e" not in text


def test_more_open_alerts_than_are_read_are_said(add, pages, monkeypatch):
    for name in ("a", "b", "c"):
        add(name)
    monkeypatch.setattr(alert_lists, "MAX_OPEN", 2)

    assert "2 of 2 or more open" in pages.get(PAGE).text
