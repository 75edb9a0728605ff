"""The dates of iCalendar files."""

from datetime import UTC, date, datetime, timedelta

import pytest

from celery_dynbeat.common.errors import InvalidScheduleError

pytest.importorskip("icalendar", reason="the extra ics is not installed")
from celery_dynbeat.api import ical

NOW = datetime(2026, 11, 21, 9, tzinfo=UTC)


def file_of(*events: str) -> str:
    bodies = "".join(
        f"BEGIN:VEVENT\nUID:{number}\n{event}\nEND:VEVENT\n" for number, event in enumerate(events)
    )
    text = f"BEGIN:VCALENDAR\nVERSION:2.0\nPRODID:x\n{bodies}END:VCALENDAR\n"
    return text.replace("\n", "\r\n")


def dates(*events: str, timezone: str | None = None, until: date = date(2028, 1, 1)) -> list[str]:
    found = ical.dates_of(file_of(*events), timezone=timezone, now=NOW)
    return [f"{day:%y-%m-%d}" for day in sorted(set(found)) if day < until]


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ("DTSTART;VALUE=DATE:20261225", ["26-12-25"]),
        ("DTSTART;VALUE=DATE:20261225\nDTEND;VALUE=DATE:20261227", ["26-12-25", "26-12-26"]),
        ("DTSTART;VALUE=DATE:20261225\nDURATION:P2D", ["26-12-25", "26-12-26"]),
        ("DTSTART:20261225T100000\nDTEND:20261225T110000", ["26-12-25"]),
        ("DTSTART:20261225T100000", ["26-12-25"]),
        ("DTSTART:20261225T220000\nDTEND:20261226T020000", ["26-12-25", "26-12-26"]),
        ("DTSTART:20261225T220000\nDTEND:20261226T000000", ["26-12-25"]),
        ("DTSTART;VALUE=DATE:20240101\nRRULE:FREQ=YEARLY", ["26-01-01", "27-01-01"]),
        ("DTSTART;VALUE=DATE:20261201\nRRULE:FREQ=WEEKLY;COUNT=2", ["26-12-01", "26-12-08"]),
        (
            "DTSTART;VALUE=DATE:20261201\nRRULE:FREQ=DAILY;UNTIL=20261203\nEXDATE:20261202T000000",
            ["26-12-01", "26-12-03"],
        ),
        ("DTSTART:20261201T100000Z\nRRULE:FREQ=DAILY;UNTIL=20261202T100000Z",
         ["26-12-01", "26-12-02"]),
        ("DTSTART;VALUE=DATE:20261225\nSTATUS:CANCELLED", []),
        ("DTSTART;VALUE=DATE:20200101", []),
        ("DTSTART;VALUE=DATE:20261201\nRDATE;VALUE=DATE:20261224", ["26-12-01", "26-12-24"]),
    ],
)  # fmt: skip
def test_an_event_has_these_dates(event, expected):
    assert dates(event) == expected


def test_an_event_at_a_time_of_day_has_the_date_of_the_zone():
    event = "DTSTART:20261225T230000Z"
    assert dates(event) == ["26-12-25"]
    assert dates(event, timezone="Asia/Seoul") == ["26-12-26"]
    assert dates("DTSTART;VALUE=DATE:20261225", timezone="Asia/Seoul") == ["26-12-25"]


def test_a_moved_occurrence_replaces_the_one_of_the_rule():
    rule = "UID:a\nDTSTART;VALUE=DATE:20261201\nRRULE:FREQ=DAILY;COUNT=3"
    moved = "UID:a\nRECURRENCE-ID;VALUE=DATE:20261202\nDTSTART;VALUE=DATE:20261210"
    text = "".join(f"BEGIN:VEVENT\n{each}\nEND:VEVENT\n" for each in (rule, moved))
    text = f"BEGIN:VCALENDAR\nVERSION:2.0\nPRODID:x\n{text}END:VCALENDAR\n".replace("\n", "\r\n")

    found = ical.dates_of(text.encode(), timezone=None, now=NOW)
    assert sorted(map(str, found)) == ["2026-12-01", "2026-12-03", "2026-12-10"]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (5, "must be the text"),
        ("", "no event"),
        ("hello", "iCalendar"),
        (file_of(), "no event"),
        (file_of("SUMMARY:x"), "no DTSTART"),
        (file_of("DTSTART:20261225T100000\nRRULE:FREQ=SECONDLY"), "repeats within a day"),
        (file_of("DTSTART:20261225T100000\nRRULE:FREQ=DAILY;BYSECOND=1,2"), "within a day"),
        (file_of("DTSTART;VALUE=DATE:20261225\nDTEND;VALUE=DATE:20290101"), "lasts"),
        (file_of(*["DTSTART;VALUE=DATE:20261225"] * 2_001), "at most 2,000 events"),
        ("x" * 1_000_001, "at most 1,000,000 bytes"),
        (file_of(*["DTSTART;VALUE=DATE:20200101\nRRULE:FREQ=DAILY"] * 9), "occurrences"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(text, rule):
    with pytest.raises(InvalidScheduleError, match=rule) as raised:
        list(ical.dates_of(text, timezone=None, now=NOW))
    assert raised.value.field == "ics"


def test_no_file_takes_longer_than_seconds():
    event = "DTSTART;VALUE=DATE:19000101\nRRULE:FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"
    started = datetime.now(UTC)
    with pytest.raises(InvalidScheduleError):
        list(ical.dates_of(file_of(*[event] * 200), timezone=None, now=NOW))
    assert datetime.now(UTC) - started < timedelta(seconds=20)


def test_many_versions_of_an_event_with_many_changes_are_refused():
    """Each of 1,000 versions would compare 1,000 changes with its own clock."""
    version = "DTSTART;TZID=Europe/Berlin:20261224T080000\nRRULE:FREQ=DAILY;COUNT=2"
    change = "RECURRENCE-ID;TZID=Europe/Berlin:{}T080000\nDTSTART:20261224T080000"
    days = [date(2024, 1, 1) + timedelta(days=number) for number in range(990)]
    events = [version] * 1_000 + [change.format(f"{day:%Y%m%d}") for day in days]
    bodies = "".join(f"BEGIN:VEVENT\nUID:a\n{event}\nEND:VEVENT\n" for event in events)
    with pytest.raises(InvalidScheduleError, match="too costly"):
        list(ical.dates_of(f"BEGIN:VCALENDAR\n{bodies}END:VCALENDAR\n", timezone=None, now=NOW))


def test_many_long_occurrences_are_refused():
    start = datetime(2026, 11, 21, tzinfo=UTC)
    times = [start + timedelta(seconds=number) for number in range(19_000)]
    periods = ",".join(f"{at:%Y%m%dT%H%M%S}Z/P365D" for at in times)
    with pytest.raises(InvalidScheduleError, match="too costly"):
        dates(f"DTSTART:20261121T000000Z\nRDATE;VALUE=PERIOD:{periods}")
