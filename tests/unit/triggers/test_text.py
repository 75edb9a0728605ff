"""Triggers convert to text and JSON and back. Any text is parsed or rejected."""

import copy
import json
import pickle
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.triggers import (
    Cron,
    Every,
    Once,
    RRule,
    Trigger,
    parse_trigger,
)
from tests.unit.triggers import expressions

NINE = datetime(2026, 11, 21, 9, tzinfo=UTC)
BUDGET_SECONDS = 0.05
UTCS = st.just(UTC)
instants = st.datetimes(timezones=UTCS)
zones = st.sampled_from([None, "UTC", "Asia/Seoul", "America/Argentina/Buenos_Aires", "Etc/GMT+5"])
# Fixed dates, because some combinations of date fields do not exist.
crons = st.builds(
    lambda times, second, zone, day_or: Cron(
        f"{times} 1-9 * fri{second}", timezone=zone, day_or=day_or
    ),
    expressions.times(),
    st.one_of(st.just(""), expressions.fields(0, 59).map(" {}".format)),
    zones,
    st.booleans(),
)
everys = st.builds(
    lambda interval, anchor: Every(interval, anchor=anchor),
    st.timedeltas(timedelta(microseconds=1), timedelta(days=36525)),
    st.one_of(st.none(), instants),
)
calendars = st.builds(
    lambda unit, count, anchor, zone: Every(**{unit: count}, anchor=anchor, timezone=zone),
    st.sampled_from(["days", "weeks", "months", "years"]),
    st.integers(1, 100),
    st.one_of(st.none(), st.datetimes(datetime(1901, 1, 1), datetime(9000, 1, 1), timezones=UTCS)),  # noqa: DTZ001 - made aware
    zones,
)
# Up to the last year of fire times.
one_offs = st.builds(Once, st.datetimes(max_value=datetime(9899, 12, 31), timezones=UTCS))  # noqa: DTZ001 - made aware
triggers = st.one_of(crons, everys, calendars, one_offs)


@given(triggers)
def test_a_trigger_survives_its_text(trigger):
    assert len(trigger.spec) <= 255
    assert parse_trigger(trigger.kind, trigger.spec, timezone=trigger.timezone) == trigger


@given(triggers)
def test_a_trigger_survives_json_pickle_and_copy(trigger):
    twins = [
        Trigger.from_json(json.loads(json.dumps(trigger.to_json()))),
        pickle.loads(pickle.dumps(trigger)),  # noqa: S301 - our own bytes
        copy.deepcopy(trigger),
    ]

    assert twins == [trigger] * 3
    assert {hash(twin) for twin in twins} == {hash(trigger)}


@pytest.mark.parametrize(
    ("trigger", "kind", "spec"),
    [
        (Cron("0 9 * * MON-FRI"), "cron", "0 9 * * mon-fri"),
        (Cron("0 9 1 * fri", day_or=False), "cron", "0 9 1 * fri day_and"),
        (Cron("@daily"), "cron", "0 0 * * *"),
        (Every(300), "every", "PT5M"),
        (Every(5400.25), "every", "PT1H30M0.25S"),
        (Every(timedelta(days=1)), "every", "PT24H"),
        (Every(timedelta(hours=36, minutes=30)), "every", "PT36H30M"),
        (Every(timedelta(weeks=2, seconds=1)), "every", "PT336H1S"),
        (Every(days=3), "every", "P3D"),
        (Every(weeks=2, timezone="Asia/Seoul"), "every", "P2W"),
        (Every(months=1), "every", "P1M"),
        (Every(years=1, anchor=NINE), "every", "R/2026-11-21T09:00:00Z/P1Y"),
        (Every(300, anchor=NINE), "every", "R/2026-11-21T09:00:00Z/PT5M"),
        (Once(NINE), "once", "2026-11-21T09:00:00Z"),
        (Once(NINE.replace(microsecond=5)), "once", "2026-11-21T09:00:00.000005Z"),
        (Once.after(timedelta(hours=40)), "once", "PT40H"),
        (Once.after(0), "once", "PT0S"),
    ],
)
def test_the_spec_is_the_usual_text(trigger, kind, spec):
    assert (trigger.kind, trigger.spec) == (kind, spec)


