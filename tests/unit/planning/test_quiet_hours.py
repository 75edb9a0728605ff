"""Quiet hours: which instants are quiet, and what a plan sends, skips and delays."""

from datetime import UTC, date, datetime, timedelta
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dynbeat import (
    CalendarDays,
    Cron,
    Every,
    InvalidArgumentError,
    InvalidTriggerError,
    QuietHours,
)
from celery_dynbeat.common.quiet_rule import QuietRule
from celery_dynbeat.planning import ScheduleSpec, upcoming
from celery_dynbeat.planning.obstacles import wait_note
from celery_dynbeat.planning.plan import COUNT_LIMIT, Plan, due_at, plan, run_at
from celery_dynbeat.planning.quiet_hours import quiet_of, resolved
from celery_dynbeat.planning.upcoming import iter_planned, iter_runs

#: A Monday.
START = datetime(2026, 11, 23, tzinfo=UTC)
HOUR, MINUTE, DAY = timedelta(hours=1), timedelta(minutes=1), timedelta(days=1)
SECOND = timedelta(seconds=1)
NAMES = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
NIGHT = "22:00-07:00"
ZONES = ("UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/New_York", "Asia/Kathmandu")
#: Clocks go forward or back in the days after each.
CHANGES = [
    datetime(2026, 3, 28, tzinfo=UTC),
    datetime(2026, 10, 24, tzinfo=UTC),
    datetime(2026, 4, 4, tzinfo=UTC),
    datetime(2026, 10, 3, tzinfo=UTC),
    datetime(2026, 11, 1, tzinfo=UTC),
    START,
]


def quiet(*windows, zone="UTC"):
    rule = QuietRule([QuietHours.from_text(each) for each in windows])
    return quiet_of(resolved([rule], timezone=zone))


def is_quiet(windows, zone, instant):
    """Say from the definition whether the clock shows a time within a window."""
    wall = instant.astimezone(ZoneInfo(zone))
    for window in windows:
        shown = f"{wall:%H:%M}"
        today, yesterday = wall.weekday(), (wall.weekday() - 1) % 7
        days = {NAMES.index(day) for day in window.days.split(",")}
        crosses = window.end <= window.start
        if today in days and shown >= window.start and (crosses or shown < window.end):
            return True
        if crosses and yesterday in days and shown < window.end:
            return True
    return False


times = st.builds("{:02}:{:02}".format, st.integers(0, 23), st.sampled_from([0, 15, 30, 59]))
days = st.lists(st.sampled_from(NAMES), min_size=1, max_size=6, unique=True).map(",".join)
some_windows = st.lists(st.builds(QuietHours, times, times, days), min_size=1, max_size=4)


@given(
    windows=some_windows,
    zone=st.sampled_from(ZONES),
    start=st.sampled_from(CHANGES),
    minutes=st.integers(0, 3 * 24 * 60),
    seconds=st.integers(0, 59),
)
def test_the_end_and_the_start_are_those_of_a_search_minute_by_minute(
    windows, zone, start, minutes, seconds
):
    try:
        found = quiet_of(resolved([QuietRule(windows)], timezone=zone))
    except InvalidArgumentError:
        # They cover the whole week.
        return
    instant = start + minutes * MINUTE + timedelta(seconds=seconds, microseconds=7)
    end = instant
    while is_quiet(windows, zone, end):
        end = end.replace(second=0, microsecond=0) + MINUTE
    begin = instant
    if end > instant:
        begin = begin.replace(second=0, microsecond=0)
        while is_quiet(windows, zone, begin - MINUTE):
            begin -= MINUTE

    assert found.end(instant) == end
    assert found.start(instant) == begin


some_days = st.lists(st.integers(0, 6), max_size=5, unique=True)


@given(
    windows=st.lists(st.builds(QuietHours, times, times, days), max_size=3),
    zone=st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
    start=st.sampled_from(CHANGES),
    quiet_days=some_days,
    excluded=some_days,
    minutes=st.integers(0, 4 * 24 * 60),
)
def test_quiet_and_excluded_days_are_quiet_from_midnight_to_midnight(
    windows, zone, start, quiet_days, excluded, minutes
):
    try:
        text = resolved([QuietRule(windows, "quiet")], timezone=zone)
    except InvalidArgumentError:
        # They cover the whole week.
        return
    first = start.date() - DAY
    dates = {
        name: CalendarDays(name, frozenset(first + number * DAY for number in numbers))
        for name, numbers in {"quiet": quiet_days, "excluded": excluded}.items()
    }
    rule = Cron("0 9 * * *", timezone=zone).excluding(calendar="excluded")
    found = quiet_of(text).with_days(dates).excluding(rule.resolved(dates))

    def is_off(instant):
        day = instant.astimezone(ZoneInfo(zone)).date()
        return any(day in each.dates for each in dates.values()) or is_quiet(windows, zone, instant)

    instant = end = start + minutes * MINUTE
    while is_off(end):
        end += MINUTE
    begin = instant
    while end > instant and is_off(begin - MINUTE):
        begin -= MINUTE

    assert found.end(instant) == end
    assert found.start(instant) == begin


