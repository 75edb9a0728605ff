"""Beat and shared calendars: claims, plans after an edit, crashes, quarantine."""

from datetime import UTC, date, datetime, timedelta
from threading import Thread

import pytest
from sqlalchemy import event, text
from sqlalchemy.orm import Session

from celery_dynbeat import AnyOf, Cron, Once
from celery_dynbeat.beat import dispatcher, refused, replanning
from celery_dynbeat.beat.claim import claim
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import START, execute
from tests.support.suites import each_database

NAME = "holidays"
DAILY = Cron("0 12 * * *")
USING = DAILY.excluding(calendar=NAME)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
#: START is 21 November 2026, a Saturday.
SATURDAY, SUNDAY, MONDAY, TUESDAY = (date(2026, 11, day) for day in (21, 22, 23, 24))
NEVER = date(2030, 1, 1)


def at(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, 12, tzinfo=UTC)


@pytest.fixture
def calendars(dynbeat):
    made = dynbeat.calendars
    made.upsert(NAME, dates=[NEVER])
    return made


def sent_days(sent):
    return [run.fire_at.date() for run in sent]


def test_a_due_fire_time_on_a_new_day_is_not_sent(calendars, mine, clock, dynbeat, sent, beat):
    mine.create("n", task="t", trigger=USING)
    assert mine.get("n").next_run_at == at(SATURDAY)
    calendars.upsert(NAME, dates=[SATURDAY])
    clock.advance(4 * HOUR)
    # Only a claim: beat has planned nothing again.
    with Session(dynbeat.context.database.engine) as session:
        claim(session, now=clock.now(), settings=dynbeat.context.settings)
        session.commit()

    assert mine.runs() == []
    assert mine.get("n").next_run_at == at(SUNDAY)
    clock.advance(DAY)
    beat.run_until_idle()
    assert sent_days(sent) == [SUNDAY]


def test_an_edit_plans_the_schedules_again(calendars, mine, beat, clock):
    calendars.upsert(NAME, dates=[SATURDAY])
    mine.create("n", task="t", trigger=USING)
    assert mine.get("n").next_run_at == at(SUNDAY)

    changed = calendars.upsert(NAME, dates=[SUNDAY, MONDAY])
    assert (changed.version, changed.in_force_at) == (3, None)
    assert changed.waiting_schedules.count == 1
    # upsert() has locked and changed no schedule.
    assert mine.get("n").next_run_at == at(SUNDAY)
    clock.advance(timedelta(minutes=1))
    beat.run_until_idle()

    assert mine.get("n").next_run_at == at(SATURDAY)
    assert mine.get("n").version == 1
    found = calendars.get(NAME)
    assert (found.in_force_at, found.waiting_schedules.count) == (clock.now(), 0)


def test_plans_come_in_batches(calendars, mine, beat, monkeypatch):
    monkeypatch.setattr(replanning, "BATCH_SIZE", 3)
    rows = [{"name": f"n{n}", "task": "t", "trigger": USING} for n in range(8)]
    mine.create_many(rows)
    # Beat sees that there is a calendar.
    beat.run_until_idle()
    calendars.upsert(NAME, dates=[SATURDAY])

    waiting = []
    for _ in range(4):
        waiting.append(calendars.get(NAME).waiting_schedules.count)
        beat.tick()

    assert waiting == [8, 5, 2, 0]
    assert calendars.get(NAME).in_force_at == START
    assert {each.next_run_at for each in mine.list()} == {at(SUNDAY)}


@each_database
def test_a_locked_schedule_is_planned_later_and_delays_no_other(
    calendars, dynbeat, mine, beat, clock, monkeypatch
):
    if dynbeat.context.database.capabilities.embedded:
        pytest.skip("SQLite has no row locks")
    monkeypatch.setattr(replanning, "BATCH_SIZE", 2)
    mine.create_many([{"name": f"n{n}", "task": "t", "trigger": USING} for n in range(5)])
    calendars.upsert(NAME, dates=[SATURDAY])

    with Session(dynbeat.context.database.engine) as session:
        for name in ("n0", "n1"):
            mine.bound(session=session).update(name, description="locked")
        for _ in range(6):
            beat.tick()
        assert calendars.get(NAME).waiting_schedules.count == 2
        assert calendars.get(NAME).in_force_at is None
        session.rollback()
    for _ in range(2):
        # The first round ends.
        clock.advance(replanning.LOCKED_PAUSE)
        beat.run_until_idle()

    assert calendars.get(NAME).waiting_schedules.count == 0
    assert {each.next_run_at for each in mine.list()} == {at(SUNDAY)}