@pytest.mark.parametrize(
    ("kind", "spec", "expected"),
    [
        (" CRON ", "  0  9 * * Mon-Fri ", Cron("0 9 * * mon-fri")),
        ("cron", "0\u00a09 * * *", Cron("0 9 * * *")),
        ("cron", "@Weekly", Cron("0 0 * * 0")),
        ("cron", "0 9 1 * fri DAY_AND", Cron("0 9 1 * fri", day_or=False)),
        ("every", "pt5m", Every(300)),
        ("every", " PT 1H 30M ", Every(5400)),
        ("every", "P1W", Every(weeks=1)),
        ("every", " p 3 d ", Every(days=3)),
        ("every", "P1M", Every(months=1)),
        ("every", "PT1M", Every(60)),
        ("every", "r/2026-11-21 09:00z/p12m", Every(months=12, anchor=NINE)),
        # With a time part, a day is 24 hours.
        ("every", "P1DT12H", Every(timedelta(hours=36))),
        ("every", "P1DT0.5S", Every(86400.5)),
        ("every", "P1W1DT0S", Every(timedelta(days=8))),
        ("every", "r/2026-11-21 18:00+09:00/pt5m", Every(300, anchor=NINE)),
        ("once", "2026-11-21t09:00z", Once(NINE)),
        ("once", "2026-11-21 09:00:00 +00:00", Once(NINE)),
        ("once", "2026-11-21T18:00:00.5+0900", Once(NINE.replace(microsecond=500_000))),
        ("once", " pt40h", Once.after(timedelta(hours=40))),
    ],
)
def test_handwritten_text_is_parsed(kind, spec, expected):
    assert parse_trigger(kind, spec) == expected


@pytest.mark.parametrize(
    ("kind", "spec", "field", "reason"),
    [
        ("crom", "0 9 * * *", "kind", "did you mean 'cron'"),
        ("", "0 9 * * *", "kind", "known are cron, every, once"),
        (None, "0 9 * * *", "kind", "must be text"),
        ("cron", None, "spec", "must be text"),
        ("cron", " " * 256, "spec", "at most 255"),
        ("cron", "day_and", None, "0 fields"),
        ("every", "P1M2D", "interval", "P30D"),
        ("every", "P1Y2W", "interval", "P30D"),
        ("every", "P1Y6M", "interval", "write P18M"),
        ("every", "P1W2D", "interval", "write P9D"),
        ("every", "P1MT5M", "interval", "PT720H"),
        ("every", "P1Y2M3DT4H", "interval", "differ in length"),
        ("every", "P0D", "interval", "from 1 to"),
        ("every", "300", "interval", "ISO 8601"),
        ("every", "5 minutes", "interval", "ISO 8601"),
        ("every", "P", "interval", "ISO 8601"),
        ("every", "PT", "interval", "ISO 8601"),
        ("every", "P1DT", "interval", "ISO 8601"),
        ("every", "PT-5M", "interval", "ISO 8601"),
        ("every", "PT5M1H", "interval", "ISO 8601"),
        ("every", "PT0S", "interval", "positive"),
        ("every", "P999999999D", "interval", "100 years"),
        ("every", "P999999999W", "interval", "100 years"),
        ("every", "P1201M", "interval", "100 years"),
        ("every", "P101Y", "interval", "100 years"),
        ("every", "P999999999DT1S", "interval", "100 years"),
        ("every", "R/1899-12-31T00:00:00Z/P1D", "anchor", "1900 to 9900"),
        ("every", "R5/2026-11-21T09:00:00Z/PT5M", "interval", "max_runs"),
        ("every", "R/tomorrow/PT5M", "anchor", "2026-11-21T09:00:00Z"),
        ("every", "R/2026-11-21T09:00:00/PT5M", "anchor", "add Z"),
        ("once", "2026-11-21T09:00:00", "at", "add Z"),
        ("once", "2026-11-21", "at", "add Z"),
        ("once", "2026-02-30T09:00:00Z", "at", "day"),
        ("once", "2026-11-21T25:00:00Z", "at", "one such as 2026-11-21T09:00:00Z"),
        ("once", "2026-11-21T09:00:00.1234567Z", "at", "must look like"),
        ("once", "0001-01-01T00:00:00+14:00", "at", "years 1 to 9999"),
        ("once", "tomorrow", "at", "must look like"),
        ("once", "P1D", "at", "PT24H"),
    ],
)
def test_invalid_text_is_rejected_with_its_field_and_the_reason(kind, spec, field, reason):
    with pytest.raises(InvalidTriggerError, match=reason) as refusal:
        parse_trigger(kind, spec)

    assert refusal.value.field == field


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" 0 9 * * mon-fri", Cron("0 9 * * mon-fri")),
        ("0 9 1 * fri day_and", Cron("0 9 1 * fri", day_or=False)),
        ("@Daily", Cron("@daily")),
        ("\ufeff@daily", Cron("@daily")),
        ("H H * * *", Cron("H H * * *")),
        ("PT5M", Every(300)),
        (" p1d", Every(days=1)),
        ("R/2026-11-21T09:00:00Z/P1M", Every(months=1, anchor=NINE)),
        ("2026-11-21 18:00+09:00", Once(NINE)),
        ("FREQ=WEEKLY;BYDAY=MO", RRule("FREQ=WEEKLY;BYDAY=MO")),
        ("interval=2;freq=daily", RRule("FREQ=DAILY;INTERVAL=2")),
        ("RRULE:FREQ=DAILY", RRule("FREQ=DAILY")),
        ("DTSTART:20261121T090000Z\nRRULE:FREQ=DAILY",
         RRule("DTSTART:20261121T090000Z\nRRULE:FREQ=DAILY")),
    ],
)  # fmt: skip
def test_the_beginning_of_a_text_selects_the_kind(text, expected):
    assert Trigger.from_text(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("every 5 minutes", "3 fields.*; or write a duration"),
        ("@monthy", "unknown name '@monthy'; known are [@a-z, ]*$"),
        ("0 25 * * *", "is not a number from 0 to 23$"),
        ("", "0 fields"),
        ("2026-11-21 09:00", "add Z"),
        ("P5", "ISO 8601"),
        ("EXRULE:FREQ=DAILY", "EXRULE"),
        ("x" * 300, "at most 255"),
        (5, "must be text"),
    ],
)
def test_a_text_that_is_not_a_trigger_is_rejected_with_the_reason(text, reason):
    with pytest.raises(InvalidTriggerError, match=reason):
        Trigger.from_text(text)


