"""The published examples of RFC 5545, section 3.8.5.3, "Recurrence Rule".

Each begins at 9:00 in New York. The expected dates are those that the RFC prints after "==>", in
its order.
"""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from celery_dynbeat.triggers import RRule

NEW_YORK = ZoneInfo("America/New_York")
START = "19970902T090000"
LONG_AGO = datetime(1990, 1, 1, tzinfo=UTC)


def days(text, *, year=1997):
    """Parse ``1997 9: 2 4; 10: 7`` as 9:00 on these days."""
    dates = []
    for part in text.split(";"):
        month, _, numbers = part.strip().rpartition(":")
        *given, month = month.split()
        year = int(given[0]) if given else year
        dates += [datetime(year, int(month), int(day), 9) for day in numbers.split()]  # noqa: DTZ001
    return dates


def times(text, day=2):
    """Parse ``09:00 12:00`` as times of a day in September 1997."""
    clock = [datetime.strptime(time, "%H:%M") for time in text.split()]  # noqa: DTZ007
    return [time.replace(year=1997, month=9, day=day) for time in clock]


def run(first, last):
    return " ".join(map(str, range(first, last + 1)))


EVERY_JANUARY = "; ".join(f"{year} 1: {run(1, 31)}" for year in (1998, 1999, 2000))
EVERY_20_MINUTES = "09:00 09:20 09:40 10:00 10:20 10:40 11:00 11:20 11:40"
# (DTSTART, RRULE, expected dates, whether the list is complete)
EXAMPLES = [
    (START, "FREQ=DAILY;COUNT=10", days(f"9: {run(2, 11)}"), True),
    (
        START,
        "FREQ=DAILY;UNTIL=19971224T000000Z",
        days(f"9: {run(2, 30)}; 10: {run(1, 31)}; 11: {run(1, 30)}; 12: {run(1, 23)}"),
        True,
    ),
    (START, "FREQ=DAILY;INTERVAL=2", days("9: 2 4 6 8 10 12 14 16 18 20 22 24 26 28 30"), False),
    (START, "FREQ=DAILY;INTERVAL=10;COUNT=5", days("9: 2 12 22; 10: 2 12"), True),
    (
        "19980101T090000",
        "FREQ=YEARLY;UNTIL=20000131T140000Z;BYMONTH=1;BYDAY=SU,MO,TU,WE,TH,FR,SA",
        days(EVERY_JANUARY),
        True,
    ),
    ("19980101T090000", "FREQ=DAILY;UNTIL=20000131T140000Z;BYMONTH=1", days(EVERY_JANUARY), True),
    (
        START,
        "FREQ=WEEKLY;COUNT=10",
        days("9: 2 9 16 23 30; 10: 7 14 21 28; 11: 4"),
        True,
    ),
    (
        START,
        "FREQ=WEEKLY;UNTIL=19971224T000000Z",
        days("9: 2 9 16 23 30; 10: 7 14 21 28; 11: 4 11 18 25; 12: 2 9 16 23"),
        True,
    ),
    (
        START,
        "FREQ=WEEKLY;INTERVAL=2;WKST=SU",
        days("9: 2 16 30; 10: 14 28; 11: 11 25; 12: 9 23; 1998 1: 6 20; 2: 3 17"),
        False,
    ),
    (
        START,
        "FREQ=WEEKLY;UNTIL=19971007T000000Z;WKST=SU;BYDAY=TU,TH",
        days("9: 2 4 9 11 16 18 23 25 30; 10: 2"),
        True,
    ),
    (
        START,
        "FREQ=WEEKLY;COUNT=10;WKST=SU;BYDAY=TU,TH",
        days("9: 2 4 9 11 16 18 23 25 30; 10: 2"),
        True,
    ),
    (
        "19970901T090000",
        "FREQ=WEEKLY;INTERVAL=2;UNTIL=19971224T000000Z;WKST=SU;BYDAY=MO,WE,FR",
        days(
            "9: 1 3 5 15 17 19 29; 10: 1 3 13 15 17 27 29 31; 11: 10 12 14 24 26 28; 12: 8 10 12 22"
        ),
        True,
    ),
    (
        START,
        "FREQ=WEEKLY;INTERVAL=2;COUNT=8;WKST=SU;BYDAY=TU,TH",
        days("9: 2 4 16 18 30; 10: 2 14 16"),
        True,
    ),
    (
        "19970905T090000",
        "FREQ=MONTHLY;COUNT=10;BYDAY=1FR",
        days("9: 5; 10: 3; 11: 7; 12: 5; 1998 1: 2; 2: 6; 3: 6; 4: 3; 5: 1; 6: 5"),
        True,
    ),
    (
        "19970905T090000",
        "FREQ=MONTHLY;UNTIL=19971224T000000Z;BYDAY=1FR",
        days("9: 5; 10: 3; 11: 7; 12: 5"),
        True,
    ),
    (
        "19970907T090000",
        "FREQ=MONTHLY;INTERVAL=2;COUNT=10;BYDAY=1SU,-1SU",
        days("9: 7 28; 11: 2 30; 1998 1: 4 25; 3: 1 29; 5: 3 31"),
        True,
    ),
    (
        "19970922T090000",
        "FREQ=MONTHLY;COUNT=6;BYDAY=-2MO",
        days("9: 22; 10: 20; 11: 17; 12: 22; 1998 1: 19; 2: 16"),
        True,
    ),
    (
        "19970928T090000",
        "FREQ=MONTHLY;BYMONTHDAY=-3",
        days("9: 28; 10: 29; 11: 28; 12: 29; 1998 1: 29; 2: 26"),
        False,
    ),
    (
        START,
        "FREQ=MONTHLY;COUNT=10;BYMONTHDAY=2,15",
        days("9: 2 15; 10: 2 15; 11: 2 15; 12: 2 15; 1998 1: 2 15"),
        True,
    ),
    (
        "19970930T090000",
        "FREQ=MONTHLY;COUNT=10;BYMONTHDAY=1,-1",
        days("9: 30; 10: 1 31; 11: 1 30; 12: 1 31; 1998 1: 1 31; 2: 1"),
        True,
    ),
    (
        "19970910T090000",
        "FREQ=MONTHLY;INTERVAL=18;COUNT=10;BYMONTHDAY=10,11,12,13,14,15",
        days("9: 10 11 12 13 14 15; 1999 3: 10 11 12 13"),
        True,
    ),
    (
        START,
        "FREQ=MONTHLY;INTERVAL=2;BYDAY=TU",
        days("9: 2 9 16 23 30; 11: 4 11 18 25; 1998 1: 6 13 20 27; 3: 3 10 17 24 31"),
        False,
    ),
    (
        "19970610T090000",
        "FREQ=YEARLY;COUNT=10;BYMONTH=6,7",
        days(
            "6: 10; 7: 10; 1998 6: 10; 7: 10; 1999 6: 10; 7: 10; 2000 6: 10; 7: 10;"
            "2001 6: 10; 7: 10"
        ),
        True,
    ),
    (
        "19970310T090000",
        "FREQ=YEARLY;INTERVAL=2;COUNT=10;BYMONTH=1,2,3",
        days("3: 10; 1999 1: 10; 2: 10; 3: 10; 2001 1: 10; 2: 10; 3: 10; 2003 1: 10; 2: 10; 3: 10"),
        True,
    ),
    (
        "19970101T090000",
        "FREQ=YEARLY;INTERVAL=3;COUNT=10;BYYEARDAY=1,100,200",
        days("1: 1; 4: 10; 7: 19; 2000 1: 1; 4: 9; 7: 18; 2003 1: 1; 4: 10; 7: 19; 2006 1: 1"),
        True,
    ),
    ("19970519T090000", "FREQ=YEARLY;BYDAY=20MO", days("5: 19; 1998 5: 18; 1999 5: 17"), False),
    (
        "19970512T090000",
        "FREQ=YEARLY;BYWEEKNO=20;BYDAY=MO",
        days("5: 12; 1998 5: 11; 1999 5: 17"),
        False,
    ),
    (
        "19970313T090000",
        "FREQ=YEARLY;BYMONTH=3;BYDAY=TH",
        days("3: 13 20 27; 1998 3: 5 12 19 26; 1999 3: 4 11 18 25"),
        False,
    ),
    (
        "19970605T090000",
        "FREQ=YEARLY;BYDAY=TH;BYMONTH=6,7,8",
        days(
            "6: 5 12 19 26; 7: 3 10 17 24 31; 8: 7 14 21 28; 1998 6: 4 11 18 25; 7: 2 9 16 23 30;"
            "8: 6 13 20 27; 1999 6: 3 10 17 24; 7: 1 8 15 22 29; 8: 5 12 19 26"
        ),
        False,
    ),
    (
        "19970913T090000",
        "FREQ=MONTHLY;BYDAY=SA;BYMONTHDAY=7,8,9,10,11,12,13",
        days("9: 13; 10: 11; 11: 8; 12: 13; 1998 1: 10; 2: 7; 3: 7; 4: 11; 5: 9; 6: 13"),
        False,
    ),
    (
        "19961105T090000",
        "FREQ=YEARLY;INTERVAL=4;BYMONTH=11;BYDAY=TU;BYMONTHDAY=2,3,4,5,6,7,8",
        days("1996 11: 5; 2000 11: 7; 2004 11: 2"),
        False,
    ),
    (
        "19970904T090000",
        "FREQ=MONTHLY;COUNT=3;BYDAY=TU,WE,TH;BYSETPOS=3",
        days("9: 4; 10: 7; 11: 6"),
        True,
    ),
    (
        "19970929T090000",
        "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-2",
        days("9: 29; 10: 30; 11: 27; 12: 30; 1998 1: 29; 2: 26; 3: 30"),
        False,
    ),
    # The RFC prints 170000Z, but means 17:00 in New York, which is 21:00 UTC.
    (START, "FREQ=HOURLY;INTERVAL=3;UNTIL=19970902T210000Z", times("09:00 12:00 15:00"), True),
    (
        START,
        "FREQ=MINUTELY;INTERVAL=15;COUNT=6",
        times("09:00 09:15 09:30 09:45 10:00 10:15"),
        True,
    ),
    (START, "FREQ=MINUTELY;INTERVAL=90;COUNT=4", times("09:00 10:30 12:00 13:30"), True),
    (
        START,
        "FREQ=DAILY;BYHOUR=9,10,11,12,13,14,15,16;BYMINUTE=0,20,40",
        [
            *times(f"{EVERY_20_MINUTES} 12:00 12:20 12:40 13:00 13:20 13:40 14:00 14:20 14:40"),
            *times("15:00 15:20 15:40 16:00 16:20 16:40"),
            *times(EVERY_20_MINUTES, day=3),
        ],
        False,
    ),
    (
        START,
        "FREQ=MINUTELY;INTERVAL=20;BYHOUR=9,10,11,12,13,14,15,16",
        [
            *times(f"{EVERY_20_MINUTES} 12:00 12:20 12:40 13:00 13:20 13:40 14:00 14:20 14:40"),
            *times("15:00 15:20 15:40 16:00 16:20 16:40"),
            *times(EVERY_20_MINUTES, day=3),
        ],
        False,
    ),
    (
        "19970805T090000",
        "FREQ=WEEKLY;INTERVAL=2;COUNT=4;BYDAY=TU,SU;WKST=MO",
        days("8: 5 10 19 24"),
        True,
    ),
    (
        "19970805T090000",
        "FREQ=WEEKLY;INTERVAL=2;COUNT=4;BYDAY=TU,SU;WKST=SU",
        days("8: 5 17 19 31"),
        True,
    ),
    (
        "20070115T090000",
        "FREQ=MONTHLY;BYMONTHDAY=15,30;COUNT=5",
        days("2007 1: 15 30; 2: 15; 3: 15 30"),
        True,
    ),
]