def test_the_night_before_a_quiet_day_ends_the_morning_after_it():
    holiday = CalendarDays("holidays", frozenset({date(2026, 11, 25)}), notes={})
    both = quiet_of(
        resolved([QuietRule([QuietHours("22:00", "07:00")], "holidays")], timezone="UTC")
    )
    both = both.with_days({"holidays": holiday})

    assert both.end(at("23:00", 1)) == both.end(at("12:00", 2)) == at("07:00", 3)
    assert both.end(at("12:00", 1)) == at("12:00", 1)
    alone = quiet_of(resolved([QuietRule((), "holidays")], timezone="Asia/Seoul"))
    alone = alone.with_days({"holidays": holiday})
    assert alone.end(at("15:00", 1)) == alone.end(at("14:59", 2)) == at("15:00", 2)
    assert alone.end(at("14:59", 1)) == at("14:59", 1)
    assert alone.describe(at("15:00", 1)) == "on a quiet day of the calendar 'holidays'"


def test_the_last_calendar_applies_and_a_missing_one_is_an_error():
    rules = [
        QuietRule((), "everybody"),
        QuietRule((), "owner"),
        QuietRule([QuietHours("01:00", "02:00")]),
    ]
    found = quiet_of(resolved(rules, timezone="UTC"))

    assert found.calendar == "owner"
    with pytest.raises(InvalidTriggerError, match="no calendar with this name"):
        found.with_days({"everybody": CalendarDays("everybody")})


@pytest.mark.parametrize(
    "windows",
    [["00:00-00:00"], ["00:00-12:00", "12:00-24:00"], ["mon-fri 00:00-24:00", "sat,sun 0:0-0:0"]],
)
def test_windows_that_cover_the_whole_week_or_are_no_windows_are_refused(windows):
    with pytest.raises(InvalidArgumentError):
        quiet(*windows)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("22:00", "windows"),
        (None, "windows"),
        ("25:00-07:00", "start"),
        ("22:00-7", "end"),
        ("24:00-07:00", "start"),
        ("noday 22:00-07:00", "days"),
        ("mon- 22:00-07:00", "days"),
    ],
)
def test_an_invalid_window_names_the_field(text, field):
    with pytest.raises(InvalidArgumentError) as raised:
        QuietHours.from_text(text)
    assert raised.value.field == field


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"timezone": "UTC", "quiet": []}',
        '{"timezone": "UTC", "quiet": [[0, 10080]]}',
        '{"timezone": "UTC", "quiet": [[5, 4]]}',
        '{"timezone": "nowhere", "quiet": [[0, 4]]}',
        '{"timezone": 4, "quiet": [[0, 4]]}',
        '{"timezone": "UTC", "quiet": [], "calendar": 4}',
    ],
)
def test_a_text_that_sql_wrote_is_refused_as_a_damaged_trigger(text):
    with pytest.raises(InvalidTriggerError):
        quiet_of(text)


def every(minutes, **fields):
    return ScheduleSpec(trigger=Every(minutes * 60, anchor=START), **fields)


def decide(spec, *, fire_at, now, limit=1_000):
    return plan(spec, fire_at=fire_at, run_count=0, now=now, limit=limit)


def at(text, day=0):
    hour, minute = map(int, text.split(":"))
    return START + day * DAY + timedelta(hours=hour, minutes=minute)


def test_a_fire_time_in_a_window_is_due_at_its_end_and_keeps_its_instant():
    daily = ScheduleSpec(trigger=Cron("0 23 * * *"), quiet=quiet(NIGHT))

    assert run_at(daily, at("23:00")) == at("07:00", 1)
    assert decide(daily, fire_at=at("23:00"), now=at("07:00", 1)) == Plan(
        send=(at("23:00"),), next_fire_at=at("23:00", 1)
    )


@pytest.mark.parametrize(("catch_up", "sent"), [("latest", 1), ("none", 1), ("all", 2 * 9 + 1)])
def test_catch_up_decides_about_the_fire_times_of_one_window(catch_up, sent):
    spec = every(30, quiet=quiet(NIGHT), catch_up=catch_up)

    made = decide(spec, fire_at=at("22:00"), now=at("07:00", 1))

    assert len(made.send) == sent
    assert made.send[-1] == at("07:00", 1)
    assert sum(skip.count for skip in made.skips) + sent == 2 * 9 + 1
    assert made.next_fire_at == at("07:30", 1)