@pytest.mark.parametrize("text", ["", " \n", "CRON_TZ=UTC "])
def test_a_text_without_a_rule_is_rejected_as_a_missing_trigger(text):
    with pytest.raises(InvalidTriggerError) as refusal:
        Trigger.from_text(text)

    assert (refusal.value.field, refusal.value.code) == ("trigger", "required")


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"kind": "cron"}, "spec"),
        ({"spec": "PT5M"}, "kind"),
        ({"kind": "every", "spec": 300}, "spec"),
        ({"kind": "cron", "spec": "0 9 * * *", "timezone": 9}, "timezone"),
        ({"kind": "cron", "spec": "0 9 * * *", "tz": "UTC"}, "tz"),
    ],
)
def test_invalid_json_is_rejected_with_the_key(data, field):
    with pytest.raises(InvalidTriggerError) as refusal:
        Trigger.from_json(data)

    assert refusal.value.field == field


def test_only_rules_of_the_wall_clock_use_the_zone():
    assert parse_trigger("every", "PT5M", timezone="Asia/Seoul") == Every(300)
    assert Every(300).in_zone("Asia/Seoul") == Every(300)
    assert Once(NINE).anchored_at(NINE) == Once(NINE)


def test_a_calendar_interval_takes_the_zone_of_its_row():
    assert parse_trigger("every", "P1M", timezone="Asia/Seoul") == Every(
        months=1, timezone="Asia/Seoul"
    )


@pytest.mark.parametrize(("spec", "elapsed"), [("P1D", 1), ("P14D", 14), ("P2W", 14)])
def test_days_in_text_equal_24_hours_in_utc(spec, elapsed):
    row = parse_trigger("every", spec, timezone="UTC").anchored_at(NINE)
    fire_time = NINE

    for count in range(1, 200):
        fire_time = row.next_after(fire_time)
        assert fire_time == NINE + count * timedelta(days=elapsed)


def test_equal_rules_are_parsed_once():
    first = parse_trigger("cron", "0 9 * * mon-fri", timezone="Asia/Seoul")

    assert parse_trigger("cron", "0 9 * * mon-fri", timezone="Asia/Seoul") is first


noise = st.one_of(
    st.text(max_size=300),
    st.text("0123456789*/,-#lwhr? @day_nmonPTMSZ:.+R", max_size=300),
    st.lists(st.text("0123456789*/,-#l", min_size=1, max_size=9), min_size=5, max_size=6).map(
        " ".join
    ),
    st.tuples(expressions.times(), expressions.dates()).map(" ".join),
    # Durations, with or without an anchor.
    st.from_regex(
        r"(R/[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}Z/)?P([0-9]{1,10}[WDYMS]|T){1,4}"
    ),
    st.from_regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2})?(Z|[+-][0-9]{4})"),
)


@pytest.mark.no_cover
@settings(max_examples=400)
@given(
    kind=st.one_of(st.sampled_from(["cron", "every", "once"]), st.text(max_size=300)),
    spec=noise,
    zone=st.one_of(st.just("Asia/Seoul"), st.none(), st.text(max_size=300)),
)
def test_any_text_is_parsed_or_rejected_quickly(kind, spec, zone):
    attempts = (seconds_to_read(kind, spec, zone) for _ in range(3))

    # The first attempts may include reading the list of zones, or a garbage collection.
    assert any(seconds < BUDGET_SECONDS for seconds in attempts)


def seconds_to_read(kind: str, spec: str, zone: str | None) -> float:
    started = time.thread_time()
    try:
        trigger = parse_trigger(kind, spec, timezone=zone)
    except InvalidTriggerError:
        pass
    else:
        trigger.next_after(NINE)
        assert trigger.describe()
    return time.thread_time() - started


def test_a_class_reads_only_its_own_kind():
    assert Cron.from_text("0 9 * * *") == Cron("0 9 * * *")
    assert Every.from_json(Every(300).to_json()) == Every(300)
    with pytest.raises(InvalidTriggerError, match="of kind 'every', not Cron"):
        Cron.from_text("PT5M")
