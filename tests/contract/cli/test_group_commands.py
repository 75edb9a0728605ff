"""--owner with a group of owners, such as org:7/."""

import pytest
from sqlalchemy.orm import Session

from celery_dynbeat.db.alert_models import Alert
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, START, execute

GROUP = ("--owner", "org:7/")
OWNERS = ("org:7/a", "org:7/b")


@pytest.fixture(autouse=True)
def filled(dynbeat, clock):
    """Give owners of two groups a schedule, a failed run and an open alert."""
    for owner in (*OWNERS, "org:70/a"):
        mine = dynbeat.schedules.for_owner(owner)
        mine.create("n", task="t", trigger=MINUTELY)
        opened = {"opened_at": START, "last_at": START, "checked_at": START}
        alert = {"owner": owner, "name": "n", "kind": "failed", "target": "default", **opened}
        with Session(dynbeat.context.database.engine) as session, session.begin():
            session.add(Alert(schedule_id=mine.get("n").id, **alert))
    clock.advance(60)
    ManualBeat(dynbeat).run_until_idle()
    execute(
        dynbeat,
        "UPDATE dynbeat_run SET status = 'failed', error = 'boom', finished_at = scheduled_for,"
        " overdue_at = NULL",
    )


@pytest.mark.parametrize("listed", ["runs", "changes", "alerts"])
def test_a_list_shows_the_owners_of_the_group(as_json, listed):
    assert sorted(each["owner"] for each in as_json(listed, *GROUP)) == list(OWNERS)


def test_the_owner_is_a_column_of_the_list_of_a_group(shown):
    assert {owner for line in shown("runs", *GROUP) for owner in line.split("\t")} >= set(OWNERS)


def test_a_run_of_the_group_is_shown_and_no_other(shown, refused, dynbeat):
    (mine, other) = (dynbeat.schedules.runs(owner=each)[0] for each in ("org:7/a", "org:70/a"))

    assert shown("show-run", mine.id, *GROUP)
    status, error = refused("show-run", other.id, *GROUP)
    assert (status, "group 'org:7/' has no run" in error) == (1, True)


def test_an_alert_of_the_group_is_acknowledged_and_no_other(shown, refused, dynbeat):
    (mine, other) = (
        dynbeat.schedules.for_owner(each).alerts()[0].id for each in ("org:7/a", "org:70/a")
    )

    shown("snooze", str(mine), "--until", "1h", *GROUP)
    shown("ack", str(mine), *GROUP)
    status, error = refused("ack", str(other), *GROUP)
    assert (status, "group 'org:7/' has no open alert" in error) == (1, True)


def test_the_errors_of_a_group_are_counted(as_json):
    (found,) = as_json("errors", *GROUP)
    assert (found["count"], found["owners"], found["error"]) == (2, 2, "boom")


def test_the_forecast_of_a_group_counts_its_owners(as_json):
    (found,) = as_json("next", *GROUP, "--per-hour")
    assert found["schedules"] == 2


def test_the_schedules_and_the_runs_of_a_group_are_changed_and_no_others(shown, refused, dynbeat):
    ids = [dynbeat.schedules.for_owner(each).run_now("n").id for each in (*OWNERS, "org:70/a")]

    assert shown("cancel", ids[0], *GROUP)
    status, error = refused("cancel", ids[2], *GROUP)
    assert (status, "group 'org:7/' has no run" in error) == (1, True)
    assert shown("cancel", "--all", *GROUP, "--yes") == ["cancelled 1 run"]
    (text,) = shown("pause", "--all", *GROUP, "--yes")
    assert text == "paused 2 schedules of group 'org:7/'"
    (text,) = shown("resume", "--state", "paused", *GROUP, "--yes")
    assert text == "resumed 2 schedules with the state 'paused' of group 'org:7/'"
    (text,) = shown("delete", "--task", "t", *GROUP, "--yes")
    assert text == "deleted 2 schedules with the task 't' of group 'org:7/'"

    (left,) = dynbeat.schedules.list()
    assert (left.owner, left.enabled) == ("org:70/a", True)
    assert dynbeat.schedules.get_run(ids[2]).status == "pending"


@pytest.mark.parametrize(
    "words", [("requests",), ("rerun", "--since", "1h", "--yes"), ("show", "n")]
)
def test_a_command_that_accepts_no_group_says_so(refused, words):
    status, error = refused(*words, *GROUP)

    assert (status, "name one owner" in error) == (1, True)
