"""RRule: accepted and rejected text, fire times, descriptions, and the cost of any text."""

import json
import pickle
import random
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.triggers import RRule, Trigger, parse_trigger
from tests.unit.triggers import recurrences

BERLIN_START = "DTSTART;TZID=Europe/Berlin:20260105T090000"
BERLIN_EXDATE = "EXDATE;TZID=Europe/Berlin:20260106T090000,20260107T090000"
MONDAYS = f"{BERLIN_START}\nRRULE:FREQ=WEEKLY;BYDAY=MO"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
LONG_AGO = datetime(1990, 1, 1, tzinfo=UTC)
# The test machine may be busy. A hundredth of this is typical.
BUDGET_SECONDS = 0.5


def utc(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def fire_times(trigger, count=10, after=LONG_AGO):
    found, instant = [], after
    while len(found) < count and (instant := trigger.next_after(instant)) is not None:
        found.append(instant)
    return found


@pytest.mark.parametrize(
    ("text", "timezone", "expected"),
    [
        (MONDAYS, None, "Europe/Berlin"),
        (MONDAYS, "Asia/Seoul", "Europe/Berlin"),
        ("DTSTART:20260105T090000Z\nFREQ=DAILY", "Asia/Seoul", "UTC"),
        ("DTSTART:20260105T090000\nFREQ=DAILY", "Asia/Seoul", "Asia/Seoul"),
        ("DTSTART:20260105T090000\nFREQ=DAILY", None, None),
        ("FREQ=DAILY;BYHOUR=9", None, None),
    ],
)
def test_the_zone_of_dtstart_has_precedence_over_the_argument(text, timezone, expected):
    trigger = RRule(text, timezone=timezone)

    assert trigger.timezone == expected
    assert trigger.in_zone("Asia/Tokyo").timezone == expected or expected is None


def test_a_rule_without_a_zone_is_in_utc_until_it_gets_one():
    floating = RRule("DTSTART:20260105T090000\nFREQ=DAILY")

    assert floating.next_after(LONG_AGO) == utc("2026-01-05 09:00")
    assert floating.in_zone("Asia/Seoul").next_after(LONG_AGO) == utc("2026-01-05 00:00")
    assert floating.in_zone("Asia/Seoul").spec.startswith("DTSTART;TZID=Asia/Seoul:20260105T090000")


def test_without_dtstart_a_rule_counts_from_its_anchor():
    rule = RRule("FREQ=WEEKLY;INTERVAL=2", timezone="Europe/Berlin")

    anchored = rule.anchored_at(utc("2026-07-01 07:30:15.5"))

    assert (
        anchored.spec == "DTSTART;TZID=Europe/Berlin:20260701T093100\nRRULE:FREQ=WEEKLY;INTERVAL=2"
    )
    assert anchored.next_after(utc("2026-07-02")) == utc("2026-07-15 07:31")
    assert anchored.anchored_at(NOW) is anchored


def test_rules_and_rdates_are_combined_and_exdates_removed():
    trigger = RRule(
        "DTSTART;TZID=Europe/Berlin:20260105T090000\n"
        "RRULE:FREQ=DAILY;COUNT=3\n"
        "RRULE:FREQ=WEEKLY;COUNT=2;BYHOUR=10\n"
        "RDATE:20260106T120000Z\n"
        "RDATE;TZID=Asia/Seoul:20260107T000000\n"
        "EXDATE:20260106T080000Z\n"
        "EXDATE;TZID=Asia/Seoul:20260107T170000"
    )

    assert fire_times(trigger) == [
        *map(utc, ("2026-01-05 08:00", "2026-01-05 09:00", "2026-01-06 12:00")),
        *map(utc, ("2026-01-06 15:00", "2026-01-12 09:00")),
    ]


@pytest.mark.parametrize(
    ("until", "last"),
    [
        ("20260107T090000", "2026-01-07 08:00"),
        ("20260107T080000Z", "2026-01-07 08:00"),
        ("20260107T075959Z", "2026-01-06 08:00"),
        ("20260107", "2026-01-06 08:00"),
    ],
)
def test_until_is_the_last_moment_by_the_wall_clock_or_in_utc(until, last):
    trigger = RRule(f"DTSTART;TZID=Europe/Berlin:20260105T090000\nRRULE:FREQ=DAILY;UNTIL={until}")

    assert fire_times(trigger)[-1] == utc(last)


def test_plain_and_numbered_weekdays_are_combined():
    """In RFC 5545 they are alternatives. dateutil finds only days that are both."""
    trigger = RRule("DTSTART:20260101T090000Z\nRRULE:FREQ=MONTHLY;COUNT=5;BYDAY=MO,1FR")

    assert [instant.day for instant in fire_times(trigger)] == [2, 5, 12, 19, 26]


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("freq=weekly", "RRULE:FREQ=WEEKLY"),
        ("rrule:byday=we,mo,we;interval=1;freq=weekly;wkst=mo;", "RRULE:FREQ=WEEKLY;BYDAY=MO,WE"),
        ("FREQ=DAILY DTSTART:20260105T090000z", "DTSTART:20260105T090000Z\nRRULE:FREQ=DAILY"),
        ("FREQ=DAILY;BYHOUR=9,\r\n 10,9\r\n", "RRULE:FREQ=DAILY;BYHOUR=9,10"),
        (
            "\n    DTSTART:20260105T090000\n    RRULE:FREQ=DAILY\n",
            "DTSTART:20260105T090000\nRRULE:FREQ=DAILY",
        ),
        ("RRULE:FREQ=DAILY\nRRULE:FREQ=DAILY", "RRULE:FREQ=DAILY"),
        (
            """DTSTART;TZID="Europe/Berlin";VALUE=DATE-TIME:20260105T090000
            EXDATE:20260106T080000Z,20260107T080000Z
            FREQ=DAILY;UNTIL=20261231
            EXDATE;TZID=Europe/Berlin:20260107T090000""",
            f"{BERLIN_START}\nRRULE:FREQ=DAILY;UNTIL=20261231T000000\n{BERLIN_EXDATE}",
        ),
    ],
)
def test_text_has_one_normal_form(text, spec):
    trigger = RRule(text)

    assert trigger.spec == spec
    assert trigger == RRule(spec)
    assert hash(trigger) == hash(RRule(spec))


