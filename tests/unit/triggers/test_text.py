"""Triggers convert to text and JSON and back. Any text is parsed or rejected."""

from datetime import UTC, datetime, timedelta

import pytest

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.triggers import (
    Cron,
    Every,
    Once,
    Trigger,
    parse_trigger,
)

NINE = datetime(2026, 11, 21, 9, tzinfo=UTC)


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


def test_equal_rules_are_parsed_once():
    first = parse_trigger("cron", "0 9 * * mon-fri", timezone="Asia/Seoul")

    assert parse_trigger("cron", "0 9 * * mon-fri", timezone="Asia/Seoul") is first


def test_a_class_reads_only_its_own_kind():
    assert Cron.from_text("0 9 * * *") == Cron("0 9 * * *")
    assert Every.from_json(Every(300).to_json()) == Every(300)
    with pytest.raises(InvalidTriggerError, match="of kind 'every', not Cron"):
        Cron.from_text("PT5M")