def test_the_delay_of_a_window_does_not_count_as_late():
    daily = ScheduleSpec(trigger=Cron("0 23 * * *"), quiet=quiet(NIGHT), catch_up="none")
    window = daily._replace(catch_up="latest", catch_up_window=HOUR)

    for spec, grace in ((daily, timedelta(seconds=30)), (window, HOUR)):
        on_time = decide(spec, fire_at=at("23:00"), now=at("07:00", 1) + grace)
        late = decide(spec, fire_at=at("23:00"), now=at("07:00", 1) + grace + MINUTE)
        assert on_time.send == (at("23:00"),)
        assert late.send == ()
        assert late.skips[0].reason.startswith("missed")


def test_an_offset_that_ends_in_quiet_hours_does_not_count_as_late():
    for number in range(20):
        spec = ScheduleSpec(
            trigger=Cron("50 21 * * *"),
            key=str(number),
            window=timedelta(minutes=30),
            quiet=quiet(NIGHT),
            catch_up="none",
        )
        due = due_at(spec, at("21:50"), now=at("21:00"))
        assert decide(spec, fire_at=at("21:50"), now=due).send == (at("21:50"),)


def test_the_time_before_a_window_and_the_time_after_it_count_as_late_together():
    spec = ScheduleSpec(trigger=Cron("59 21 * * *"), quiet=quiet(NIGHT), catch_up="none")
    spec = spec._replace(grace=timedelta(minutes=2))

    # One minute passed before the window.
    for late, sent in ((timedelta(0), 1), (MINUTE, 1), (MINUTE + timedelta(seconds=1), 0)):
        made = decide(spec, fire_at=at("21:59"), now=at("07:00", 1) + late)
        assert len(made.send) == sent, late


def test_a_fire_time_from_before_a_window_waits_when_no_beat_could_send_it():
    hourly = every(60, quiet=quiet("22:30-07:00"))

    made = decide(hourly, fire_at=at("22:00"), now=at("22:45"))

    assert made == Plan(next_fire_at=at("22:00"))
    assert due_at(hourly, at("22:00"), now=at("22:45")) == at("07:00", 1)
    assert due_at(hourly, at("22:00"), now=at("22:15")) == at("22:00")


def test_a_delay_that_ends_in_a_window_ends_with_it():
    spec = every(24 * 60, quiet=quiet("00:01-05:00"), window=HOUR, key="k")

    assert run_at(spec, START) == at("05:00")


@given(
    windows=some_windows,
    catch_up=st.sampled_from(["latest", "all"]),
    interval=st.sampled_from([30, 45, 60, 240]),
    window=st.sampled_from([timedelta(0), 10 * MINUTE, "60%"]),
    downtime=st.sampled_from([0, 90, 3_000]),
)
def test_passes_send_or_record_each_fire_time_once_and_send_none_in_a_window(
    windows, catch_up, interval, window, downtime
):
    try:
        found = quiet_of(resolved([QuietRule(windows)], timezone="UTC"))
    except InvalidArgumentError:
        return
    spec = every(
        interval,
        quiet=found,
        catch_up=catch_up,
        window=window,
        min_interval=timedelta(seconds=1),
    )
    fire_at, now, sent, counted = START, START, [], 0
    end = START + 7 * DAY
    while True:
        now = max(now, due_at(spec, fire_at, now=now)) + downtime * MINUTE
        if now > end:
            break
        made = plan(spec, fire_at=fire_at, run_count=0, now=now, limit=COUNT_LIMIT)
        assert not (made.send and is_quiet(windows, "UTC", now))
        sent += made.send
        counted += len(made.send) + sum(skip.count for skip in made.skips)
        if made.next_fire_at == fire_at:
            assert due_at(spec, fire_at, now=now) > now
        fire_at = made.next_fire_at

    assert counted == (fire_at - START) // (interval * MINUTE)
    assert all(earlier < later for earlier, later in pairwise(sent))
    if catch_up == "all":
        assert len(sent) == counted


LAST = START + 3 * DAY


@st.composite
def specs(draw):
    """Give a schedule with quiet hours, of an owner and of everybody."""
    rules = [QuietRule(draw(some_windows)), QuietRule(draw(some_windows))]
    try:
        found = quiet_of(resolved(rules, timezone="UTC"))
    except InvalidArgumentError:
        # They cover the whole week.
        found = quiet(NIGHT)
    return every(
        draw(st.sampled_from([20, 45, 60, 240])),
        quiet=found,
        catch_up=draw(st.sampled_from(["latest", "none", "all"])),
        overlap=draw(st.sampled_from(["allow", "skip", "buffer_one", "cancel_previous"])),
        max_runs=draw(st.none() | st.integers(1, 8)),
        min_interval=draw(st.sampled_from([0, 30])) * MINUTE,
        window=draw(st.sampled_from([timedelta(0), 10 * MINUTE, "60%"])),
    )