def test_a_link_of_an_old_version_that_commits_later_is_planned(
    calendars, dynbeat, mine, beat, clock
):
    """A create that read the old days commits after beat has planned the others."""
    mine.create("n", task="t", trigger=USING)
    calendars.upsert(NAME, dates=[SATURDAY])
    beat.run_until_idle()
    assert calendars.get(NAME).in_force_at is not None
    execute(dynbeat, "UPDATE dynbeat_schedule_calendar SET planned_with = 1")
    execute(
        dynbeat,
        "UPDATE dynbeat_schedule SET next_fire_at = :at, next_run_at = :at",
        at=at(SATURDAY),
    )
    assert calendars.get(NAME).in_force_at is None

    clock.advance(HOUR)
    beat.run_until_idle()

    assert mine.get("n").next_run_at == at(SUNDAY)
    assert calendars.get(NAME).in_force_at is not None


def test_rows_that_need_no_plan_get_only_their_link(calendars, mine, beat, clock, dynbeat):
    mine.create("paused", task="t", trigger=USING)
    mine.create("finished", task="t", trigger=USING, max_runs=1)
    mine.create("broken", task="t", trigger=USING)
    mine.create("windowed", task="t", trigger=USING, window=HOUR)
    mine.pause("paused")
    clock.advance(3 * HOUR + timedelta(seconds=1))
    beat.run_until_idle()
    assert mine.get("finished").finished_at is not None
    execute(
        dynbeat,
        "UPDATE dynbeat_schedule SET error = 'X: y', next_run_at = NULL WHERE name = 'broken'",
    )
    before = {each.name: each.to_dict() for each in mine.list()}
    calendars.upsert(NAME, dates=[MONDAY])
    clock.advance(timedelta(seconds=1))
    beat.run_until_idle()

    assert {each.name: each.to_dict() for each in mine.list()} == before
    assert calendars.get(NAME).waiting_schedules.count == 0
    mine.resume("paused")
    mine.resume("broken")
    assert mine.get("broken").next_run_at == at(SUNDAY)


def test_a_fire_time_on_a_new_day_does_not_delay_later_ones(calendars, mine, beat, clock, sent):
    mine.create("n", task="t", trigger=USING, window="100%", catch_up="all")
    delayed = mine.get("n").next_run_at
    clock.move_to(delayed - HOUR)
    assert clock.now() > at(SATURDAY)
    calendars.upsert(NAME, dates=[SATURDAY, SUNDAY, MONDAY])
    beat.run_until_idle()
    mine.update("n", window="99%")
    assert mine.get("n").next_run_at == delayed
    clock.move_to(delayed)
    beat.run_until_idle()
    clock.move_to(at(MONDAY) + HOUR)
    calendars.upsert(NAME, dates=[NEVER])
    beat.run_until_idle()
    clock.move_to(at(TUESDAY) + DAY)
    beat.run_until_idle()

    assert sent_days(sent) == [TUESDAY]


#: More days than a search for a fire time examines.
ALL_DAYS = [START.date() + n * DAY for n in range(1_000)]


@pytest.mark.parametrize("when", ["replan", "claim"])
def test_a_calendar_finishes_no_schedule(calendars, mine, beat, clock, when, sent):
    mine.create("n", task="t", trigger=USING)
    beat.run_until_idle()
    calendars.upsert(NAME, dates=ALL_DAYS)
    if when == "claim":
        clock.advance(4 * HOUR)
    beat.run_until_idle()

    blocked = mine.get("n")
    assert (blocked.finished_at, blocked.next_run_at) == (None, None)
    assert blocked.error.startswith("UnusableCalendarError: with the calendar holidays, it has no")
    assert "dynbeat.calendars.upsert()" in blocked.error
    assert sent == []
    calendars.upsert(NAME, dates=[SUNDAY])
    beat.run_until_idle()

    free = mine.get("n")
    assert free.error is None
    assert free.next_run_at == at(SATURDAY if when == "replan" else MONDAY)


@each_database
def test_a_resume_does_not_finish_a_schedule_that_a_calendar_blocks(calendars, mine, beat):
    mine.create("n", task="t", trigger=USING)
    mine.pause("n")
    calendars.upsert(NAME, dates=ALL_DAYS)

    resumed = mine.resume("n")

    assert resumed.finished_at is None
    assert resumed.error.startswith("UnusableCalendarError: ")
    calendars.upsert(NAME, dates=[SUNDAY])
    beat.run_until_idle()
    assert mine.get("n").next_run_at == at(SATURDAY)