SIXTY = ",".join(map(str, range(60)))
DAILY = "DTSTART:20260105T090000Z\nRRULE:FREQ=DAILY"


@pytest.mark.parametrize(
    ("text", "field", "reason"),
    [
        ("", "rrule", "1 to 20 rules"),
        ("DTSTART:20260105T090000Z", "rrule", "1 to 20 rules"),
        ("\n".join(f"FREQ=DAILY;BYHOUR={n}" for n in range(21)), "rrule", "1 to 20 rules"),
        (" " * 4001, "rrule", "at most 4000"),
        ("INTERVAL=2", "freq", "missing"),
        ("FREQ=FORTNIGHTLY", "freq", "YEARLY, MONTHLY"),
        ("FREQ=DAILY;FREQ=DAILY", "freq", "given twice"),
        ("FREQ=DAILY;INTERVAL=0", "interval", "from 1"),
        ("FREQ=DAILY;INTERVAL=-1", "interval", "from 1"),
        ("FREQ=DAILY;INTERVAL=1E3", "interval", "from 1"),
        ("FREQ=DAILY;INTERVAL=9999999999", "interval", "from 1"),
        ("FREQ=DAILY;COUNT=1001", "count", "UNTIL, or the schedule's max_runs"),
        ("FREQ=DAILY;COUNT=5;UNTIL=20270101T000000Z", "count", "cannot be combined"),
        ("FREQ=DAILY;UNTIL=tomorrow", "until", "20260105T090000"),
        ("FREQ=DAILY;UNTIL=20260230T000000Z", "until", "this time does not exist"),
        (f"{DAILY};UNTIL=20250101T000000Z", "until", "before DTSTART"),
        ("FREQ=DAILY;WKST=XX", "wkst", "MO, TU"),
        ("FREQ=DAILY;BYDAY=", "byday", "weekday"),
        ("FREQ=DAILY;BYDAY=1MO", "byday", "FREQ=MONTHLY"),
        ("FREQ=MONTHLY;BYDAY=0MO", "byday", "from 1 to 5"),
        ("FREQ=MONTHLY;BYDAY=6MO", "byday", "from 1 to 5"),
        ("FREQ=YEARLY;BYDAY=54MO", "byday", "from 1 to 53"),
        ("FREQ=YEARLY;BYWEEKNO=1;BYDAY=1MO", "byday", "BYWEEKNO"),
        ("FREQ=MONTHLY;BYWEEKNO=1", "byweekno", "FREQ=YEARLY"),
        ("FREQ=DAILY;BYYEARDAY=1", "byyearday", "YEARLY"),
        ("FREQ=WEEKLY;BYMONTHDAY=1", "bymonthday", "DAILY"),
        ("FREQ=MONTHLY;BYMONTHDAY=0", "bymonthday", "from 1 to 31"),
        ("FREQ=YEARLY;BYMONTH=13", "bymonth", "from 1 to 12"),
        ("FREQ=YEARLY;BYMONTH=-1", "bymonth", "from 1 to 12"),
        ("FREQ=DAILY;BYHOUR=", "byhour", "write BYHOUR=0 or leave it out"),
        ("FREQ=DAILY;BYSECOND=60", "bysecond", "from 0 to 59"),
        ("FREQ=DAILY;BYSETPOS=0", "bysetpos", "from 1 to 366"),
        (f"{DAILY};BYHOUR=9;BYSETPOS=2", "bysetpos", "none at these positions"),
        ("FREQ=DAILY;BYEASTER=1", "byeaster", "RDATE"),
        ("FREQ=DAILY;RSCALE=CHINESE", "rrule", "unknown part"),
        ("FREQ=DAILY;BYHOUR", "rrule", "NAME=value"),
        ("EXRULE:FREQ=DAILY", "exrule", "EXDATE"),
        ("BEGIN:VTIMEZONE", "rrule", "names of the tz database"),
        ("RRULE;X=1:FREQ=DAILY", "rrule", "unknown here"),
        (f"{DAILY}\nDTSTART:20260105T090000Z", "dtstart", "given twice"),
        ("DTSTART;TZID=Europe/Berlin:20260105T090000Z\nFREQ=DAILY", "dtstart", "TZID and a Z"),
        ("DTSTART;TZID=Europe/Berlim:20260105T090000\nFREQ=DAILY", "timezone", "Europe/Berlin"),
        ("DTSTART:18990105T090000\nFREQ=DAILY", "dtstart", "between 1900"),
        ("DTSTART:2026-01-05\nFREQ=DAILY", "dtstart", "must look like"),
        (f"{DAILY}\nEXDATE:20260106", "exdate", "20260106T090000"),
        (f"{DAILY}\nEXDATE;TZID=Asia/Seoul:20260106T090000Z", "exdate", "TZID and a Z"),
        (f"{DAILY}\nRDATE;VALUE=PERIOD:20260106T090000Z/PT1H", "rdate", "unknown here"),
        (f"{DAILY};COUNT=1\nEXDATE:20260105T090000Z", "rrule", "exclude less"),
        ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "rrule", "never occur together"),
        ("DTSTART:20260131T090000Z\nFREQ=MONTHLY;BYMONTH=2", "rrule", "never occur together"),
        (f"{DAILY};BYMINUTE={SIXTY};BYSECOND={SIXTY}", "bysecond", "MINUTELY"),
    ],
)
def test_invalid_text_is_rejected_with_the_part_and_a_hint(text, field, reason):
    with pytest.raises(InvalidTriggerError, match=reason) as refusal:
        RRule(text)

    assert refusal.value.field == field


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=DAILY;INTERVAL=7;BYDAY=TU",
        "FREQ=HOURLY;INTERVAL=168;BYDAY=TU",
        "FREQ=HOURLY;INTERVAL=25;BYHOUR=3;BYDAY=TU;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=MONTHLY;INTERVAL=12;BYMONTH=2",
        "FREQ=YEARLY;INTERVAL=2;BYMONTH=2;BYMONTHDAY=29;BYYEARDAY=61",
        "FREQ=HOURLY;INTERVAL=4;BYHOUR=3",
        "FREQ=MINUTELY;INTERVAL=1440;BYHOUR=3",
        "FREQ=SECONDLY;INTERVAL=86399;BYHOUR=0;BYMINUTE=0;BYSECOND=0;BYMONTH=2;BYMONTHDAY=29",
        "FREQ=SECONDLY;INTERVAL=86400;BYHOUR=3",
        "FREQ=MONTHLY;BYMONTHDAY=1;BYSETPOS=2",
        "FREQ=WEEKLY;BYDAY=MO;BYMONTH=2;BYSETPOS=2",
        "FREQ=SECONDLY;BYSETPOS=2",
        "FREQ=SECONDLY;INTERVAL=999960;BYSECOND=1;BYMONTH=2;BYMONTHDAY=29",
    ],
)
def test_a_rule_that_never_fires_is_rejected_quickly(rule):
    started = time.process_time()

    with pytest.raises(InvalidTriggerError):
        RRule(f"DTSTART:20260105T000000Z\nRRULE:{rule}")

    assert time.process_time() - started < BUDGET_SECONDS