def passes(spec):
    """Yield each run of a beat without downtime up to LAST, and when it is sent."""
    fire_at, run_count = START, 0
    passed_at, unfinished, buffered = None, 0, 0
    while fire_at is not None and fire_at <= LAST:
        now = due_at(spec, fire_at, now=fire_at)
        if now != passed_at:
            # A run ends before the next pass, unless that follows at once.
            passed_at, unfinished, buffered = now, 0, 0
        made = plan(
            spec,
            fire_at=fire_at,
            run_count=run_count,
            now=now,
            limit=COUNT_LIMIT,
            unfinished=unfinished,
            buffered=buffered,
        )
        yield from ((each, now) for each in made.runs if each <= LAST)
        run_count += len(made.runs)
        unfinished, buffered = unfinished + len(made.runs), buffered + len(made.buffered)
        fire_at = made.next_fire_at


def test_the_note_says_that_the_offset_ends_in_quiet_hours():
    spec = ScheduleSpec(
        trigger=Cron("50 21 * * *"), key="k", window=30 * MINUTE, quiet=quiet("21:51-07:00")
    )

    first = next(iter_planned(spec, at("21:50"), now=at("21:00")))

    assert first.run_at == at("07:00", 1)
    note = wait_note(spec, first, now=at("21:00"), timezone="UTC")
    assert note == "in quiet hours: sent at 2026-11-24 07:00 UTC"


def until_last(planned):
    return takewhile(lambda each: each.at <= LAST, planned)


@given(spec=specs())
def test_planned_fire_times_have_the_runs_that_beat_sends(spec):
    planned = [*until_last(iter_planned(spec, START, now=START))]

    runs = [(each.at, each.run_at) for each in planned if each.reason is None]
    assert runs == [*passes(spec)]
    assert all(each.run_at is None for each in planned if each.reason is not None)


@given(spec=specs(), minutes=st.integers(0, 2 * 24 * 60))
def test_the_runs_that_wait_for_the_end_of_a_window_count_for_max_runs(spec, minutes):
    # With these two, runs that wait can also delay later ones.
    spec = spec._replace(min_interval=timedelta(0), window=timedelta(0))
    now = START + minutes * MINUTE
    sent = [(at, sent_at) for at, sent_at in passes(spec) if sent_at <= now]
    if spec.quiet.end(now) == now or len(sent) == spec.max_runs:
        return
    fire_at = START
    while due_at(spec, fire_at, now=fire_at) <= now:
        fire_at = spec.trigger.next_after(fire_at)

    upcoming = until_last(iter_runs(spec, fire_at, now=now, run_count=len(sent)))

    assert [each.at for each in upcoming if each.at > now] == [
        at for at, _ in passes(spec) if at > now
    ]


def test_a_window_that_is_accepted_is_read_back():
    longest = ",".join(f"{day}-{day}" for day in ("mon", "tue", "wed", "thu", "fri", "sat", "sun"))
    window = QuietHours("22:00", "07:00", days=longest)

    assert QuietHours.from_text(str(window)) == window
    for make in (
        lambda: QuietHours("22:00", "07:00", days="mon," * 30 + "mon"),
        lambda: QuietHours.from_text("mon," * 30 + "mon 22:00-07:00"),
    ):
        with pytest.raises(InvalidArgumentError, match="such as"):
            make()


def test_the_passes_end_if_no_end_of_the_quiet_time_is_found():
    days = CalendarDays("closed", frozenset(START.date() + n * DAY for n in range(1_990)))
    rule = QuietRule([], calendar="closed")
    closed = quiet_of(resolved([rule], timezone="UTC")).with_days({"closed": days})
    spec = ScheduleSpec(Cron("0 9 * * *", timezone="UTC"), quiet=closed)

    assert list(iter_runs(spec, START + 9 * HOUR, now=START)) == []
    assert list(iter_planned(spec, START + 9 * HOUR, now=START)) == []


@pytest.mark.parametrize(("overlap", "together"), [("skip", 1), ("buffer_one", 2)])
def test_millions_of_fire_times_that_overlap_skips_take_few_plans(monkeypatch, overlap, together):
    plans = []

    def counted(*args, **given):
        plans.append(1)
        return plan(*args, **given)

    monkeypatch.setattr(upcoming, "plan", counted)
    spec = ScheduleSpec(Every(1, anchor=START), catch_up="all", overlap=overlap)
    end = START + 30 * DAY

    found = [(each.at, each.run_at) for each in islice(iter_runs(spec, START, now=end), 4)]

    together = [(START + n * SECOND, end) for n in range(together)]
    later = [(end + n * SECOND, end + n * SECOND) for n in range(1, 4)]
    assert found == (together + later)[:4]
    assert len(plans) <= 5
