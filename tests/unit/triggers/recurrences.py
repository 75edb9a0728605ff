"""An independent oracle for recurrence rules, and random rules for it.

The oracle lists wall times from DTSTART on with dateutil, converts each to an instant, sorts them
and removes duplicates. It is slow, and shares no arithmetic with the package.
"""

import itertools
import random
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from dateutil.rrule import rrulestr

WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
FREQS = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
INTERVALS = (1, 1, 2, 3, 4, 5, 7, 10, 12, 24, 25, 36, 60, 61, 90, 100, 168, 1000)


def walls(text: str) -> Iterator[datetime]:
    """Yield the wall times of dateutil, up to the last year of the package."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        rule = rrulestr(text)
    return itertools.takewhile(lambda wall: wall.year < 9900, rule)


def expected(text: str, zone: ZoneInfo, start: datetime, stop: datetime) -> list[datetime]:
    """Return the fire times in ``(start, stop]`` of a rule whose DTSTART is floating."""
    last = stop.astimezone(zone).replace(tzinfo=None) + timedelta(days=2)
    listed = itertools.takewhile(lambda wall: wall <= last, walls(text))
    instants = {wall.replace(tzinfo=zone, fold=0).astimezone(UTC) for wall in listed}
    return sorted(instant for instant in instants if start < instant <= stop)


def random_rule(dice: random.Random) -> str:
    """Return an RRULE of random parts that the RFC allows. It may never fire."""
    freq = dice.choice(FREQS)
    parts = [f"FREQ={freq}", f"INTERVAL={dice.choice(INTERVALS)}"]
    longer = freq in {"YEARLY", "HOURLY", "MINUTELY", "SECONDLY"}
    choices = [
        ("BYMONTH", range(1, 13), 0.3, True),
        ("BYWEEKNO", (1, 2, 10, 20, 52, 53, -1, -2), 0.15, freq == "YEARLY"),
        ("BYYEARDAY", (1, 59, 60, 61, 100, 200, 366, -1, -366, -100), 0.15, longer),
        ("BYMONTHDAY", (1, 2, 13, 15, 28, 29, 30, 31, -1, -2, -31), 0.25, freq != "WEEKLY"),
        ("BYHOUR", range(24), 0.3, True),
        ("BYMINUTE", range(60), 0.3, True),
        ("BYSECOND", range(60), 0.3, True),
        ("BYSETPOS", (1, 2, 3, -1, -2, 10), 0.2, True),
        ("WKST", WEEKDAYS, 0.2, True),
    ]
    for name, values, share, allowed in choices:
        if allowed and dice.random() < share:
            size = 1 if name == "WKST" else dice.randint(1, 4)
            parts.append(f"{name}={','.join(map(str, dice.sample(list(values), size)))}")
    if dice.random() < 0.4:
        numbered = freq in {"YEARLY", "MONTHLY"} and "BYWEEKNO" not in str(parts)
        parts.append(f"BYDAY={random_days(dice, numbered=numbered)}")
    return ";".join(parts)


def random_days(dice: random.Random, *, numbered: bool) -> str:
    """Return weekdays, all of them with or without a number."""
    days = dice.sample(WEEKDAYS, dice.randint(1, 5))
    if numbered and dice.random() < 0.5:
        days = [dice.choice(("1", "-1", "2", "-2", "5")) + day for day in days]
    return ",".join(days)
