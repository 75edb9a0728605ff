"""A rule has one text and one JSON, which are read back without a loss."""

import json
import time
import unicodedata
from datetime import UTC, date, datetime, timedelta
from importlib.resources import files

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.triggers import AnyOf, Cron, Every, Once, RRule, Solar, Trigger
from tests.unit.triggers import expressions

#: A call may take this time.
PROMISE_SECONDS = 0.25
SCHEMA = json.loads(files("celery_dynbeat.triggers").joinpath("trigger.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
NINE = Cron("0 9 * * *")
INSTANT = datetime(2026, 12, 24, 9, tzinfo=UTC)

zones = st.sampled_from([None, "UTC", "Asia/Seoul", "America/Argentina/Buenos_Aires", "Etc/GMT+5"])
calendars = st.sampled_from(
    ["holidays-de", "in", "or", "except", "2026-12-25", "a.b_c", "calendar"]
)
days = st.dates(date(2026, 1, 1), date(2026, 12, 31))
anchors = st.none() | st.datetimes(
    datetime(1901, 1, 1),  # noqa: DTZ001 - made aware
    datetime(9000, 1, 1),  # noqa: DTZ001 - made aware
    timezones=st.just(UTC),
)
crons = st.builds(
    lambda times, dates, zone, day_or: Cron(f"{times} {dates}", timezone=zone, day_or=day_or),
    expressions.times() | st.just("h h(22-4)"),
    st.sampled_from(["* * *", "L,15w * fri#2", "1-9 * fri", "1 1 ?"]),
    zones,
    st.booleans(),
)
everys = st.one_of(
    st.builds(
        lambda interval, anchor: Every(interval, anchor=anchor),
        st.timedeltas(timedelta(microseconds=1), timedelta(days=36525)),
        anchors,
    ),
    st.builds(
        lambda unit, count, anchor, zone: Every(**{unit: count}, anchor=anchor, timezone=zone),
        st.sampled_from(["days", "weeks", "months", "years"]),
        st.integers(1, 100),
        anchors,
        zones,
    ),
)
one_offs = st.one_of(
    st.builds(Once, st.datetimes(max_value=datetime(9899, 12, 31), timezones=st.just(UTC))),  # noqa: DTZ001 - made aware
    st.builds(Once.after, st.timedeltas(timedelta(), timedelta(days=36525))),
)
rrules = st.builds(
    RRule,
    st.sampled_from(
        [
            "FREQ=WEEKLY;BYDAY=MO",
            "DTSTART:20260105T090000\nRRULE:FREQ=DAILY;UNTIL=20270101T000000Z",
            "DTSTART:20260105T090000Z\nRRULE:FREQ=MONTHLY;BYDAY=-1FR",
            "RRULE:FREQ=DAILY;BYHOUR=9\nRDATE;TZID=Asia/Tokyo:20260105T090000",
            "RRULE:FREQ=DAILY;BYHOUR=9\nEXDATE:20260106T090000,20260107T090000Z",
            "RRULE:FREQ=DAILY\nRRULE:FREQ=WEEKLY;COUNT=3",
        ]
    ),
    timezone=zones,
) | st.builds(
    RRule, st.just("DTSTART;TZID=Europe/Berlin:20260105T090000\nRRULE:FREQ=WEEKLY;BYDAY=MO")
)
solars = st.builds(
    lambda event, latitude, longitude: Solar(event, latitude=latitude, longitude=longitude),
    st.sampled_from(["sunrise", "solar_noon", "dusk_civil", "dawn_astronomical"]),
    st.floats(-60, 60),
    st.floats(-180, 180),
)
plain = st.one_of(crons, everys, one_offs, rrules, solars)


@st.composite
def combinations(draw):
    """Return AnyOf, business days and exclusions in each order that is allowed."""
    trigger = draw(plain)
    try:
        if draw(st.booleans()):
            trigger = AnyOf(trigger, draw(plain))
        if draw(st.booleans()):
            direction, zone = draw(st.sampled_from(["next", "previous"])), draw(zones)
            trigger = trigger.on_business_day(direction, calendar=draw(calendars), timezone=zone)
        if draw(st.booleans()):
            what = draw(st.lists(days | plain, max_size=3))
            names = draw(st.lists(calendars, max_size=2, unique=True))
            trigger = trigger.excluding(*what, calendar=names, timezone=draw(zones))
        return AnyOf(trigger, draw(plain)) if draw(st.booleans()) else trigger
    except InvalidTriggerError:
        # No fire time is left, or too many steps.
        return NINE


@settings(deadline=None)
@given(plain | combinations())
def test_a_trigger_is_read_back_from_its_text_and_its_json(trigger):
    text, data = trigger.to_text(), trigger.to_json()

    assert str(trigger) == text
    assert Trigger.from_text(text) == trigger
    assert Trigger.from_json(json.loads(json.dumps(data))) == trigger
    VALIDATOR.validate(data)
    assert not any(unicodedata.category(character).startswith("C") for character in text)


@pytest.mark.parametrize(
    ("trigger", "text"),
    [
        (Cron("0 9 * * mon-fri", timezone="Asia/Seoul"), "CRON_TZ=Asia/Seoul 0 9 * * mon-fri"),
        (Cron("0 9 1 * fri", day_or=False), "0 9 1 * fri day_and"),
        (Every(300), "PT5M"),
        (Every(months=1, timezone="Asia/Seoul"), "TZ=Asia/Seoul P1M"),
        (Every(300, anchor=INSTANT), "R/2026-12-24T09:00:00Z/PT5M"),
        (Once(INSTANT), "2026-12-24T09:00:00Z"),
        (Once.after(timedelta(hours=40)), "in PT40H"),
        (RRule("FREQ=DAILY", timezone="Asia/Seoul"), "TZ=Asia/Seoul RRULE:FREQ=DAILY"),
        (
            RRule("DTSTART;TZID=Asia/Seoul:20260105T090000\nRRULE:FREQ=DAILY"),
            "DTSTART;TZID=Asia/Seoul:20260105T090000 RRULE:FREQ=DAILY",
        ),
        (Solar("sunset", latitude=52.5, longitude=13.4), "sunset 52.5 13.4"),
        (AnyOf(NINE, Every(300)), "0 9 * * * or PT5M"),
        (
            AnyOf(NINE.excluding(date(2026, 12, 25)), Every(300)),
            "PT5M or (0 9 * * * except 2026-12-25)",
        ),
        (
            AnyOf(NINE, Every(300)).excluding(date(2026, 12, 25), calendar="holidays-de"),
            "(0 9 * * * or PT5M) except 2026-12-25, calendar holidays-de",
        ),
        (
            NINE.on_business_day("next", calendar="work").excluding(
                date(2026, 12, 25), Cron("0 0 1 1 *"), timezone="Asia/Seoul"
            ),
            (
                "0 9 * * * on the next business day of work except 2026-12-25,"
                " (CRON_TZ=Asia/Seoul 0 0 1 1 *) in Asia/Seoul"
            ),
        ),
    ],
)
def test_the_text_is_the_known_form(trigger, text):
    assert trigger.to_text() == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tz=Asia/Seoul 0 9 * * *", Cron("0 9 * * *", timezone="Asia/Seoul")),
        ("CRON_TZ=Asia/Seoul\n0 9 * * *", Cron("0 9 * * *", timezone="Asia/Seoul")),
        ("CRON_TZ=Asia/Seoul P1M", Every(months=1, timezone="Asia/Seoul")),
        ("90s", Every(90)),
        (" 1.5h ", Every(5400)),
        ("1d", Every(timedelta(days=1))),
        ("in 2h", Once.after(7200)),
        ("IN  pt40h", Once.after(timedelta(hours=40))),
        ("TZ=Asia/Seoul 2026-12-24T18:00", Once(INSTANT)),
        ("TZ=Europe/Berlin 2026-03-29 02:30", Once(datetime(2026, 3, 29, 1, 30, tzinfo=UTC))),
        ("SUNSET 52.5 13.4", Solar("sunset", latitude=52.5, longitude=13.4)),
        ("(0 9 * * *)", NINE),
        ("0 9 * * *\n  OR 5m", AnyOf(NINE, Every(300))),
        ("0 9 * * * EXCEPT 2026-12-25,2026-12-26",
         NINE.excluding(date(2026, 12, 25), date(2026, 12, 26))),
        ("0 H(0-7) * * * except (0 0 H(1-9) 1 *)",
         Cron("0 H(0-7) * * *").excluding(Cron("0 0 H(1-9) 1 *"))),
        ("RRULE:FREQ=WEEKLY;BYDAY\n =MO", RRule("FREQ=WEEKLY;BYDAY=MO")),
    ],
)  # fmt: skip
def test_a_typed_text_is_read(text, expected):
    assert Trigger.from_text(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("TZ=Asia/Seoul PT5M", "does not depend on a time zone; leave TZ=Asia/Seoul out"),
        ("TZ=Asia/Seoul in 5m", "does not depend on a time zone"),
        ("TZ=Asia/Seoul 2026-12-24T18:00Z", "does not depend on a time zone"),
        ("TZ=UTC DTSTART;TZID=Asia/Seoul:20260105T090000 RRULE:FREQ=DAILY", "names the zone Asia"),
        ("TZ=Asia/Seol 0 9 * * *", "did you mean 'Asia/Seoul'"),
        ("TZ=../../etc/passwd 0 9 * * *", "unknown time zone"),
        ("TZ=Asia/Seoul\x00 0 9 * * *", "unknown time zone"),
        ("TZ=", "unknown time zone ''"),
        ("TZ=UTC", "0 fields"),
        ("TZ=UTC TZ=UTC 0 9 * * *", "names no zone"),
        ("2026-12-24T18:00", "it needs a time and a zone"),
        ("TZ=UTC 2026-02-30T18:00", "does not exist"),
        ("in 5 minutes", "ISO 8601 duration"),
        ("in P1D", "calendar time"),
        ("0 9 * * * or", "second 'or'"),
        ("0 9 * * * or or 5m", "'or 5m' has 2 fields"),
        ("0 9 * * * except holidays", "a date must be text"),
        ("0 9 * * * except 2026-12-25,", "a date must be text"),
        ("0 9 * * * except 2026-12-25 except 2026-12-26", "twice"),
        ("0 9 * * * except 2026-12-25 in Asia/Seol", "did you mean"),
        ("0 9 1 * * on the last business day of work", "'next' or 'previous'"),
        ("0 9 1 * * on the moon", "on the next business day of holidays-de"),
        ("(0 9 * * *", "minute"),
        ("(0 9 * * *) 5m", "minute"),
        ("((((((0 9 * * *))))))", "more than 4 parentheses"),
        (" or ".join(["@daily"] * 21), "21 triggers, but at most 20"),
        ("@daily except " + ", ".join(["(@daily)"] * 11), "11 triggers, but at most 10"),
        ('{"kind":"every","spec":"PT5M"}', "1 fields"),
        ("0 9 * * * or 0 10 * * * except 2026-12-25", "into parentheses: '\\(A or B\\) except C'"),
        ("0 9 1 * * on the next business day of c or @daily", "into parentheses"),
        ("CRON_TZ=Asia/Seoul (0 9 * * * or 0 10 * * *)", "the zone in each part, inside"),
        ('@daily except calendar "a', "calendar"),
    ],
)
def test_a_text_that_is_no_trigger_is_refused_with_the_reason(text, reason):
    with pytest.raises(InvalidTriggerError, match=reason):
        Trigger.from_text(text)


