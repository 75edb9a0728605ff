"""Quiet hours of owners: beat sends no run in them, and the calls that set them."""

import json
import threading
from datetime import UTC, date, datetime, timedelta
from functools import partial
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.orm import Session

from celery_dynbeat import Cron, Every, InvalidArgumentError, Once, QuietHours
from celery_dynbeat.api import owner_clock
from celery_dynbeat.beat.claim import claim
from celery_dynbeat.insights.charts import calendar
from celery_dynbeat.insights.explain.reading import explain
from celery_dynbeat.store import owners
from tests.support.applications import MINUTELY, START, application, execute, instants
from tests.support.suites import each_database

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
#: The clock starts on a Saturday at 09:00 UTC.
DAY = ["09:30-12:00"]
TEN, NOON = START + HOUR, START + 3 * HOUR
HALF_HOURLY = Cron("*/30 * * * *")


def fire_times(sent):
    return [(run.fire_at - START) / MINUTE for run in sent]


def run_until(clock, beat, end, *, step=30 * MINUTE):
    """Let beat pass every half hour, and return what it sent with the minute."""
    found = []
    while clock.now() < end:
        clock.advance(step)
        before = len(beat.publisher.sent)
        beat.run_until_idle()
        minute = (clock.now() - START) / MINUTE
        found += [(minute, at) for at in fire_times(beat.publisher.sent[before:])]
    return found


def test_a_fire_time_in_a_window_is_sent_at_its_end(mine, clock, beat):
    mine.set_quiet_hours(DAY)
    mine.create("n", task="t", trigger=Cron("0 10 * * *"))

    assert mine.get("n").next_run_at == NOON
    assert run_until(clock, beat, NOON) == [(180, 60)]
    assert mine.get("n").next_run_at == NOON + 24 * HOUR


def test_latest_sends_the_newest_fire_time_of_a_window_and_all_sends_each(mine, clock, beat):
    mine.set_quiet_hours(DAY)
    mine.create("latest", task="t", trigger=HALF_HOURLY)
    mine.create("all", task="t", trigger=HALF_HOURLY, catch_up="all")

    run_until(clock, beat, NOON)

    assert fire_times(each for each in beat.publisher.sent if each.name == "latest") == [180]
    assert fire_times(each for each in beat.publisher.sent if each.name == "all") == [
        *range(30, 181, 30)
    ]
    [skipped] = mine.runs("latest", status="skipped")
    assert (skipped.fire_count, skipped.fire_at) == (5, NOON - 30 * MINUTE)


def test_beat_sends_nothing_in_a_window_that_was_set_after_a_fire_time_was_due(mine, clock, beat):
    mine.create("n", task="t", trigger=Cron("20 9 * * *"))
    clock.advance(40 * MINUTE)
    mine.set_quiet_hours(DAY)

    assert run_until(clock, beat, NOON) == [(190, 20)]


def test_an_edit_of_the_windows_plans_the_schedules_again_in_its_transaction(
    dynbeat, mine, clock, beat
):
    names = {"in": Cron("0 10 * * *"), "out": Cron("0 13 * * *"), "once": Once(START + HOUR)}
    for name, trigger in names.items():
        mine.create(name, task="t", trigger=trigger)
    before = {row.name: row.next_run_at for row in mine.list()}

    with Session(dynbeat.context.database.engine) as session:
        assert mine.bound(session=session).set_quiet_hours(DAY) == 3
        session.rollback()
    assert {row.name: row.next_run_at for row in mine.list()} == before

    assert mine.set_quiet_hours(DAY) == 3
    assert {row.name: row.next_run_at for row in mine.list()} == {
        "in": NOON,
        "once": NOON,
        "out": START + 4 * HOUR,
    }
    assert mine.set_quiet_hours(DAY) == 0
    assert {row.version for row in mine.list()} == {1}
    clock.advance(2 * HOUR)
    assert mine.clear_quiet_hours() == 3
    # The fire times that waited are due at once.
    assert mine.get("in").next_run_at == mine.get("once").next_run_at == clock.now()
    beat.run_until_idle()
    assert sorted(run.name for run in beat.publisher.sent) == ["in", "once"]