def test_a_schedule_that_the_calendar_makes_too_costly_recovers(calendars, mine, beat):
    costly = AnyOf(*(Cron(f"{n} 12 * * *") for n in range(20))).excluding(calendar=NAME)
    mine.create("n", task="t", trigger=costly)
    calendars.upsert(NAME, dates=ALL_DAYS)
    beat.run_until_idle()
    assert mine.get("n").error.startswith("UnusableCalendarError: ")
    calendars.upsert(NAME, dates=[SUNDAY])
    beat.run_until_idle()

    assert mine.get("n").next_run_at == at(SATURDAY)


@pytest.mark.parametrize(
    ("after", "is_linked"), [("SKIP LOCKED", True), ("dynbeat_calendar.dates", False)]
)
@each_database
def test_no_row_is_planned_without_a_link_to_a_calendar_that_is_created_meanwhile(
    dynbeat, mine, beat, clock, after, is_linked
):
    if dynbeat.context.database.capabilities.embedded:
        pytest.skip("SQLite has one writer at a time")
    execute(
        dynbeat,
        "INSERT INTO dynbeat_schedule (owner, name, task, trigger_kind, trigger_spec)"
        " VALUES ('user:42', 'n', 't', 'excluding', :spec)",
        spec=USING.spec,
    )
    created = []

    def create(_connection, _cursor, statement, *_rest):
        """Commit the calendar after the first statement of beat that locks or reads calendars."""
        if not created and "FROM dynbeat_calendar" in statement and after in statement:
            created.append(statement)
            put = Thread(
                target=dynbeat.calendars.upsert, args=(NAME,), kwargs={"dates": [SATURDAY]}
            )
            put.start()
            put.join()

    engine = dynbeat.context.database.engine
    event.listen(engine, "after_cursor_execute", create)
    beat.run_until_idle()
    event.remove(engine, "after_cursor_execute", create)
    clock.advance(timedelta(minutes=1))
    beat.run_until_idle()

    found = mine.get("n")
    assert (len(created), dynbeat.calendars.get(NAME).schedules.count) == (1, int(is_linked))
    # Without a link it is quarantined, because put() of a new calendar searches for no schedules.
    assert found.next_run_at == (at(SUNDAY) if is_linked else None)
    assert (found.error is None) == is_linked


def test_a_beat_without_calendars_reads_none(dynbeat, mine, beat, clock, sent):
    """Not even the module of their tables is needed for a schedule that uses none."""
    statements = []
    engine = dynbeat.context.database.engine
    mine.create("n", task="t", trigger=DAILY)
    beat.run_until_idle()
    event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    clock.advance(4 * HOUR)
    beat.run_until_idle()

    assert sent_days(sent) == [SATURDAY]
    found = [each for each in statements if "calendar" in each]
    # One search for any calendar, in the interval of maintenance.
    assert len(found) == 1
    assert "schedule_calendar" not in found[0]


def test_a_claim_reads_all_calendars_in_one_statement(calendars, dynbeat, mine, beat, clock):
    calendars.upsert("other", dates=[NEVER])
    both = DAILY.excluding(calendar=[NAME, "other"])
    mine.create_many([{"name": f"n{n}", "task": "t", "trigger": both} for n in range(5)])
    beat.run_until_idle()
    statements = []
    engine = dynbeat.context.database.engine
    event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    clock.advance(3 * HOUR)
    beat.tick()

    assert len([each for each in statements if "dynbeat_calendar.dates" in each]) == 1


FRIDAY_AFTER, SATURDAY_AFTER = date(2026, 11, 27), date(2026, 11, 28)


@pytest.mark.usefixtures("calendars")
@pytest.mark.parametrize("end_at", [None, at(date(2026, 12, 31))])
def test_a_one_off_that_moved_to_an_earlier_day_finishes_after_its_run(
    mine, beat, clock, sent, end_at
):
    moved = Once(at(SATURDAY_AFTER)).on_business_day("previous", calendar=NAME)
    mine.create("n", task="t", trigger=moved, end_at=end_at)
    clock.advance(at(FRIDAY_AFTER) - START)
    beat.run_until_idle()

    assert sent_days(sent) == [FRIDAY_AFTER]
    ended = mine.get("n")
    assert (ended.error, ended.finished_at) == (None, clock.now())


