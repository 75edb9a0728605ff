"""Shared calendars: put, get, list and delete, and the schedules that use them."""

from datetime import UTC, date, datetime, timedelta

import pytest
from sqlalchemy import event, text
from sqlalchemy.orm import Session

from celery_dynbeat import (
    ConflictError,
    Cron,
    InvalidArgumentError,
    InvalidTriggerError,
    NotFoundError,
)
from tests.support.applications import START, execute

NAME = "holidays"
DAILY = Cron("0 12 * * *")
USING = DAILY.excluding(calendar=NAME)
#: START is 21 November 2026, a Saturday.
SUNDAY, MONDAY, TUESDAY = (date(2026, 11, day) for day in (22, 23, 24))


def at(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, 12, tzinfo=UTC)


@pytest.fixture
def calendars(dynbeat):
    return dynbeat.calendars


def test_put_creates_a_calendar_that_is_in_force(calendars, dynbeat):
    made = calendars.bound(actor="alice").upsert(NAME, dates=[MONDAY, SUNDAY, MONDAY])

    assert (made.name, [*made.dates], made.version) == (NAME, [SUNDAY, MONDAY], 1)
    assert (made.created_at, made.updated_at, made.in_force_at) == (START, START, START)
    assert (made.weekend, made.updated_by) == (("sat", "sun"), "alice")
    assert (made.schedules.count, made.waiting_schedules.count) == (0, 0)
    assert calendars.get(NAME) == made
    [change] = dynbeat.schedules.changes()
    assert (change.action, change.owner, change.actor) == ("upsert_calendar", None, "alice")
    assert (change.after["calendar"], change.after["dates"]) == (NAME, 2)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"dates": None}, "dates"),
        ({"dates": {MONDAY: None}}, "dates"),
        ({"dates": {MONDAY: "a" * 201}}, "dates"),
        ({"dates": {MONDAY: "\x00"}}, "dates"),
        ({"dates": {MONDAY: "\ud800"}}, "dates"),
        ({"dates": "2026-12-25"}, "dates"),
        ({"dates": ["2026-12-25"]}, "dates"),
        ({"dates": [START]}, "dates"),
        ({"dates": [date(1, 1, 1)]}, "dates"),
        ({"dates": [MONDAY + timedelta(days=n) for n in range(2_001)]}, "dates"),
        ({"dates": []}, "dates"),
        ({"dates": [MONDAY], "weekend": "sat"}, "weekend"),
        ({"dates": [MONDAY], "weekend": ["saturday"]}, "weekend"),
        (
            {"dates": [MONDAY], "weekend": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]},
            "weekend",
        ),
        ({"dates": [MONDAY], "allow_empty": 1}, "allow_empty"),
        ({"name": "Holidays", "dates": [MONDAY]}, "name"),
        ({"name": "a" * 101, "dates": [MONDAY]}, "name"),
    ],
)
def test_an_invalid_definition_is_refused(calendars, given, field):
    with pytest.raises(InvalidArgumentError) as raised:
        calendars.upsert(**{"name": NAME, **given})
    assert raised.value.field == field
    assert calendars.list() == []


def test_calendars_are_listed_by_name_in_pages(calendars):
    for name in "bca":
        calendars.upsert(name, dates=[MONDAY])

    page = calendars.list(limit=2)
    assert [each.name for each in page] == ["a", "b"]
    assert [each.name for each in calendars.list(after=page.cursor)] == ["c"]
    assert page[0].schedules is None


def test_a_calendar_that_a_schedule_uses_cannot_be_deleted(calendars, mine):
    calendars.upsert(NAME, dates=[MONDAY])
    mine.create("n", task="t", trigger=USING)

    with pytest.raises(ConflictError, match="used by 1 schedules") as raised:
        calendars.delete(NAME)
    assert (raised.value.code, raised.value.params["schedules"]) == ("in_use", 1)
    mine.update("n", trigger=DAILY)
    calendars.delete(NAME)
    for call in (calendars.get, calendars.delete):
        with pytest.raises(NotFoundError):
            call(NAME)


@pytest.mark.parametrize("call", ["create", "update", "upsert", "preview", "create_many"])
def test_an_unknown_calendar_is_refused_without_the_names_of_the_others(calendars, mine, call):
    calendars.upsert("known", dates=[MONDAY])
    mine.create("n", task="t", trigger=DAILY)
    calls = {
        "create": lambda: mine.create("m", task="t", trigger=USING),
        "update": lambda: mine.update("n", trigger=USING),
        "upsert": lambda: mine.upsert("n", task="t", trigger=USING),
        "preview": lambda: mine.preview(USING),
        "create_many": lambda: mine.create_many([{"name": "m", "task": "t", "trigger": USING}]),
    }

    with pytest.raises(InvalidTriggerError, match="'holidays': there is no calendar") as raised:
        calls[call]()
    assert "known" not in str(raised.value)
    assert raised.value.field == "calendar"
    assert mine.count().count == 1


@pytest.mark.parametrize("call", ["create", "create_many", "update", "upsert"])
def test_each_call_plans_with_the_days_and_links_the_schedule(calendars, mine, call):
    calendars.upsert(NAME, dates=[START.date(), SUNDAY])
    if call == "create":
        mine.create("n", task="t", trigger=USING)
    elif call == "create_many":
        mine.create_many([{"name": "n", "task": "t", "trigger": USING}])
    else:
        mine.create("n", task="t", trigger=DAILY)
        getattr(mine, call)("n", **({"task": "t"} if call == "upsert" else {}), trigger=USING)

    assert mine.get("n").next_run_at == at(MONDAY)
    found = calendars.get(NAME)
    assert (found.schedules.count, found.waiting_schedules.count) == (1, 0)