def test_paused_and_finished_schedules_get_the_windows_and_stay_as_they_are(mine, clock, beat):
    mine.create("paused", task="t", trigger=HALF_HOURLY)
    mine.create("finished", task="t", trigger=Once(START + MINUTE))
    clock.advance(MINUTE)
    beat.run_until_idle()
    mine.pause("paused")

    assert mine.set_quiet_hours(DAY) == 2

    assert [mine.get(name).next_run_at for name in ("paused", "finished")] == [None, None]
    clock.advance(HOUR)
    assert mine.resume("paused").next_run_at == NOON


def test_a_held_schedule_gets_the_windows_after_its_hold(mine, clock, beat):
    mine.create("n", task="t", trigger=HALF_HOURLY)
    mine.hold(until=START + 2 * HOUR)
    clock.advance(HOUR)
    beat.run_until_idle()
    assert mine.get("n").held_at is not None

    mine.set_quiet_hours(DAY)
    assert mine.get("n").held_at is not None

    assert run_until(clock, beat, NOON)[0] == (180, 180)


def test_quiet_hours_follow_the_zone_of_the_owner(mine, clock, beat):
    mine.create("n", task="t", trigger=Every(HOUR, anchor=START))
    mine.set_timezone("Asia/Kathmandu")
    # 03:45 to 06:15 in UTC, 09:30 to 12:00 on the clock of the owner.
    mine.set_quiet_hours(DAY)
    assert mine.get("n").next_run_at == START + HOUR

    mine.set_timezone("UTC")
    assert mine.get("n").next_run_at == NOON

    assert run_until(clock, beat, NOON) == [(180, 180)]


def test_each_way_to_make_a_schedule_gives_it_the_quiet_hours(dynbeat, mine):
    mine.set_quiet_hours(DAY)
    zoned = Cron("0 10 * * *", timezone="UTC")
    made = [
        mine.create("create", task="t", trigger=zoned),
        mine.upsert("upsert", task="t", trigger=zoned),
        mine.create("inherits", task="t", trigger=Cron("0 10 * * *")),
    ]
    made += dynbeat.schedules.create_many(
        [{"owner": "user:42", "name": "many", "task": "t", "trigger": zoned}]
    )
    made.append(mine.update("create", trigger=Cron("0 11 * * *")))

    assert {row.next_run_at for row in made} == {NOON}


def test_a_damaged_value_of_the_owner_prevents_no_edit_that_does_not_need_it(dynbeat, mine):
    mine.set_timezone("Asia/Seoul")
    mine.create("n", task="t", trigger=MINUTELY)
    damaged = "UPDATE dynbeat_owner SET quiet_hours = :value"
    execute(dynbeat, damaged, value='{"windows": "x"}')

    assert mine.rename("n", "m").name == "m"
    assert mine.timezone() == "Asia/Seoul"
    assert mine.update("m", trigger=Cron("0 9 * * *")).timezone == "Asia/Seoul"
    for call in (mine.quiet_hours, partial(mine.create, "n", task="t", trigger=MINUTELY)):
        with pytest.raises(InvalidArgumentError, match="set it again"):
            call()
    mine.clear_quiet_hours()
    assert mine.create("n", task="t", trigger=MINUTELY).name == "n"


def test_manual_runs_and_requests_that_ask_for_now_are_not_affected(mine, beat):
    mine.create("n", task="t", trigger=Every(HOUR, anchor=START - 24 * HOUR))
    mine.set_quiet_hours(["08:00-12:00"])

    run = mine.run_now("n")
    mine.backfill("n", since=START - 3 * HOUR, until=START - MINUTE, now=True)
    beat.run_until_idle()

    assert run.id in [each.run_id for each in beat.publisher.sent]
    assert {each.origin for each in beat.publisher.sent} == {"manual", "backfill"}


def test_overlap_expiry_and_max_runs_count_from_the_time_of_sending(mine, clock, beat):
    mine.set_quiet_hours(DAY)
    mine.create(
        "n",
        task="t",
        trigger=HALF_HOURLY,
        catch_up="all",
        overlap="skip",
        expires_after=timedelta(minutes=5),
        max_runs=2,
    )
    run_until(clock, beat, NOON)

    [run] = beat.publisher.sent
    assert run.fire_at == START + 30 * MINUTE
    assert run.expires_at == NOON + timedelta(minutes=5)
    assert mine.get("n").run_count == 1


