"""Shared calendars: put, get, list and delete, and the schedules that use them."""

from datetime import UTC, date, datetime, timedelta

import pytest
from sqlalchemy import event, text
from sqlalchemy.orm import Session

from celery_dynbeat import (
    CalendarInUseError,
    CalendarNotFoundError,
    Cron,
    InvalidScheduleError,
    InvalidTriggerError,
    Once,
)
from tests.support.applications import START, execute, instants

NAME = "holidays"
DAILY = Cron("0 12 * * *")
USING = DAILY.excluding(calendar=NAME)
#: START is 21 November 2026, a Saturday.
SUNDAY, MONDAY, TUESDAY = (date(2026, 11, day) for day in (22, 23, 24))
#: Each search looks for the few occurrences of 20 rules in a common minute of a year.
COSTLY = "DTSTART:20200101T000000Z\n" + "\n".join(
    f"RRULE:FREQ=SECONDLY;INTERVAL={999_983 - n};BYMONTH=1;BYMONTHDAY=1;BYHOUR=0;BYMINUTE=0"
    for n in range(20)
)


def at(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, 12, tzinfo=UTC)


@pytest.fixture
def calendars(dynbeat):
    return dynbeat.calendars


def days_of(fire_times) -> list[date]:
    return [instant.date() for instant in instants(fire_times)]


def test_put_creates_a_calendar_that_is_in_force(calendars, dynbeat):
    made = calendars.put(NAME, dates=[MONDAY, SUNDAY, MONDAY], actor="alice")

    assert (made.name, made.dates, made.version) == (NAME, (SUNDAY, MONDAY), 1)
    assert (made.created_at, made.updated_at, made.in_force_at) == (START, START, START)
    assert (made.weekend, made.updated_by) == (("sat", "sun"), "alice")
    assert (made.schedules.count, made.waiting_schedules.count) == (0, 0)
    assert calendars.get(NAME) == made
    [change] = dynbeat.schedules.changes()
    assert (change.action, change.owner, change.actor) == ("put_calendar", None, "alice")
    assert (change.after["calendar"], change.after["dates"]) == (NAME, 2)


def test_an_equal_definition_changes_nothing(calendars, clock, dynbeat):
    made = calendars.put(NAME, dates=[MONDAY], actor="alice")
    clock.advance(timedelta(hours=1))

    assert calendars.put(NAME, dates=[MONDAY], actor="bob") == made
    assert len(dynbeat.schedules.changes()) == 1
    changed = calendars.put(NAME, dates=[MONDAY], weekend=["fri"])
    assert (changed.version, changed.weekend) == (2, ("fri",))


def test_a_calendar_can_be_a_trigger(calendars, mine):
    made = calendars.put(NAME, trigger="0 0 * * sun,mon")
    mine.create("n", task="t", trigger=USING)

    assert made.trigger == Cron("0 0 * * sun,mon")
    assert days_of(mine.upcoming("n", count=2)) == [START.date(), TUESDAY]
    again = calendars.put(NAME, trigger="0 0 * * sun,mon")
    assert again.version == 1


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "dates"),
        ({"dates": [MONDAY], "trigger": "@daily"}, "dates"),
        ({"dates": "2026-12-25"}, "dates"),
        ({"dates": ["2026-12-25"]}, "dates"),
        ({"dates": [START]}, "dates"),
        ({"dates": [date(1, 1, 1)]}, "dates"),
        ({"dates": [MONDAY + timedelta(days=n) for n in range(2_001)]}, "dates"),
        ({"dates": []}, "dates"),
        ({"trigger": DAILY.excluding(MONDAY)}, "trigger"),
        ({"trigger": USING}, "trigger"),
        ({"trigger": COSTLY}, "trigger"),
        ({"dates": [MONDAY], "weekend": "sat"}, "weekend"),
        ({"dates": [MONDAY], "weekend": ["saturday"]}, "weekend"),
        (
            {"dates": [MONDAY], "weekend": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]},
            "weekend",
        ),
        ({"dates": [MONDAY], "timezone": "Mars/Base"}, "timezone"),
        ({"dates": [MONDAY], "allow_empty": 1}, "allow_empty"),
        ({"name": "Holidays", "dates": [MONDAY]}, "name"),
        ({"name": "a" * 101, "dates": [MONDAY]}, "name"),
    ],
)
def test_an_invalid_definition_is_refused(calendars, given, field):
    with pytest.raises(InvalidScheduleError) as raised:
        calendars.put(**{"name": NAME, **given})
    assert raised.value.field == field
    assert calendars.list() == []