def test_damaged_dates_affect_only_their_calendar(calendars, dynbeat, mine):
    calendars.upsert(NAME, dates=[MONDAY])
    calendars.upsert("fine", dates=[MONDAY])
    execute(dynbeat, "UPDATE dynbeat_calendar SET dates = '{' WHERE name = 'holidays'")

    mine.create("n", task="t", trigger=DAILY.excluding(calendar="fine"))
    with pytest.raises(InvalidTriggerError, match="'holidays'"):
        mine.create("m", task="t", trigger=USING)
    assert [*calendars.upsert(NAME, dates=[TUESDAY]).dates] == [TUESDAY]


def test_a_preview_names_the_calendar_that_takes_or_moves_a_fire_time(calendars, mine):
    calendars.upsert(NAME, dates={MONDAY: "a feast"})
    shown = mine.preview(USING, count=3)
    assert [each.fire_at for each in shown.fire_times] == [
        at(START.date()),
        at(SUNDAY),
        at(TUESDAY),
    ]
    takes = "does not fire at 2026-11-23 12:00 UTC: calendar holidays (a feast)"
    assert [str(each) for each in shown.warnings if each.code == "calendar"] == [takes]

    moved = mine.preview(DAILY.on_business_day("next", calendar=NAME), count=1)
    assert [each.fire_at for each in moved.fire_times] == [at(TUESDAY)]
    assert [str(each) for each in moved.warnings if each.code == "calendar"] == [
        "does not fire at 2026-11-21 12:00 UTC: calendar holidays: moves to 2026-11-24 12:00 UTC",
        "does not fire at 2026-11-22 12:00 UTC: calendar holidays: moves to 2026-11-24 12:00 UTC",
        f"{takes}: moves to 2026-11-24 12:00 UTC",
    ]
    calendars.upsert(NAME, dates=[MONDAY + timedelta(days=n) for n in range(9)])
    many = [str(each) for each in mine.preview(USING, count=3).warnings if each.code == "calendar"]
    assert len(many) == 6
    assert many[-1] == "calendars remove or move more than 5 fire times before the last one"
    assert not [each for each in mine.preview(DAILY).warnings if each.code == "calendar"]


# Only PostgreSQL lets another transaction delete the row of the conflict.
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("deletions", [1, 9])
def test_a_calendar_that_is_deleted_during_its_put_is_created_again(calendars, dynbeat, deletions):
    engine = dynbeat.context.database.engine
    left = deletions

    def is_insert(given):
        return left and not given[0].info.get("other") and "INTO dynbeat_calendar" in given[2]

    def other(statement):
        with engine.connect() as connection:
            connection.info["other"] = True
            connection.execute(text(statement))
            connection.commit()
            del connection.info["other"]

    def create(*given):
        if is_insert(given):
            other("INSERT INTO dynbeat_calendar (name, dates) VALUES ('holidays', '{}')")

    def delete(*given):
        nonlocal left
        if is_insert(given):
            other("DELETE FROM dynbeat_calendar")
            left -= 1

    event.listen(engine, "before_cursor_execute", create)
    event.listen(engine, "after_cursor_execute", delete)
    if deletions == 1:
        assert calendars.upsert(NAME, dates=[MONDAY]).version == 1
        assert list(calendars.get(NAME).dates) == [MONDAY]
    else:
        with pytest.raises(ConflictError, match="repeat the call"):
            calendars.upsert(NAME, dates=[MONDAY])


LINK = "INSERT INTO dynbeat_schedule_calendar (schedule_id, calendar_id, planned_with)"
#: A call, the statement that the database refuses, and the row that makes the database refuse it.
REFUSED = {
    "delete": (
        lambda dynbeat, session: dynbeat.calendars.bound(session=session).delete(NAME),
        "DELETE FROM dynbeat_calendar",
        f"{LINK} SELECT s.id, c.id, 1 FROM dynbeat_schedule s, dynbeat_calendar c",
        ConflictError,
    ),
    "create": (
        lambda dynbeat, session: dynbeat.schedules.for_owner("u", session=session).create(
            "n", task="t", trigger=USING
        ),
        "INSERT INTO dynbeat_schedule_calendar",
        "DELETE FROM dynbeat_calendar",
        InvalidTriggerError,
    ),
    "update": (
        lambda dynbeat, session: dynbeat.schedules.for_owner("user:42", session=session).update(
            "first", trigger=USING
        ),
        "INSERT INTO dynbeat_schedule_calendar",
        "DELETE FROM dynbeat_calendar",
        InvalidTriggerError,
    ),
}


# Only PostgreSQL ends the caller's transaction when it refuses a statement.
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("name", REFUSED)
def test_a_calendar_that_another_transaction_changes_leaves_the_callers_transaction_usable(
    dynbeat, mine, name
):
    call, refused, change, error = REFUSED[name]
    dynbeat.calendars.upsert(NAME, dates=[MONDAY])
    engine = dynbeat.context.database.engine

    def interfere(_connection, cursor, statement, *_given):
        if statement.startswith(refused):
            cursor.execute(change)

    with Session(engine) as session:
        mine.bound(session=session).create("first", task="t", trigger=DAILY)
        event.listen(engine, "before_cursor_execute", interfere)
        with pytest.raises(error):
            call(dynbeat, session)
        event.remove(engine, "before_cursor_execute", interfere)
        mine.bound(session=session).create("last", task="t", trigger=DAILY)
        session.commit()

    assert [each.name for each in dynbeat.schedules.list()] == ["first", "last"]
    assert mine.get("first").trigger == Cron("0 12 * * *", timezone="UTC")
    assert [*dynbeat.calendars.get(NAME).dates] == [MONDAY]