def test_a_call_of_skip_takes_a_fire_time_of_a_window_out(mine, clock, beat):
    mine.set_quiet_hours(DAY)
    mine.create("n", task="t", trigger=Cron("0 10,11 * * *"))
    mine.skip("n", START + 2 * HOUR)

    assert run_until(clock, beat, NOON) == [(180, 60)]


def test_a_run_that_waited_for_the_end_of_a_window_is_not_late(dynbeat, mine, clock, beat):
    mine.set_quiet_hours(DAY)
    mine.create("n", task="t", trigger=Cron("0 10 * * *"))
    clock.advance(2 * HOUR)
    beat.run_until_idle()

    assert mine.list(state="overdue").items == ()
    waiting = explain(dynbeat.context, owner="user:42", name="n")
    assert waiting.cause != "overdue"


def test_a_preview_shows_when_the_fire_times_of_a_window_are_sent(mine):
    mine.set_quiet_hours(DAY)
    after = mine.preview("0 9,10 * * *", "n", count=2).fire_times

    assert [(each.fire_at, each.run_at) for each in after] == [
        (START + HOUR, NOON),
        (START + 24 * HOUR, START + 24 * HOUR),
    ]
    assert [each.note for each in after] == ["in quiet hours: sent at 2026-11-21 12:00 UTC", None]
    assert json.dumps(mine.preview("0 9,10 * * *", "n", count=2).to_dict())


@pytest.mark.parametrize(
    ("policies", "minutes"),
    [
        ({"catch_up": "latest"}, [None, None, 180]),
        ({"catch_up": "all"}, [180, 180, 180]),
        ({"catch_up": "all", "overlap": "skip"}, [180, None, None]),
        ({"catch_up": "all", "overlap": "buffer_one"}, [180, 180, None]),
    ],
)
def test_a_preview_shows_the_runs_that_the_policies_send(mine, policies, minutes):
    mine.set_quiet_hours(DAY)

    found = mine.preview("0 10,11,12 * * *", "n", count=3, **policies).fire_times

    assert [each.run_at and (each.run_at - START) / MINUTE for each in found] == minutes


def test_a_preview_refuses_unknown_policies(mine):
    for field in ("catch_up", "overlap"):
        with pytest.raises(InvalidArgumentError, match=field):
            mine.preview(HALF_HOURLY, "n", **{field: "never"})


@pytest.mark.parametrize("catch_up", ["latest", "all"])
@pytest.mark.parametrize("max_runs", [1, 3])
def test_upcoming_with_max_runs_has_the_runs_that_beat_sends(mine, clock, beat, catch_up, max_runs):
    mine.set_quiet_hours(DAY)
    mine.create("n", task="t", trigger=HALF_HOURLY, catch_up=catch_up, max_runs=max_runs)

    found = mine.upcoming("n", count=20)
    runs = [each for each in found if each.run_at]
    # A run that no worker starts is sent again.
    sent = {at: minute for minute, at in reversed(run_until(clock, beat, NOON + HOUR))}

    assert {
        (each.fire_at - START) / MINUTE: (each.run_at - START) / MINUTE for each in runs
    } == sent
    assert len(sent) == max_runs
    assert mine.get("n").next_run_at is None
    assert found == runs


def test_a_preview_counts_only_the_runs_for_max_runs(mine):
    mine.set_quiet_hours(DAY)

    found = mine.preview("0,30 11,13 * * *", "n", count=9, max_runs=1).fire_times

    assert [each.run_at and (each.run_at - START) / MINUTE for each in found] == [None, 180]
    assert found[0].note == "in quiet hours: a newer fire time is sent instead"


def test_a_waiting_run_counts_for_the_max_runs_of_upcoming(mine, clock, beat):
    mine.create("n", task="t", trigger=Cron("30 9 * * *"), max_runs=1)
    mine.set_quiet_hours(DAY)
    clock.advance(HOUR)

    assert [(each.fire_at, each.run_at) for each in mine.upcoming("n")] == [
        (START + 30 * MINUTE, NOON)
    ]
    assert run_until(clock, beat, NOON) == [(180, 30)]
    assert mine.get("n").next_run_at is None