def fire_times(trigger, count):
    found, instant = [], LONG_AGO
    while len(found) < count and (instant := trigger.next_after(instant)) is not None:
        found.append(instant)
    return [instant.astimezone(NEW_YORK).replace(tzinfo=None) for instant in found]


@pytest.mark.parametrize(
    ("start", "rule", "expected", "complete"), EXAMPLES, ids=[example[1] for example in EXAMPLES]
)
def test_the_examples_of_the_rfc_have_the_printed_fire_times(start, rule, expected, complete):
    trigger = RRule(f"DTSTART;TZID=America/New_York:{start}\nRRULE:{rule}")

    assert fire_times(trigger, len(expected)) == expected
    assert (
        not complete
        or trigger.next_after((expected[-1] + timedelta(seconds=1)).replace(tzinfo=NEW_YORK))
        is None
    )


def test_friday_the_thirteenth_does_not_include_dtstart():
    """The RFC excludes DTSTART with EXDATE. Here and in dateutil the rule does not match it."""
    text = f"DTSTART;TZID=America/New_York:{START}\nEXDATE;TZID=America/New_York:{START}"
    trigger = RRule(f"{text}\nRRULE:FREQ=MONTHLY;BYDAY=FR;BYMONTHDAY=13")

    assert fire_times(trigger, 5) == days("1998 2: 13; 3: 13; 11: 13; 1999 8: 13; 2000 10: 13")