def test_a_one_off_that_an_edit_moves_into_the_past_is_not_finished(calendars, mine, beat, clock):
    moved = Once(at(TUESDAY)).on_business_day("previous", calendar=NAME)
    mine.create("n", task="t", trigger=moved)
    clock.advance(at(MONDAY) + HOUR - START)
    calendars.upsert(NAME, dates=[TUESDAY])
    beat.run_until_idle()
    assert mine.get("n").error.startswith("UnusableCalendarError: ")
    calendars.upsert(NAME, dates=[NEVER])
    beat.run_until_idle()

    assert (mine.get("n").error, mine.get("n").next_run_at) == (None, at(TUESDAY))


@pytest.mark.parametrize("trigger", [Once(at(SATURDAY)), DAILY])
@each_database
def test_a_claim_finishes_no_schedule_that_a_new_day_blocks(
    calendars, dynbeat, mine, clock, beat, trigger
):
    end_at = at(SATURDAY) + HOUR
    mine.create("n", task="t", trigger=trigger.excluding(calendar=NAME), end_at=end_at)
    beat.run_until_idle()
    calendars.upsert(NAME, dates=[SATURDAY])
    clock.advance(3 * HOUR + timedelta(minutes=1))
    # Only a claim: beat has planned nothing again.
    with Session(dynbeat.context.database.engine) as session:
        claim(session, now=clock.now(), settings=dynbeat.context.settings)
        session.commit()

    blocked = mine.get("n")
    assert (blocked.finished_at, blocked.next_run_at) == (None, None)
    assert blocked.error.startswith("UnusableCalendarError: ")
    calendars.upsert(NAME, dates=[SUNDAY])
    beat.run_until_idle()
    # It has passed: nothing fires retroactively, and nothing is lost silently.
    [run] = mine.runs()
    assert (run.status, run.fire_at) == ("skipped", at(SATURDAY))
    assert mine.get("n").error is None


MOVED = DAILY.on_business_day("next", calendar=NAME)


@pytest.mark.usefixtures("calendars")
@pytest.mark.parametrize("trigger", [USING, MOVED, MOVED.excluding(calendar=NAME)])
def test_a_fire_time_planned_with_another_tz_release_is_sent(
    dynbeat, mine, beat, clock, sent, trigger
):
    mine.create("n", task="t", trigger=trigger)
    later = mine.get("n").next_run_at + HOUR
    execute(
        dynbeat,
        "UPDATE dynbeat_schedule SET next_fire_at = :at, next_run_at = :at",
        at=later,
    )
    clock.advance(later - START)
    beat.run_until_idle()

    assert [run.fire_at for run in sent] == [later]


@pytest.mark.parametrize("edited", [{"dates": [MONDAY]}, {"dates": [NEVER], "weekend": ["sat"]}])
def test_a_claim_does_not_send_a_fire_time_that_an_edit_has_moved(
    calendars, dynbeat, mine, clock, edited
):
    sundays = Cron("0 12 * * sun").on_business_day("next", calendar=NAME)
    mine.create("n", task="t", trigger=sundays)
    assert mine.get("n").next_run_at == at(MONDAY)
    clock.advance(2 * DAY + 4 * HOUR)
    calendars.upsert(NAME, **edited)
    # Only a claim: beat has planned nothing again.
    with Session(dynbeat.context.database.engine) as session:
        claim(session, now=clock.now(), settings=dynbeat.context.settings)
        session.commit()

    assert mine.runs() == []
    assert mine.get("n").next_run_at in {at(TUESDAY), at(SUNDAY) + 7 * DAY}


@pytest.mark.parametrize("catch_up", ["all", "none"])
def test_a_fire_time_on_a_removed_day_is_not_lost_in_an_outage(
    calendars, mine, beat, clock, sent, catch_up
):
    calendars.upsert(NAME, dates=[SUNDAY])
    mine.create("n", task="t", trigger=USING, catch_up=catch_up)
    clock.advance(4 * HOUR)
    beat.run_until_idle()
    assert mine.get("n").next_run_at == at(MONDAY)
    calendars.upsert(NAME, dates=[NEVER])
    # Beat is down meanwhile.
    clock.advance(DAY)
    beat.run_until_idle()

    assert (SUNDAY in sent_days(sent)) == (catch_up == "all")
    statuses = {run.fire_at: run.status for run in mine.runs()}
    assert (statuses[at(SUNDAY)] == "skipped") == (catch_up == "none")
    assert mine.get("n").next_run_at == at(MONDAY)