def test_an_offset_outside_of_quiet_hours_leaves_the_fire_time_in_upcoming(
    dynbeat, mine, clock, beat
):
    mine.set_quiet_hours(["22:00-23:00"])
    run_at = mine.create("n", task="t", trigger=HALF_HOURLY, window=1_500, max_runs=1).next_run_at
    clock.move_to(START + 30 * MINUTE)
    assert run_at > clock.now()

    assert [(each.fire_at, each.run_at) for each in mine.upcoming("n")] == [(clock.now(), run_at)]
    days = calendar(dynbeat.context, owner="user:42", name="n", zone=ZoneInfo("UTC"))
    assert sum(day.planned for day in days) == 0
    clock.move_to(run_at)
    beat.run_until_idle()
    assert mine.get("n").next_run_at is None


def test_upcoming_fire_times_keep_their_instants_and_say_what_quiet_hours_do(mine):
    mine.create("n", task="t", trigger=Cron("0 10,13 * * *"))
    mine.set_quiet_hours(DAY)

    assert instants(mine.upcoming("n", count=2)) == [START + HOUR, START + 4 * HOUR]
    notes = [each.wait_note for each in mine.upcoming("n", count=2)]
    assert notes == ["in quiet hours: sent at 2026-11-21 12:00 UTC", None]


def test_upcoming_has_the_times_at_which_a_run_is_sent_and_the_waiting_one_first(mine, clock, beat):
    mine.set_quiet_hours(DAY)
    triggers = {"interval": Every(HOUR, anchor=START), "once": Once(START + HOUR)}
    for name, trigger in triggers.items():
        mine.create(name, task="t", trigger=trigger)
    clock.advance(HOUR + MINUTE)
    beat.run_until_idle()

    interval, once = mine.upcoming("interval", count=3), mine.upcoming("once", count=3)

    hours = [NOON, NOON + HOUR, NOON + 2 * HOUR]
    assert [(each.fire_at, each.run_at) for each in interval] == list(
        zip(hours, hours, strict=True)
    )
    assert [(each.fire_at, each.run_at) for each in once] == [(START + HOUR, NOON)]
    assert once[0].wait_note == "in quiet hours: sent at 2026-11-21 12:00 UTC"


def test_upcoming_names_the_hold_for_which_a_fire_time_waits(mine, clock, beat):
    mine.set_quiet_hours(DAY)
    mine.create("n", task="t", trigger=Once(START + MINUTE))
    mine.bound(actor="alice").hold(reason="ticket 12", until=START + HOUR)
    clock.advance(2 * MINUTE)
    beat.run_until_idle()

    (timed,) = mine.upcoming("n")
    mine.bound(actor="alice").hold()
    (endless,) = mine.upcoming("n")

    assert (timed.fire_at, timed.run_at) == (START + MINUTE, NOON)
    assert timed.wait_note == "held by alice (ticket 12): sent at 2026-11-21 12:00 UTC"
    assert (endless.fire_at, endless.run_at) == (START + MINUTE, None)
    assert endless.wait_note == "held by alice"


@pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
def test_no_run_waits_until_a_day_that_its_rule_excludes(dynbeat, mine, clock, beat, catch_up):
    dynbeat.calendars.upsert("holidays", dates=[date(2026, 11, 22), date(2026, 11, 23)])
    mine.set_quiet_hours(["22:00-07:00"])
    trigger = Cron("30 23 * * *").excluding(calendar="holidays")
    sent_at = START + timedelta(days=3) - 2 * HOUR

    made = mine.create("n", task="t", trigger=trigger, catch_up=catch_up)

    assert made.next_run_at == sent_at
    (first, _) = mine.upcoming("n", count=2)
    assert (first.fire_at, first.run_at) == (START + 14.5 * HOUR, sent_at)
    assert mine.preview(trigger, "n", count=1).fire_times[0].run_at == sent_at
    sent = run_until(clock, beat, sent_at)
    assert sent == [((sent_at - START) / MINUTE, 14.5 * 60)]
    assert mine.runs(status="skipped").items == ()


def test_explain_names_the_quiet_hours_for_which_a_fire_time_waits(dynbeat, mine, clock, beat):
    mine.create("n", task="t", trigger=Cron("0 10 * * *"))
    mine.set_quiet_hours(DAY)
    clock.advance(2 * HOUR)
    beat.run_until_idle()

    found = explain(dynbeat.context, owner="user:42", name="n")

    assert found.cause == "quiet_hours"
    assert "until 2026-11-21 12:00 UTC" in found.sentence
    assert "waits" in found.sentence