def test_an_empty_calendar_must_be_allowed(calendars):
    assert calendars.put(NAME, dates=[], allow_empty=True).dates == ()


def test_the_longest_calendar_can_be_stored(calendars, mine):
    days = [MONDAY + timedelta(days=2 * n) for n in range(2_000)]
    others = [MONDAY + timedelta(days=2 * n + 1) for n in range(3, 2_000)]
    for name, dates in {"a": days, "b": others}.items():
        calendars.put(name, dates=dates)

    mine.create("n", task="t", trigger=DAILY.excluding(calendar=["a", "b"]))

    found = days_of(mine.upcoming("n", count=5))
    assert found[:4] == [START.date(), SUNDAY, TUESDAY, TUESDAY + timedelta(days=2)]


def test_calendars_are_listed_by_name_in_pages(calendars):
    for name in "bca":
        calendars.put(name, dates=[MONDAY])

    page = calendars.list(limit=2)
    assert [each.name for each in page] == ["a", "b"]
    assert [each.name for each in calendars.list(after=page.cursor)] == ["c"]
    assert page[0].schedules is None


def test_a_calendar_that_a_schedule_uses_cannot_be_deleted(calendars, mine):
    calendars.put(NAME, dates=[MONDAY])
    mine.create("n", task="t", trigger=USING)

    with pytest.raises(CalendarInUseError, match="used by 1 schedules") as raised:
        calendars.delete(NAME)
    assert (raised.value.schedules, raised.value.is_exact) == (1, True)
    mine.update("n", trigger=DAILY)
    calendars.delete(NAME)
    for call in (calendars.get, calendars.delete):
        with pytest.raises(CalendarNotFoundError):
            call(NAME)


@pytest.mark.parametrize("delete", ["delete", "delete_many", "delete_owner"])
def test_a_deleted_schedule_uses_no_calendar(calendars, dynbeat, mine, delete):
    calendars.put(NAME, dates=[MONDAY])
    mine.create("n", task="t", trigger=USING)

    if delete == "delete":
        mine.delete("n")
    elif delete == "delete_many":
        mine.delete_many(task="t")
    else:
        dynbeat.schedules.delete_owner(mine.owner)

    assert calendars.get(NAME).schedules.count == 0
    calendars.delete(NAME)


@pytest.mark.parametrize("call", ["create", "update", "upsert", "preview", "create_many"])
def test_an_unknown_calendar_is_refused_with_the_known_ones(calendars, mine, call):
    calendars.put("known", dates=[MONDAY])
    mine.create("n", task="t", trigger=DAILY)
    calls = {
        "create": lambda: mine.create("m", task="t", trigger=USING),
        "update": lambda: mine.update("n", trigger=USING),
        "upsert": lambda: mine.upsert("n", task="t", trigger=USING),
        "preview": lambda: mine.preview(USING),
        "create_many": lambda: mine.create_many([{"name": "m", "task": "t", "trigger": USING}]),
    }

    with pytest.raises(InvalidTriggerError, match=r"'holidays': .* known are known") as raised:
        calls[call]()
    assert raised.value.field == "calendar"
    assert mine.count().count == 1


@pytest.mark.parametrize("call", ["create", "create_many", "update", "upsert"])
def test_each_call_plans_with_the_days_and_links_the_schedule(calendars, mine, call):
    calendars.put(NAME, dates=[START.date(), SUNDAY])
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


def test_a_schedule_without_a_fire_time_is_refused_with_the_calendar(calendars, mine):
    calendars.put(NAME, dates=[MONDAY])

    with pytest.raises(InvalidScheduleError, match="with the calendar holidays, it has no fire"):
        mine.create("n", task="t", trigger=Once(at(MONDAY)).excluding(calendar=NAME))


def test_a_rename_a_pause_and_an_edit_keep_the_link(calendars, mine):
    calendars.put(NAME, dates=[MONDAY])
    mine.create("n", task="t", trigger=USING)

    mine.update("n", jitter=5, start_at=START)
    mine.pause("n")
    mine.resume("n")
    mine.rename("n", "m")
    mine.skip("m", at(SUNDAY))
    mine.unskip("m", at(SUNDAY))
    mine.run_now("m")

    assert calendars.get(NAME).schedules.count == 1
    assert days_of(mine.upcoming("m", count=3)) == [START.date(), SUNDAY, TUESDAY]