def test_a_schedule_that_is_too_costly_in_a_new_zone_recovers(calendars, mine, beat):
    costly = AnyOf(*(Cron(f"{n} 12 * * *") for n in range(20))).excluding(calendar=NAME)
    mine.create("n", task="t", trigger=costly)
    calendars.upsert(NAME, dates=ALL_DAYS)
    # Beat has planned nothing again.
    mine.set_timezone("Asia/Seoul")
    assert mine.get("n").error.startswith("UnusableCalendarError: ")
    calendars.upsert(NAME, dates=[SUNDAY])
    beat.run_until_idle()

    assert (mine.get("n").error, mine.get("n").next_run_at.date()) == (None, MONDAY)


@each_database
def test_an_edit_of_a_calendar_does_not_block_new_schedules(calendars, dynbeat, mine):
    if dynbeat.context.database.engine.dialect.name != "postgresql":
        pytest.skip("only PostgreSQL has locks that admit new links")
    with Session(dynbeat.context.database.engine) as session:
        calendars.bound(session=session).upsert(NAME, dates=[MONDAY])
        # It would wait for this transaction.
        with Session(dynbeat.context.database.engine) as other:
            other.execute(text("SET LOCAL lock_timeout = '1s'"))
            mine.bound(session=other).create("n", task="t", trigger=USING)
            other.commit()
        session.commit()

    assert calendars.get(NAME).waiting_schedules.count == 1


@each_database
def test_schedules_of_a_locked_calendar_do_not_delay_the_plans_of_others(
    limited, clock, monkeypatch
):
    monkeypatch.setattr(refused, "BATCH_SIZE", 2)
    dynbeat = limited()
    if dynbeat.context.database.capabilities.embedded:
        pytest.skip("SQLite has no row locks")
    calendars, mine = dynbeat.calendars, dynbeat.schedules.for_owner("user:42")
    for name in (NAME, "free", "also_locked"):
        calendars.upsert(name, dates=[NEVER])
    # An escape of JSON: the trigger names the calendar as well.
    escaped = USING.spec.replace("holidays", "\\u0068olidays")
    waiting = [(f"w{n}", USING.spec) for n in range(5)] + [("e", escaped)]
    waiting += [(f"a{n}", DAILY.excluding(calendar="also_locked").spec) for n in range(3)]
    others = [("free", DAILY.excluding(calendar="free").spec)]
    for name, spec in [*waiting, *others]:
        execute(
            dynbeat,
            "INSERT INTO dynbeat_schedule (owner, name, task, trigger_kind, trigger_spec)"
            " VALUES ('user:42', :name, 't', 'excluding', :spec)",
            name=name,
            spec=spec,
        )
    mine.create("plain", task="t", trigger=DAILY)
    execute(dynbeat, "UPDATE dynbeat_schedule SET next_run_at = NULL WHERE name = 'plain'")
    beat = ManualBeat(dynbeat)

    with Session(dynbeat.context.database.engine) as session:
        for name in (NAME, "also_locked"):
            calendars.bound(session=session).upsert(name, dates=[SATURDAY])
        beat.run_until_idle()
        planned = {each.name for each in mine.list() if each.next_run_at is not None}
        assert planned == {"free", "plain"}
        assert {each.error for each in mine.list()} == {None}
        session.commit()
    clock.advance(timedelta(minutes=1))
    beat.run_until_idle()

    assert {each.next_run_at for each in mine.list()} == {at(SATURDAY), at(SUNDAY)}
    assert calendars.get(NAME).schedules.count == 6


@pytest.mark.usefixtures("calendars")
def test_notifications_do_not_search_the_links_of_all_calendars(dynbeat, mine, beat, clock):
    mine.create("n", task="t", trigger=USING)
    beat.run_until_idle()
    statements = []
    engine = dynbeat.context.database.engine
    event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    interval = dynbeat.context.settings.node_timeout / dispatcher.ROUNDS_PER_NODE_TIMEOUT

    def searches() -> tuple[int, int]:
        of_calendars = [each for each in statements if "in_force_at IS NULL" in each]
        return len(of_calendars), len([each for each in of_calendars if "EXISTS" in each])

    for _ in range(5):
        beat.run_until_idle()
    assert searches() == (5, 0)
    clock.advance(interval)
    for _ in range(3):
        beat.run_until_idle()
    assert searches() == (8, 1)
