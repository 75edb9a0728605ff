"""Lists and counts by state, by the start of the name, and by the next fire time."""

import itertools
from datetime import timedelta

import pytest
from sqlalchemy import insert, update

from celery_dynbeat import BoundedCount, InvalidArgumentError
from celery_dynbeat.db.models import Hold, Schedule
from celery_dynbeat.store import scans
from celery_dynbeat.store.schedules import schedule_pages
from tests.support.applications import MINUTELY, START
from tests.support.suites import each_database

HOUR = timedelta(hours=1)
STATES = ("active", "paused", "finished", "quarantined", "held", "overdue", "failing")
#: The columns of schedules in each state, by the name of the schedule.
COLUMNS = {
    "active": {"next_run_at": START + 3 * HOUR},
    "Active": {"next_run_at": START + HOUR},
    "active_late": {"next_run_at": START - timedelta(seconds=29)},
    "overdue": {"next_run_at": START - timedelta(seconds=31)},
    "overdue_long": {"next_run_at": START - HOUR, "failing_since": START},
    "found_held": {"next_run_at": START + 900 * HOUR, "held_at": START},
    "failing": {"next_run_at": START + 2 * HOUR, "failing_since": START},
    "paused": {"next_run_at": None, "enabled": False},
    "paused_failing": {"next_run_at": None, "enabled": False, "failing_since": START},
    "finished": {"next_run_at": None, "finished_at": START},
    "broken": {"next_run_at": None, "error": "ValueError: x"},
    "broken_paused": {"next_run_at": None, "error": "ValueError: x", "enabled": False},
}
OF_STATE = {
    "active": {
        *("active", "Active", "active_late", "overdue", "overdue_long"),
        *("found_held", "failing"),
    },
    "paused": {"paused", "paused_failing"},
    "finished": {"finished"},
    "quarantined": {"broken", "broken_paused"},
    "held": set(),
    "overdue": {"overdue", "overdue_long"},
    "failing": {"failing", "paused_failing", "overdue_long"},
}
OWNERS = ("user:1", "user:2", "user:3")


@pytest.fixture
def crowd(dynbeat):
    """Create a schedule of each kind for three owners, and return the calls of the second."""
    dynbeat.schedules.create_many(
        {"owner": owner, "name": name, "task": "t", "trigger": MINUTELY}
        for owner, name in itertools.product(OWNERS, COLUMNS)
    )
    for name, columns in COLUMNS.items():
        change(dynbeat, update(Schedule).where(Schedule.name == name).values(columns))
    return dynbeat.schedules.for_owner("user:2")


def change(dynbeat, statement):
    dynbeat.context.database.run(lambda session: session.execute(statement))


def hold(dynbeat, owner, *, until=None):
    everything = None if owner is not None else True
    change(dynbeat, insert(Hold).values(owner=owner, everything=everything, until_at=until))


def all_of(call, *, limit, **how):
    pages = [call(limit=limit, **how)]
    while pages[-1].cursor is not None:
        pages.append(call(limit=limit, **how, after=pages[-1].cursor))
    return [(row.owner, row.name) for page in pages for row in page]


@pytest.fixture
def scanned(request, monkeypatch):
    """Make a page read few rows, so that lists and counts use each of their ways."""
    if request.param is not None:
        monkeypatch.setattr(scans, "MAX_SCANNED", request.param)


#: A few rows make the lists of some states use one way and those of the others another.
each_way = pytest.mark.parametrize(
    ("database_url", "scanned"),
    [
        pytest.param("sqlite", None, id="sqlite-scan"),
        pytest.param("sqlite", 1, id="sqlite-scan one row"),
        *(
            pytest.param(database, 4, id=f"{database}-scan few rows")
            for database in ("sqlite", "postgresql", "mariadb")
        ),
    ],
    indirect=True,
)


@each_way
@pytest.mark.usefixtures("scanned")
def test_a_list_contains_each_schedule_in_the_state_once(dynbeat, crowd):
    for state, limit in itertools.product(STATES, (1, 2, 5, 100)):
        names = OF_STATE[state]
        expected = sorted((owner, name) for owner in OWNERS for name in names)
        listed = all_of(dynbeat.schedules.list, state=state, order="name", limit=limit)
        own = all_of(crowd.list, state=state, order="name", limit=limit)

        assert sorted(listed) == expected, (state, limit)
        assert sorted(own) == [key for key in expected if key[0] == crowd.owner]
        assert [owner for owner, _ in listed] == [owner for owner, _ in expected]