@pytest.mark.parametrize(
    ("catch_up", "sent", "text"),
    [
        ("latest", [180], "The fire time in 90 min is sent then, in place of 2 other fire times."),
        ("all", [60, 120, 180], "Then 3 fire times are sent, the last one in 90 min."),
        ("none", [180], "The fire time in 90 min is sent then, in place of 2 other fire times."),
    ],
)
def test_quiet_hours_that_are_newer_than_the_fire_time_are_named_alike(
    dynbeat, mine, clock, beat, catch_up, sent, text
):
    mine.create("n", task="t", trigger=Cron("0 * * * *"), catch_up=catch_up)
    clock.advance(HOUR + 5 * MINUTE)
    mine.set_quiet_hours(["10:02-12:00"])
    clock.advance(25 * MINUTE)

    now, past = (explain(dynbeat.context, owner="user:42", name="n", at=at) for at in (None, TEN))
    found = [each for each in mine.upcoming("n") if each.fire_at <= NOON]

    assert (now.cause, past.cause) == ("quiet_hours", "quiet_hours")
    assert now.sentence.endswith(text)
    assert past.sentence == f"2026-11-21 10:00 UTC is still due. {now.sentence}"
    assert [((each.fire_at - START) / MINUTE, each.run_at) for each in found] == [
        (minute, NOON) for minute in sent
    ]
    is_newer = [each.wait_note for each in found if each.fire_at < NOON]
    assert is_newer == ["in quiet hours: sent at 2026-11-21 12:00 UTC"] * (len(sent) - 1)
    assert run_until(clock, beat, NOON) == [(180, minute) for minute in sent]
    skips = [each for each in mine.explain("n", at=TEN).runs if each.run.status == "skipped"]
    assert len(skips) == (catch_up != "all")


def test_upcoming_of_fire_times_that_beat_has_not_claimed_follows_catch_up(mine, clock, beat):
    for catch_up in ("latest", "all", "none"):
        mine.create(catch_up, task="t", trigger=Every(HOUR, anchor=START), catch_up=catch_up)
    clock.advance(3.5 * HOUR)

    found = {name: instants(mine.upcoming(name, count=2)) for name in ("latest", "all", "none")}

    hours = [START + number * HOUR for number in range(1, 6)]
    assert found == {"latest": hours[2:4], "all": hours[:2], "none": hours[3:5]}
    beat.run_until_idle()
    sent = {run.name: run.fire_at for run in reversed(beat.publisher.sent)}
    assert sent == {"latest": hours[2], "all": hours[0]}


def test_a_fire_time_that_no_beat_may_catch_up_after_a_hold_is_not_upcoming(mine, clock, beat):
    mine.create("n", task="t", trigger=Every(HOUR, anchor=START), catch_up="none")
    mine.bound(actor="alice").hold(until=START + 1.5 * HOUR)

    (first,) = mine.upcoming("n", count=1)

    assert (first.fire_at, first.run_at, first.wait_note) == (START + 2 * HOUR, first.fire_at, None)
    assert run_until(clock, beat, START + 2 * HOUR) == [(120, 120)]


def test_a_preview_shows_the_hold_of_its_owner(mine):
    shown = partial(mine.preview, Cron("0 10,11 * * *"), "n", count=2)
    mine.bound(actor="alice").hold(reason="r", until=START + 1.5 * HOUR)

    timed, after = shown().fire_times

    assert (timed.run_at, after.run_at) == (START + 1.5 * HOUR, START + 2 * HOUR)
    assert timed.note == "held by alice (r): sent at 2026-11-21 10:30 UTC"
    assert after.note is None
    missed, _ = shown(catch_up="none").fire_times
    assert missed.run_at is None
    assert missed.note.startswith("held by alice (r): missed: no beat could send it in time")
    mine.bound(actor="alice").hold()
    assert [(each.run_at, each.note) for each in shown().fire_times] == [
        (None, "held by alice")
    ] * 2


def test_a_forecast_counts_the_runs_at_the_end_of_a_window(dynbeat, mine):
    mine.create("latest", task="t", trigger=HALF_HOURLY)
    mine.create("all", task="t", trigger=HALF_HOURLY, catch_up="all")
    mine.set_quiet_hours(DAY)

    found = dynbeat.schedules.forecast(since=START, until=START + 4 * HOUR, per="hour")

    assert {row.start_at: row.runs for row in found.rows if row.runs} == {NOON: 1 + 6 + 2}