def test_only_a_fire_time_that_the_calendar_leaves_can_be_skipped(calendars, mine):
    calendars.put(NAME, dates=[MONDAY])
    mine.create("n", task="t", trigger=USING)

    with pytest.raises(InvalidScheduleError, match="is not a fire time"):
        mine.skip("n", at(MONDAY))


def test_a_change_of_the_zone_plans_with_the_calendar(calendars, mine):
    calendars.put(NAME, dates=[START.date(), SUNDAY])
    mine.create("n", task="t", trigger=USING)

    mine.set_timezone("Asia/Seoul")

    assert mine.get("n").next_run_at == datetime(2026, 11, 23, 3, tzinfo=UTC)


def test_all_owners_use_the_calendar_of_the_application(calendars, dynbeat):
    calendars.put(NAME, dates=[MONDAY])
    for owner in ("", "a", "b"):
        dynbeat.schedules.for_owner(owner).create("n", task="t", trigger=USING)

    assert calendars.get(NAME).schedules.count == 3
    assert not hasattr(dynbeat.schedules.for_owner("a"), "calendars")


def test_the_rollback_of_the_caller_undoes_each_call(calendars, dynbeat, mine):
    calendars.put(NAME, dates=[MONDAY])
    mine.create("n", task="t", trigger=USING)
    with Session(dynbeat.context.database.engine) as session:
        calendars.put(NAME, dates=[TUESDAY], session=session)
        calendars.put("other", dates=[TUESDAY], session=session)
        mine.update("n", trigger=DAILY.excluding(calendar="other"), session=session)
        session.rollback()

    found = calendars.get(NAME)
    assert (found.dates, found.version, found.schedules.count) == ((MONDAY,), 1, 1)
    assert [each.name for each in calendars.list()] == [NAME]


def test_a_damaged_definition_affects_only_its_calendar(calendars, dynbeat, mine):
    calendars.put(NAME, dates=[MONDAY])
    calendars.put("fine", dates=[MONDAY])
    execute(dynbeat, "UPDATE dynbeat_calendar SET definition = '{' WHERE name = 'holidays'")

    mine.create("n", task="t", trigger=DAILY.excluding(calendar="fine"))
    with pytest.raises(InvalidTriggerError, match="'holidays'"):
        mine.create("m", task="t", trigger=USING)
    assert calendars.put(NAME, dates=[TUESDAY]).dates == (TUESDAY,)


def test_a_preview_names_the_calendar_that_takes_or_moves_a_fire_time(calendars, mine):
    calendars.put(NAME, dates=[MONDAY])
    shown = mine.preview(USING, count=3)
    assert [each.at for each in shown.fire_times] == [at(START.date()), at(SUNDAY), at(TUESDAY)]
    [effect] = shown.calendar_effects
    assert (effect.at, effect.calendar, effect.moved_to) == (at(MONDAY), NAME, None)
    assert effect.to_dict()["local"] == "2026-11-23T12:00:00+00:00"

    moved = mine.preview(DAILY.on_business_day("next", calendar=NAME), count=1)
    assert [each.at for each in moved.fire_times] == [at(TUESDAY)]
    assert [(each.at, each.moved_to) for each in moved.calendar_effects] == [
        (at(day), at(TUESDAY)) for day in (START.date(), SUNDAY, MONDAY)
    ]
    assert mine.preview(DAILY).calendar_effects == ()


def test_upcoming_lists_what_calendars_take_with_the_skipped_ones(calendars, mine):
    calendars.put(NAME, dates=[MONDAY])
    mine.create("n", task="t", trigger=USING)
    mine.skip("n", at(SUNDAY), reason="why")

    found = mine.upcoming("n", count=4, with_skipped=True)

    assert [(each.at, each.is_skipped, each.calendar) for each in found] == [
        (at(START.date()), False, None),
        (at(SUNDAY), True, None),
        (at(MONDAY), True, NAME),
        (at(TUESDAY), False, None),
    ]
    assert found[2].reason == "calendar holidays"
    with pytest.raises(InvalidScheduleError, match="is not skipped"):
        mine.unskip("n", at(MONDAY))


def test_a_forecast_and_a_backfill_use_the_days(calendars, mine, clock):
    calendars.put(NAME, dates=[SUNDAY])
    mine.create("n", task="t", trigger=USING)
    forecast = mine.forecast(until=START + timedelta(days=2), per="hour")
    assert sum(row.runs for row in forecast.rows) == 1
    clock.advance(timedelta(days=3))

    request = mine.backfill("n", since=START, until=START + timedelta(days=3))

    assert request.total == 2