@pytest.mark.no_cover
def test_the_cost_of_a_search_does_not_depend_on_the_age_of_dtstart():
    trigger = RRule("DTSTART:19010101T000000Z\nRRULE:FREQ=SECONDLY;INTERVAL=7;BYDAY=MO")
    started = time.process_time()

    found = trigger.next_after(NOW)

    assert timedelta() <= found - utc("2026-11-23") < timedelta(seconds=7)
    assert (found - utc("1901-01-01")).total_seconds() % 7 == 0
    assert time.process_time() - started < BUDGET_SECONDS


rules = st.integers(0, 100_000).map(
    lambda seed: recurrences.random_rule(random.Random(seed))  # noqa: S311 - the same at each run
)
starts = st.datetimes(datetime(1901, 1, 1), datetime(2100, 1, 1)).map("{:%Y%m%dT%H%M%S}".format)  # noqa: DTZ001
zones = st.sampled_from(["", "Z", "Europe/Berlin", "Pacific/Apia", "Australia/Lord_Howe"])


@st.composite
def texts(draw):
    zone, start = draw(zones), draw(starts)
    head = f"DTSTART;TZID={zone}:{start}" if "/" in zone else f"DTSTART:{start}{zone}"
    lines = [head] * draw(st.integers(0, 1))
    for rule in draw(st.lists(rules, min_size=1, max_size=3)):
        end = draw(st.sampled_from(["", ";COUNT=1000", ";COUNT=3", ";UNTIL=20900101T000000Z"]))
        lines.append(f"RRULE:{rule}{end}")
    dates = draw(st.lists(starts, max_size=3))
    name = draw(st.sampled_from(["RDATE", "EXDATE"]))
    return "\n".join([*lines, *(f"{name}:{date}Z" for date in dates)])