def test_an_instant_without_an_offset_is_on_the_clock_of_the_given_zone():
    text = "2026-12-24T18:00"

    assert Trigger.from_text(text, timezone="Asia/Seoul") == Once(INSTANT)
    assert Once.from_text(f"TZ=UTC {text}", timezone="Asia/Seoul").at.hour == 18
    assert Trigger.from_text("0 9 * * *", timezone="Asia/Seoul") == NINE


HOSTILE = [
    "(" * 8_500,
    "(" * 4_000 + ")" * 4_000,
    "() or " * 1_400,
    " or " * 2_000,
    " except " * 1_000,
    " on the " * 1_000,
    "@daily except " + "(@daily)," * 900,
    "@daily except " + "2026-12-25," * 770,
    "@daily except " + "calendar a," * 770,
    "@daily in " + "in " * 2_800,
    "\u0130" * 8_000 + " or 5m",
    "9" * 8_500,
    "R/" * 4_000,
    "P" + "9" * 8_000 + "D",
    "9" * 400 + "." + "9" * 400 + "w",
    "in " + "9" * 8_000 + "s",
    "TZ=" + "A" * 8_000 + " 5m",
    "2026-" + "1" * 8_000,
    "FREQ=" * 1_700,
    "A-Z;" * 2_000 + "FREQ=",
    "sun" * 2_800,
    "sunrise nan inf",
    "sunrise 1e999 1",
    "\x00" * 8_000,
    "* * * * *\ud800",
    " " * 8_500,
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=[str(n) for n in range(len(HOSTILE))])
def test_a_hostile_text_is_refused_in_the_promised_time(text):
    started = time.thread_time()
    with pytest.raises(InvalidTriggerError) as refusal:
        Trigger.from_text(text)

    assert time.thread_time() - started < PROMISE_SECONDS
    assert len(str(refusal.value)) < 1_000