def test_the_calls_show_audit_and_export_the_windows(mine):
    mine.set_quiet_hours([QuietHours("22:00", "07:00", days="mon-fri"), "sat,sun 00:00-00:00"])
    mine.bound(actor="alice", reason="asked").set_quiet_hours(DAY)

    (own,) = mine.quiet_hours()
    assert own.to_dict() == {"owner": "user:42", "windows": DAY, "calendar": None}
    change = mine.changes(limit=1).items[0]
    assert (change.action, change.actor, change.reason) == ("set_quiet_hours", "alice", "asked")
    assert change.before["quiet_hours"]["windows"][0] == "mon-fri 22:00-07:00"
    assert change.after["quiet_hours"] == {"windows": DAY}
    assert next(mine.export())["quiet_hours"] == {"windows": DAY}
    mine.clear_quiet_hours()
    assert mine.quiet_hours() == []
    assert mine.changes(limit=1).items[0].after == {"quiet_hours": None}
    mine.clear_quiet_hours()
    assert len(mine.changes()) == 3


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (([],), "windows"),
        (("22:00-07:00",), "windows"),
        ((None,), "windows"),
        (([3],), "windows"),
        ((["00:00-00:00"],), "windows"),
        ((["22:00-07:00"] * 51,), "windows"),
        ((["22:00-x"],), "end"),
    ],
)
def test_invalid_windows_are_refused_with_their_field(mine, arguments, field):
    with pytest.raises(InvalidArgumentError) as raised:
        mine.set_quiet_hours(*arguments)

    assert raised.value.field == field
    assert mine.quiet_hours() == []


def test_windows_that_leave_no_time_with_those_of_everybody_are_refused(sqlite_url, clock):
    with application(sqlite_url, clock=clock, quiet_hours=["08:00-20:00"]) as dynbeat:
        mine = dynbeat.schedules.for_owner("user:42")
        with pytest.raises(InvalidArgumentError, match="with dynbeat_quiet_hours"):
            mine.set_quiet_hours(["20:00-08:00"])
        assert len(mine.quiet_hours()) == 1
        assert mine.set_quiet_hours(["20:00-07:00"]) == 0


def test_days_with_blanks_and_capitals_are_stored_as_the_text_that_is_read_back(mine):
    mine.set_quiet_hours([QuietHours("22:00", "07:00", days=" Sat, sun")])

    assert mine.create("n", task="t", trigger=Once(START + 18 * HOUR)).next_run_at == (
        START + 22 * HOUR
    )
    [own] = mine.quiet_hours()
    assert [str(window) for window in own.windows] == ["sat,sun 22:00-07:00"]


@pytest.mark.parametrize("windows", ['["x"]', "5", "[5]"])
def test_a_value_that_sql_wrote_is_refused_with_the_name_of_its_owner(dynbeat, mine, windows):
    mine.set_quiet_hours(DAY)
    value = f'{{"windows": {windows}}}'
    execute(dynbeat, "UPDATE dynbeat_owner SET quiet_hours = :value", value=value)

    with pytest.raises(InvalidArgumentError, match="of 'user:42' is not what") as refused:
        mine.create("n", task="t", trigger=MINUTELY)
    assert refused.value.field == "quiet_hours"
    mine.set_quiet_hours(DAY)
    mine.create("n", task="t", trigger=MINUTELY)


def test_the_same_windows_again_correct_a_schedule_that_sql_inserted(dynbeat, mine):
    mine.set_quiet_hours(DAY)
    mine.create("n", task="t", trigger=Cron("0 10 * * *"))
    execute(dynbeat, "UPDATE dynbeat_schedule SET quiet_hours = NULL, next_run_at = next_fire_at")

    assert mine.set_quiet_hours(DAY) == 1
    assert mine.get("n").next_run_at == NOON
    assert len(mine.changes("")) == 1


def test_a_damaged_text_quarantines_only_its_schedule(dynbeat, mine, clock, beat, sent):
    for name in ("bad", "good"):
        mine.create(name, task="t", trigger=MINUTELY)
    execute(dynbeat, "UPDATE dynbeat_schedule SET quiet_hours = '{' WHERE name = 'bad'")

    clock.advance(MINUTE)
    beat.run_until_idle()

    assert [run.name for run in sent] == ["good"]
    assert "quiet_hours" in mine.get("bad").error