@pytest.mark.parametrize("state", ["paused", "finished", "quarantined", "held"])
def test_a_state_without_next_fire_times_has_no_order_by_them(mine, state):
    with pytest.raises(InvalidArgumentError, match="no next_run_at") as caught:
        mine.list(state=state, order="next_run_at")

    assert caught.value.field == "order"


@each_way
@pytest.mark.usefixtures("scanned")
def test_a_list_by_prefix_compares_the_name_exactly(dynbeat, mine):
    names = ["a%b", "a%bc", "a_b", "axb", "A%b", "a%", "a\\b", "é", "éa", "e", "\U0010ffffx", "z"]
    for owner in ("user:42", "user:43"):
        dynbeat.schedules.create_many(
            {"owner": owner, "name": name, "task": "t", "trigger": MINUTELY} for name in names
        )

    for prefix in ["a%b", "a%", "a_", "a\\", "a", "A", "é", "\U0010ffff", "", "z", "zz"]:
        expected = sorted(name for name in names if name.startswith(prefix))
        own = all_of(mine.list, name_prefix=prefix, limit=2)
        assert sorted(name for _, name in own) == expected, prefix
        listed = all_of(dynbeat.schedules.list, name_prefix=prefix, limit=2)
        both = [(owner, name) for name in expected for owner in ("user:42", "user:43")]
        assert sorted(listed) == sorted(both), prefix
        if prefix:
            assert listed == both


@each_way
@pytest.mark.usefixtures("scanned")
def test_a_hold_of_an_owner_holds_its_active_schedules(dynbeat, crowd):
    hold(dynbeat, "user:2", until=START + HOUR)
    hold(dynbeat, "user:0")
    hold(dynbeat, "user:1", until=START)
    expected = sorted(("user:2", name) for name in OF_STATE["active"])

    for limit in (1, 2, 100):
        assert sorted(all_of(dynbeat.schedules.list, state="held", limit=limit)) == expected
        assert sorted(all_of(crowd.list, state="held", limit=limit)) == expected
        overdue = all_of(dynbeat.schedules.list, state="overdue", limit=limit)
        assert {owner for owner, _ in overdue} == {"user:1", "user:3"}
    assert dynbeat.schedules.for_owner("user:1").list(state="held") == []
    assert crowd.list(state="overdue") == []


@pytest.mark.usefixtures("crowd")
def test_a_list_spans_many_held_owners(dynbeat, monkeypatch):
    monkeypatch.setattr(schedule_pages, "_MAX_OWNERS", 2)
    for number in range(5):
        hold(dynbeat, f"user:{number}")

    expected = sorted((owner, name) for owner in OWNERS for name in OF_STATE["active"])
    for limit in (1, 6, 7, 8, 100):
        assert sorted(all_of(dynbeat.schedules.list, state="held", limit=limit)) == expected


@each_database
def test_a_count_is_the_length_of_the_list(dynbeat, crowd):
    hold(dynbeat, "user:3")
    filters = [{"state": state} for state in (None, *STATES)]
    filters += [{**each, "name_prefix": "a"} for each in filters]
    filters += [{"task": "t"}, {"task": "u"}, {"enabled": False}, {"tag": "x"}]

    for how, call in itertools.product(filters, (crowd, dynbeat.schedules)):
        assert call.count(**how) == BoundedCount(count=len(call.list(**how)), exact=True), how


@pytest.mark.usefixtures("crowd")
def test_a_schedule_names_its_most_important_state(dynbeat):
    states = {row.name: row.state for row in dynbeat.schedules.list(owner="user:1")}

    assert states == {
        "active": "active",
        "Active": "active",
        "active_late": "active",
        "overdue": "active",
        "overdue_long": "failing",
        "found_held": "held",
        "failing": "failing",
        "paused": "paused",
        "paused_failing": "paused",
        "finished": "finished",
        "broken": "quarantined",
        "broken_paused": "quarantined",
    }