def test_a_costly_text_is_read_in_the_promised_time():
    rules = [f"FREQ=SECONDLY;INTERVAL={n};COUNT=900;BYMONTH=2;BYMONTHDAY=29" for n in range(1, 21)]
    text = " or ".join(rules)

    started = time.thread_time()
    Trigger.from_text(text)

    assert time.thread_time() - started < PROMISE_SECONDS


words = st.sampled_from(
    [
        *("or", "on the", "next", "business day of", "except", "in", "calendar", "(", ")", ","),
        *("TZ=UTC", "CRON_TZ=Asia/Seoul", "0 9 * * *", "PT5M", "5m", "2026-12-25", "work"),
        *("FREQ=DAILY", "H(1-5)"),
    ]
)


@settings(max_examples=400, deadline=None)
@given(st.lists(words | st.text(max_size=8), max_size=12).map(" ".join))
def test_any_text_is_read_or_refused(text):
    try:
        trigger = Trigger.from_text(text)
    except InvalidTriggerError:
        return
    assert Trigger.from_text(str(trigger)) == trigger


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"kind": "crom", "spec": "0 9 * * *"},
        {"kind": "every", "spec": "5 minutes"},
        {"kind": "once", "spec": "2026-12-24T18:00"},
        {"kind": "cron", "spec": "0 9 * * *", "zone": "UTC"},
        {"kind": "any_of", "spec": [{"kind": "every", "spec": "PT5M"}]},
        {"kind": "any_of", "spec": [5, {}]},
        {"kind": "excluding", "spec": {"dates": ["2026-12-25"]}},
        {"kind": "on_business_day", "spec": {"trigger": {"kind": "every", "spec": "PT5M"},
                                             "direction": "last", "calendar": "A b"}},
    ],
)  # fmt: skip
def test_the_schema_and_the_reader_refuse_the_same_json(data):
    assert not VALIDATOR.is_valid(data)
    with pytest.raises(InvalidTriggerError):
        Trigger.from_json(data)


def test_json_that_cannot_be_text_is_refused():
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]

    for spec in (deep, [{1, 2}], {"trigger": object()}):
        with pytest.raises(InvalidTriggerError):
            Trigger.from_json({"kind": "any_of", "spec": spec})


def test_the_text_of_the_longest_trigger_is_read_back():
    dates = [date(2026, 1, 1) + timedelta(days=n) for n in range(366)]
    names = [f"{'c' * 98}-{n}" for n in range(5)]
    crons = [Cron(f"{n} 9-17,21 1-28 * *", timezone="America/Anchorage") for n in range(20)]
    trigger = AnyOf(*crons).excluding(*dates, calendar=names)

    assert len(trigger.spec) > 6_800
    assert len(str(trigger)) <= len(trigger.spec)
    assert Trigger.from_text(str(trigger)) == trigger
