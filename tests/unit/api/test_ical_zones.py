"""The clocks that iCalendar files describe with VTIMEZONE components."""

from datetime import UTC, date, datetime

import pytest

from celery_dynbeat.common.errors import InvalidScheduleError

pytest.importorskip("icalendar", reason="the extra ics is not installed")
from celery_dynbeat.api import ical

NOW = datetime(2026, 11, 21, 9, tzinfo=UTC)
DAILY = "DTSTART;TZID={zone}:20261121T003000\nRRULE:FREQ=DAILY;COUNT=300"
LAST_SUNDAY = "RRULE:FREQ=YEARLY;BYMONTH={month};BYDAY=-1SU"


def observance(kind: str, rule: str, *, since: str) -> str:
    month, before, after = (3, "+0100", "+0200") if kind == "DAYLIGHT" else (10, "+0200", "+0100")
    offsets = f"TZOFFSETFROM:{before}\nTZOFFSETTO:{after}"
    return f"BEGIN:{kind}\nDTSTART:{since}\n{offsets}\n{rule.format(month=month)}\nEND:{kind}\n"


def dates(name: str, rule: str, *, since: str, count: int = 1, event: str = DAILY) -> list[date]:
    """Return the dates in UTC of an event in a zone like Berlin. The parser keeps each name."""
    clock = observance("STANDARD", rule, since=since) + observance("DAYLIGHT", rule, since=since)
    zone = f"BEGIN:VTIMEZONE\nTZID:{name}\n{clock * count}END:VTIMEZONE\n"
    body = f"BEGIN:VEVENT\nUID:a\n{event.format(zone=name)}\nEND:VEVENT\n"
    text = f"BEGIN:VCALENDAR\n{zone}{body}END:VCALENDAR\n".replace("\n", "\r\n")
    return list(ical.dates_of(text, timezone="UTC", now=NOW))


@pytest.mark.parametrize(
    ("since", "rule"),
    [
        # Some programs begin each zone in the year 1 or 1601.
        ("00010101T020000", LAST_SUNDAY),
        ("16010101T020000", f"{LAST_SUNDAY};INTERVAL=1;WKST=SU"),
        ("19701025T020000", f"{LAST_SUNDAY};UNTIL=20351231T000000Z"),
        (
            "19701025T020000",
            "RRULE:FREQ=YEARLY;BYDAY=SU;BYMONTH={month};BYMONTHDAY=25,26,27,28,29,30,31",
        ),
    ],
)
def test_the_clock_of_a_file_changes_each_year(since, rule):
    found = dates(f"{since}/{len(rule)}", rule, since=since)
    # 00:30 is 23:30 in UTC, or 22:30.
    assert len(found) == 300
    assert found[0] == date(2026, 11, 20)


def test_an_old_clock_leaves_enough_steps_for_ten_years():
    event = "DTSTART;TZID={zone}:20261121T003000\nRRULE:FREQ=DAILY"
    assert len(dates("Ten", LAST_SUNDAY, since="16010101T000000", event=event)) > 3_600


@pytest.mark.parametrize(
    "rule",
    [
        "RRULE:FREQ=SECONDLY",
        "RRULE:FREQ=DAILY",
        "rrule;x=y:freq=secondly",
        "RRULE:FREQ=YEARLY;FREQ=HOURLY",
        "RRULE:FREQ=YEARLY;BYSECOND=1,2,3",
        "RRULE:FREQ=YEARLY;BYDAY=SU",
        "RRULE:FREQ=YEARLY;BYMONTHDAY=1",
        "RRULE:FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30",
        "RRULE:FREQ=YEARLY;BYMONTH=1,2,3,4",
        "RRULE:FREQ=YEARLY;INTERVAL=9999",
        "RRULE:COUNT=3",
        "EXRULE:FREQ=SECONDLY",
        "X-A:b\r\n\nRRUL\n E:FREQ=SECONDLY",
    ],
)
def test_a_clock_that_changes_otherwise_is_refused(rule):
    with pytest.raises(InvalidScheduleError, match="VTIMEZONE with the rule") as raised:
        dates("Hostile", rule, since="00010101T000000")
    assert raised.value.field == "ics"


@pytest.mark.parametrize(
    ("rule", "count"),
    [("RDATE:" + ",".join(["20260101T000000"] * 10_001), 1), (LAST_SUNDAY, 10)],
)
def test_too_many_changes_are_refused(rule, count):
    with pytest.raises(InvalidScheduleError, match="more than 20,000 changes"):
        dates("Hostile", rule, since="00010101T000000", count=count)


def test_many_occurrences_on_an_old_clock_are_refused():
    event = "DTSTART;TZID={zone}:20261121T003000\nRRULE:FREQ=DAILY"
    with pytest.raises(InvalidScheduleError, match="too costly"):
        dates("Old", LAST_SUNDAY, since="00010101T000000", count=2, event=event)


@pytest.mark.parametrize(
    "line",
    ["RDATE", "EXDATE", "DTEND"],
)
def test_a_time_after_the_counted_changes_is_refused(line):
    event = f"DTSTART:20261121T003000Z\n{line};TZID={{zone}}:90000101T000000"
    with pytest.raises(InvalidScheduleError, match="after the year 2100"):
        dates("Late", LAST_SUNDAY, since="16010101T000000", event=event)