@pytest.mark.no_cover
@settings(max_examples=60)
@given(text=texts(), instant=st.datetimes(timezones=st.just(UTC)))
def test_any_rule_is_rejected_or_survives_text_and_fires_in_order_quickly(text, instant):
    started = time.process_time()
    try:
        trigger = RRule(text)
    except InvalidTriggerError:
        assert time.process_time() - started < BUDGET_SECONDS
        return
    found = fire_times(trigger, 3, after=instant)

    assert time.process_time() - started < 4 * BUDGET_SECONDS
    assert found == sorted(set(found))
    assert all(fire_time > instant for fire_time in found)
    assert parse_trigger("rrule", trigger.spec, timezone=trigger.timezone) == trigger
    assert Trigger.from_json(json.loads(json.dumps(trigger.to_json()))) == trigger
    assert pickle.loads(pickle.dumps(trigger)) == trigger  # noqa: S301 - our own bytes
    assert trigger.phrase()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (MONDAYS, "every week on Monday at 09:00 from 2026-01-05, Europe/Berlin"),
        (
            "FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR;BYHOUR=9;BYMINUTE=0",
            "every week on Monday to Friday at 09:00, UTC",
        ),
        ("FREQ=MONTHLY;BYDAY=-1FR", "on the last Friday of every month, UTC"),
        (
            "FREQ=MONTHLY;BYMONTHDAY=1,15,-1",
            "on days 1 and 15 and the last day of every month, UTC",
        ),
        (
            "FREQ=MONTHLY;INTERVAL=3;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1",
            "on the last working day of every 3 months, UTC",
        ),
        ("FREQ=YEARLY;BYMONTH=11;BYDAY=4TH", "on the 4th Thursday of November, every year, UTC"),
        ("FREQ=HOURLY;INTERVAL=6", "every 6 hours, UTC"),
        (f"{DAILY};COUNT=3", "every day at 09:00 from 2026-01-05, 3 times, UTC"),
        (
            f"{DAILY};UNTIL=20260201T000000Z\nEXDATE:20260107T090000Z,20260108T090000Z",
            "every day at 09:00 from 2026-01-05, until 2026-02-01 00:00:00, except 2 dates, UTC",
        ),
        (f"{DAILY};BYMONTH=1", "by the rule FREQ=DAILY;BYMONTH=1 from 2026-01-05, UTC"),
        (
            f"{DAILY.replace('DAILY', 'YEARLY')};BYMONTH=1,2;BYDAY=MO;BYSETPOS=1",
            "by the rule FREQ=YEARLY;BYMONTH=1,2;BYDAY=MO;BYSETPOS=1 from 2026-01-05, UTC",
        ),
        ("FREQ=DAILY;BYMINUTE=0,30", "by the rule FREQ=DAILY;BYMINUTE=0,30, UTC"),
        (
            "FREQ=MONTHLY;BYDAY=MO;BYSETPOS=1;BYMINUTE=0,30",
            "by the rule FREQ=MONTHLY;BYDAY=MO;BYMINUTE=0,30;BYSETPOS=1, UTC",
        ),
        ("FREQ=YEARLY;BYWEEKNO=20", "by the rule FREQ=YEARLY;BYWEEKNO=20, UTC"),
    ],
)
def test_a_rule_is_described_in_words(text, words):
    assert RRule(text).phrase() == words