def test_the_events_of_a_file_become_dates(calendars):
    pytest.importorskip("icalendar", reason="the extra ics is not installed")
    event = "BEGIN:VEVENT\r\nUID:a\r\nDTSTART;VALUE=DATE:20261123\r\nEND:VEVENT\r\n"
    text = f"BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:x\r\n{event}END:VCALENDAR\r\n"

    assert calendars.put(NAME, ics=text).dates == (MONDAY,)
    assert calendars.put(NAME, ics=text.encode()).version == 1
    with pytest.raises(InvalidScheduleError) as raised:
        calendars.put(NAME, ics="x")
    assert raised.value.field == "ics"


@pytest.mark.parametrize(
    "line",
    ["DTSTART;VALUE=DATE:20270229", "DTSTART:99991231T000000Z\r\nDURATION:P1000D"],
)
def test_a_malformed_event_is_refused_as_the_field_ics(calendars, line):
    pytest.importorskip("icalendar", reason="the extra ics is not installed")
    event = f"BEGIN:VEVENT\r\nUID:a\r\n{line}\r\nEND:VEVENT\r\n"
    text = f"BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:x\r\n{event}END:VCALENDAR\r\n"

    with pytest.raises(InvalidScheduleError) as raised:
        calendars.put(NAME, ics=text)
    assert raised.value.field == "ics"


def test_the_same_file_changes_nothing_for_a_year(calendars, clock):
    pytest.importorskip("icalendar", reason="the extra ics is not installed")

    def file(month_and_day: str) -> str:
        event = f"DTSTART;VALUE=DATE:2020{month_and_day}\nRRULE:FREQ=YEARLY"
        return f"BEGIN:VCALENDAR\nBEGIN:VEVENT\nUID:1\n{event}\nEND:VEVENT\nEND:VCALENDAR\n"

    christmas = file("1225")
    made = calendars.put(NAME, ics=christmas)
    assert made.dates[-1] == date(2035, 12, 25)
    for _ in range(10):
        clock.advance(timedelta(days=36))
        assert calendars.put(NAME, ics=christmas) == made

    assert calendars.put(NAME, ics=christmas, weekend=["fri"]).version == 2
    assert calendars.put(NAME, ics=file("1224"), weekend=["fri"]).version == 3
    assert calendars.put(NAME, ics=christmas).version == 4
    clock.advance(timedelta(days=380))
    extended = calendars.put(NAME, ics=christmas)
    assert (extended.version, extended.dates[-1]) == (5, date(2037, 12, 25))
    # Other days are a change.
    assert calendars.put(NAME, dates=extended.dates[:-1]).version == 6


def test_a_file_whose_stored_form_sql_damaged_is_stored_again(calendars, dynbeat):
    pytest.importorskip("icalendar", reason="the extra ics is not installed")
    event = "BEGIN:VEVENT\nUID:1\nDTSTART;VALUE=DATE:20261225\nEND:VEVENT"
    text = f"BEGIN:VCALENDAR\n{event}\nEND:VCALENDAR\n"
    calendars.put(NAME, ics=text)
    for number, damaged in enumerate(("x", "[]", '{"until":1,"dates":[]}', '{"until":"3000"}')):
        execute(dynbeat, "UPDATE dynbeat_calendar SET definition = :damaged", damaged=damaged)
        assert calendars.put(NAME, ics=text).version == number + 2


def test_the_error_of_a_costly_trigger_names_the_limit(calendars):
    rule = "too costly, because searching 32 days takes more than"
    with pytest.raises(InvalidScheduleError, match=rule):
        calendars.put(NAME, trigger=COSTLY)


@pytest.mark.parametrize("deletions", [1, 9])
def test_a_calendar_that_is_deleted_during_its_put_is_created_again(calendars, dynbeat, deletions):
    engine = dynbeat.context.database.engine
    if engine.dialect.name != "postgresql":
        pytest.skip("only PostgreSQL lets another transaction delete the row of the conflict")
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
            other("INSERT INTO dynbeat_calendar (name, definition) VALUES ('holidays', '{}')")

    def delete(*given):
        nonlocal left
        if is_insert(given):
            other("DELETE FROM dynbeat_calendar")
            left -= 1

    event.listen(engine, "before_cursor_execute", create)
    event.listen(engine, "after_cursor_execute", delete)
    if deletions == 1:
        assert calendars.put(NAME, dates=[MONDAY]).version == 1
        assert calendars.get(NAME).dates == (MONDAY,)
    else:
        with pytest.raises(InvalidScheduleError, match="repeat the call"):
            calendars.put(NAME, dates=[MONDAY])