def test_quiet_hours_cost_a_claim_no_statement(dynbeat, mine, clock):
    mine.create("n", task="t", trigger=MINUTELY)
    found = []
    event.listen(
        dynbeat.context.database.engine,
        "before_cursor_execute",
        lambda _connection, _cursor, sql, *_: found.append(sql),
    )

    def statements():
        found.clear()
        clock.advance(MINUTE)
        work = partial(claim, now=clock.now(), settings=dynbeat.context.settings)
        assert len(dynbeat.context.database.run(work).outgoing) == 1
        return [*found]

    before = statements()
    dynbeat.schedules.for_owner("other").set_quiet_hours(DAY)
    assert statements() == before
    mine.set_quiet_hours(["22:00-07:00"])
    assert statements() == before


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_schedule_that_is_created_during_a_change_gets_the_windows(request, kind):
    with application(request.getfixturevalue(f"{kind}_url")) as dynbeat:
        dynbeat.context.prepare()
        mine = dynbeat.schedules.for_owner("org:7/a")
        mine.set_quiet_hours(["22:00-23:00"])
        created, changed = threading.Event(), threading.Event()

        def change():
            created.wait(10)
            mine.set_quiet_hours(DAY)
            changed.set()

        thread = threading.Thread(target=change)
        thread.start()
        with Session(dynbeat.context.database.engine) as session:
            mine.bound(session=session).create("n", task="t", trigger=Cron("0 10 * * *"))
            created.set()
            assert not changed.wait(0.3)
            session.commit()
        thread.join(10)

        assert mine.get("n").next_run_at == NOON


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_schedule_that_is_renamed_during_a_change_gets_the_windows(request, kind, monkeypatch):
    with application(request.getfixturevalue(f"{kind}_url")) as dynbeat:
        dynbeat.context.prepare()
        mine = dynbeat.schedules.for_owner("org:7/a")
        mine.set_quiet_hours(["22:00-23:00"])
        for name in ("m", "z"):
            mine.create(name, task="t", trigger=Cron("0 10 * * *", timezone="UTC"))
        renamed = threading.Event()

        def rename():
            mine.rename("z", "a")
            renamed.set()

        thread = threading.Thread(target=rename)
        lock_schedules = owners.lock_schedules

        def lock_after_rename(session, *, after, **given):
            # After the first batch, which has "m".
            if after == "m":
                thread.start()
                renamed.wait(0.3)
            return lock_schedules(session, after=after, **given)

        monkeypatch.setattr(owner_clock, "BATCH_SIZE", 1)
        monkeypatch.setattr(owners, "lock_schedules", lock_after_rename)
        mine.set_quiet_hours(DAY)
        thread.join(10)

        assert {row.name: row.next_run_at for row in mine.list()} == {"a": NOON, "m": NOON}


def test_a_night_across_a_clock_change_ends_on_the_clock_of_the_owner(mine, clock):
    clock.advance(datetime(2027, 3, 27, 20, tzinfo=UTC) - clock.now())
    mine.set_timezone("Europe/Berlin")
    mine.set_quiet_hours(["22:00-07:00"])
    made = mine.create("n", task="t", trigger=Cron("0 23 * * *"))

    local = made.next_run_at.astimezone(ZoneInfo("Europe/Berlin"))
    assert (local.day, local.hour, local.utcoffset()) == (28, 7, 2 * HOUR)


@pytest.fixture
def older(dynbeat):
    """Give a session of the application, whose snapshot can be older than a change."""
    if dynbeat.context.database.engine.dialect.name == "sqlite":
        pytest.skip("a change waits for the snapshot")
    engine = create_engine(dynbeat.context.database.engine.url)
    with Session(engine) as session:
        session.execute(text("SELECT count(*) FROM dynbeat_schedule")).all()
        yield session
    engine.dispose()


@each_database
def test_a_change_in_a_session_with_an_older_snapshot_writes_its_windows(mine, older):
    mine.set_quiet_hours(["22:00-07:00"])
    mine.set_quiet_hours(["23:00-07:00"])

    mine.bound(session=older).set_quiet_hours(["22:00-07:00"])
    older.commit()

    assert [str(window) for window in mine.quiet_hours()[0].windows] == ["22:00-07:00"]
