"""How the events of iCalendar files repeat: examples of RFC 5545, and dateutil as an oracle."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import rrulestr
from hypothesis import given
from hypothesis import strategies as st

from celery_dynbeat.common.errors import InvalidScheduleError

pytest.importorskip("icalendar", reason="the extra ics is not installed")
from celery_dynbeat.api import ical

NOW = datetime(2026, 11, 21, 9, tzinfo=UTC)
BERLIN = "DTSTART;TZID=Europe/Berlin:20261201T003000"


def file_of(*events: str) -> str:
    bodies = "".join(f"BEGIN:VEVENT\n{event}\nEND:VEVENT\n" for event in events)
    text = f"BEGIN:VCALENDAR\nVERSION:2.0\nPRODID:x\n{bodies}END:VCALENDAR\n"
    return text.replace("\n", "\r\n")


def days(*events: str, timezone: str | None = None, now: datetime = NOW) -> list[date]:
    """Return the dates of events with the same UID."""
    text = file_of(*(f"UID:a\n{event}" for event in events))
    return sorted(set(ical.dates_of(text, timezone=timezone, now=now)))


def december(*events: str, timezone: str | None = None) -> list[int]:
    found = days(*events, timezone=timezone)
    return [day.day for day in found if (day.year, day.month) == (2026, 12)]


# RFC 5545, section 3.8.5.3. All of them are in New York.
@pytest.mark.parametrize(
    ("start", "rule", "expected"),
    [
        ("19970902", "FREQ=DAILY;COUNT=10", "97: 9/2-11"),
        ("19970902", "FREQ=DAILY;UNTIL=19971224T000000Z", "97: 9/2-30 10/1-31 11/1-30 12/1-23"),
        ("19970902", "FREQ=DAILY;INTERVAL=10;COUNT=5", "97: 9/2,12,22 10/2,12"),
        ("19970902", "FREQ=WEEKLY;COUNT=10", "97: 9/2,9,16,23,30 10/7,14,21,28 11/4"),
        (
            "19970902",
            "FREQ=WEEKLY;UNTIL=19971224T000000Z",
            "97: 9/2,9,16,23,30 10/7,14,21,28 11/4,11,18,25 12/2,9,16,23",
        ),
        (
            "19970901",
            "FREQ=WEEKLY;INTERVAL=2;UNTIL=19971224T000000Z;WKST=SU;BYDAY=MO,WE,FR",
            "97: 9/1,3,5,15,17,19,29 10/1,3,13,15,17,27,29,31 11/10,12,14,24,26,28 12/8,10,12,22",
        ),
        (
            "19970902",
            "FREQ=WEEKLY;INTERVAL=2;COUNT=8;WKST=SU;BYDAY=TU,TH",
            "97: 9/2,4,16,18,30 10/2,14,16",
        ),
        (
            "19970905",
            "FREQ=MONTHLY;COUNT=10;BYDAY=1FR",
            "97: 9/5 10/3 11/7 12/5 98: 1/2 2/6 3/6 4/3 5/1 6/5",
        ),
        (
            "19970905",
            "FREQ=MONTHLY;UNTIL=19971224T000000Z;BYDAY=1FR",
            "97: 9/5 10/3 11/7 12/5",
        ),
        (
            "19970922",
            "FREQ=MONTHLY;COUNT=6;BYDAY=-2MO",
            "97: 9/22 10/20 11/17 12/22 98: 1/19 2/16",
        ),
        (
            "19970902",
            "FREQ=MONTHLY;COUNT=10;BYMONTHDAY=2,15",
            "97: 9/2,15 10/2,15 11/2,15 12/2,15 98: 1/2,15",
        ),
        (
            "19970904",
            "FREQ=MONTHLY;COUNT=3;BYDAY=TU,WE,TH;BYSETPOS=3",
            "97: 9/4 10/7 11/6",
        ),
        ("19970805", "FREQ=WEEKLY;INTERVAL=2;COUNT=4;BYDAY=TU,SU;WKST=MO", "97: 8/5,10,19,24"),
        ("19970805", "FREQ=WEEKLY;INTERVAL=2;COUNT=4;BYDAY=TU,SU;WKST=SU", "97: 8/5,17,19,31"),
        (
            "20070115",
            "FREQ=MONTHLY;BYMONTHDAY=15,30;COUNT=5",
            "07: 1/15,30 2/15 3/15,30",
        ),
    ],
)
def test_the_examples_of_the_rfc(start, rule, expected):
    event = f"DTSTART;TZID=America/New_York:{start}T090000\nRRULE:{rule}"
    now = datetime.strptime(start, "%Y%m%d").replace(tzinfo=UTC)
    assert days(event, now=now) == list(read_dates(expected))


def read_dates(text):
    year = 0
    for word in text.split():
        if word.endswith(":"):
            year = 1900 + int(word[:2]) + (100 if int(word[:2]) < 50 else 0)
            continue
        month, _, listed = word.partition("/")
        for each in listed.split(","):
            first, _, last = each.partition("-")
            for day in range(int(first), int(last or first) + 1):
                yield date(year, int(month), day)


ZONES = st.sampled_from(["Europe/Berlin", "America/New_York", "Asia/Seoul", "Pacific/Auckland"])
RULES = st.sampled_from(
    [
        "FREQ=DAILY",
        "FREQ=DAILY;INTERVAL=3",
        "FREQ=WEEKLY;BYDAY=MO,FR",
        "FREQ=WEEKLY;INTERVAL=2;BYDAY=SU",
        "FREQ=MONTHLY;BYDAY=-1FR",
        "FREQ=MONTHLY;BYMONTHDAY=1,31",
    ]
)


@given(
    zone=ZONES,
    view=ZONES,
    minutes=st.integers(0, 330 * 24 * 60),
    rule=RULES,
    until=st.timedeltas(timedelta(), timedelta(days=300)),
    left_out=st.integers(0, 40),
)
def test_a_rule_repeats_in_its_zone_as_in_dateutil(zone, view, minutes, rule, until, left_out):
    home = ZoneInfo(zone)
    start = (NOW - timedelta(days=330) + timedelta(minutes=minutes)).replace(tzinfo=None)
    last = (start + until).replace(microsecond=0, tzinfo=home).astimezone(UTC)
    # dateutil searches in wall times, two days longer than the instant.
    end = start + until + timedelta(days=2)
    walls = {start, *rrulestr(rule, dtstart=start).between(start, end, inc=True)}
    kept = {wall.replace(tzinfo=home).astimezone(UTC): wall for wall in sorted(walls)}
    kept = {instant: wall for instant, wall in kept.items() if instant <= last}
    gone = list(kept)[left_out % len(kept)]
    del kept[gone]

    event = (
        f"DTSTART;TZID={zone}:{start:%Y%m%dT%H%M%S}\nRRULE:{rule};UNTIL={last:%Y%m%dT%H%M%SZ}"
        f"\nEXDATE:{gone:%Y%m%dT%H%M%SZ}"
    )
    assert days(event) == sorted({wall.date() for wall in kept.values()})
    viewed = {instant.astimezone(ZoneInfo(view)).date() for instant in kept}
    assert days(event, timezone=view) == sorted(viewed)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # 2 December, 00:30 in Berlin.
        ("RRULE:FREQ=DAILY;UNTIL=20261201T233000Z", [1, 2]),
        ("RRULE:FREQ=DAILY;UNTIL=20261201T232959Z", [1]),
        ("RRULE:FREQ=DAILY;UNTIL=20261203", [1, 2, 3]),
        ("RRULE:FREQ=DAILY;UNTIL=20261203T000000", [1, 2]),
        ("RRULE:FREQ=DAILY;COUNT=3\nEXDATE:20261201T233000Z", [1, 3]),
        ("RRULE:FREQ=DAILY;COUNT=3\nEXDATE;TZID=Asia/Seoul:20261202T083000", [1, 3]),
        ("RRULE:FREQ=DAILY;COUNT=3\nEXDATE;VALUE=DATE:20261202", [1, 3]),
        ("RRULE:FREQ=DAILY;COUNT=3\nEXDATE:20261202T003000", [1, 3]),
        ("RRULE:FREQ=DAILY;COUNT=3\nEXDATE:20261202T003000Z", [1, 2, 3]),
        ("RDATE:20261204T233000Z", [1, 5]),
        ("RDATE;VALUE=DATE:20261205", [1, 5]),
        ("DURATION:PT1H\nRDATE;VALUE=PERIOD:20261205T100000Z/P2D", [1, 5, 6, 7]),
        ("RDATE;VALUE=PERIOD:20261205T100000Z/20261206T100000Z", [1, 5, 6]),
        ("RRULE:FREQ=DAILY;COUNT=2\nRRULE:FREQ=WEEKLY;COUNT=2", [1, 2, 8]),
        # What other programs write.
        ("RRULE:", [1]),
        ("RRULE:FREQ=DAILY;COUNT=-1;UNTIL=20261203", [1, 2, 3]),
        ("RRULE:FREQ=DAILY;UNTIL=20261101", []),
        ("RRULE:FREQ=WEEKLY;UNTIL=99991231T235959Z", [1, 8, 15, 22, 29]),
    ],
)
def test_times_in_other_zones_mean_instants(lines, expected):
    assert december(f"{BERLIN}\n{lines}") == expected


def test_a_rule_repeats_in_its_zone_before_another_zone_is_used():
    """Tuesdays at 00:30 in Berlin are Mondays in New York."""
    event = f"{BERLIN}\nRRULE:FREQ=WEEKLY;BYDAY=TU;COUNT=3"
    assert december(event) == [1, 8, 15]
    assert december(event, timezone="America/New_York") == [7, 14]
    assert days(event, timezone="America/New_York")[0] == date(2026, 11, 30)


def test_a_clock_change_makes_no_event_longer():
    """Otherwise, 24 hours from the midnight before the change would end at 01:00."""
    event = "DTSTART;TZID=Europe/Berlin:20270321T000000\nDURATION:PT24H\nRRULE:FREQ=WEEKLY;COUNT=3"
    assert days(event) == [date(2027, 3, 21), date(2027, 3, 28), date(2027, 4, 4)]


@pytest.mark.parametrize(
    "replaced",
    [
        ";TZID=Europe/Berlin:20261202T003000",
        ":20261201T233000Z",
        ":20261202T003000",
        ";VALUE=DATE:20261202",
        ";TZID=Asia/Seoul:20261202T083000",
    ],
)
def test_an_event_replaces_the_occurrence_at_an_instant(replaced):
    rule = f"{BERLIN}\nRRULE:FREQ=DAILY;COUNT=3"
    moved = f"RECURRENCE-ID{replaced}\nDTSTART;TZID=Europe/Berlin:20261210T090000"
    assert december(rule, moved) == [1, 3, 10]
    assert december(rule, f"{moved}\nRRULE:FREQ=DAILY;COUNT=3") == [1, 3, 10]
    assert december(rule, f"{moved}\nSTATUS:CANCELLED") == [1, 3]
    assert december(f"{rule}\nEXDATE:20261201T233000Z", moved) == [1, 3]
    assert december(f"{rule}\nSTATUS:CANCELLED", moved) == [10]


def test_the_higher_sequence_counts():
    old = "DTSTART;VALUE=DATE:20261201\nSEQUENCE:1"
    new = "DTSTART;VALUE=DATE:20261203\nSEQUENCE:2"
    assert december(old, new) == december(new, old) == [3]
    assert december(old, "DTSTART;VALUE=DATE:20261205\nSEQUENCE:1") == [1, 5]


@pytest.mark.parametrize(
    "replaced", [";TZID=Europe/Berlin:20261202T003000", ":20261202T003000", ";VALUE=DATE:20261202"]
)
def test_the_higher_sequence_counts_for_each_form_of_a_replaced_time(replaced):
    rule = f"{BERLIN}\nRRULE:FREQ=DAILY;COUNT=3"
    old = f"RECURRENCE-ID{replaced}\nDTSTART;VALUE=DATE:20261210\nSEQUENCE:1"
    new = "RECURRENCE-ID:20261201T233000Z\nDTSTART;VALUE=DATE:20261212\nSEQUENCE:2"
    assert december(rule, old, new) == december(new, old, rule) == [1, 3, 12]


def test_a_cancelled_event_cancels_its_older_replacements():
    cancelled = f"{BERLIN}\nRRULE:FREQ=DAILY;COUNT=3\nSTATUS:CANCELLED\nSEQUENCE:2"
    moved = "RECURRENCE-ID:20261201T233000Z\nDTSTART;VALUE=DATE:20261210"
    assert december(cancelled, moved) == december(cancelled, f"{moved}\nSEQUENCE:1") == []
    assert december(cancelled, f"{moved}\nSEQUENCE:2") == [10]


def test_events_without_a_uid_are_separate():
    events = [f"DTSTART;VALUE=DATE:2026120{day}" for day in (1, 2)]
    found = ical.dates_of(file_of(*events), timezone=None, now=NOW)
    assert [day.day for day in found] == [1, 2]


@pytest.mark.parametrize(
    ("event", "rule"),
    [
        (
            "UID:x1\nDTSTART;VALUE=DATE:20261202\nRECURRENCE-ID;RANGE=THISANDFUTURE:20261202",
            "event 'x1' changes all later occurrences",
        ),
        (
            "SUMMARY:Party\nDTSTART;VALUE=DATE:20261202\nRECURRENCE-ID;VALUE=DATE:20261202",
            "event 'Party' has RECURRENCE-ID without UID",
        ),
        ("UID:x1\nDTSTART;VALUE=DATE:20261202\nEXRULE:FREQ=DAILY", "event 'x1' has EXRULE"),
        ("UID:x1\nDTSTART;VALUE=DATE:20261202\nDTEND:2026", "event 'x1' has DTEND that cannot"),
        ("UID:x1\nDTSTART;VALUE=DATE:20261202\nEXDATE:2026", "event 'x1' has EXDATE that cannot"),
        ("UID:x1\nDTSTART;VALUE=DATE:20261202\nRRULE:FREQ=X", "event 'x1' has RRULE that cannot"),
        ("UID:x1\nDTSTART;VALUE=DATE:20261202\nRRULE:FREQ=DAILY;COUNT=9999", "1000"),
        ("UID:x1\nDTSTART;VALUE=DATE:20261202\nDTEND 20261209", "has a line that cannot"),
        ("UID:x1\nDTSTART;VALUE=DATE:20261202\nDTEND;VALUE=DATE;:20261209", "a line that cannot"),
        ("UID:x1\nDTSTART:20261202T080000\nDTSTART:20261209T080000", "has DTSTART more"),
        ("DTSTART:20261202T080000\nDTEND:20261203T080000\nDTEND:20261204T080000", "DTEND more"),
        ("DTSTART:20261202T080000\nDURATION:P2D\nDURATION:P3D", "has DURATION more than once"),
        ("DTSTART:20261202T080000\nSTATUS:CANCELLED\nSTATUS:CONFIRMED", "has STATUS more than"),
        ("DTSTART;TZID=Foo/Bar:20261202T080000", "in the unknown zone 'Foo/Bar'"),
        ("DTSTART:20261202T080000Z\nDTEND;TZID=Foo/Bar:20261202T080000", "in the unknown zone"),
        ("DTSTART:20261202T080000Z\nRDATE;TZID=Foo/Bar:20261203T080000", "in the unknown zone"),
        (
            "DTSTART:20261202T080000Z\nRDATE;VALUE=PERIOD;TZID=Foo/Bar:20261203T080000/P1D",
            "in the unknown zone",
        ),
        ("DTSTART:20261202T080000Z\nEXDATE;TZID=Foo/Bar:20261202T080000", "in the unknown zone"),
    ],
)
def test_an_event_that_would_have_wrong_days_is_refused(event, rule):
    with pytest.raises(InvalidScheduleError, match=rule) as raised:
        list(ical.dates_of(file_of(event), timezone=None, now=NOW))
    assert raised.value.field == "ics"


def test_other_malformed_properties_are_ignored():
    assert december("DTSTART;VALUE=DATE:20261201\nGEO:x\nPRIORITY:y") == [1]
