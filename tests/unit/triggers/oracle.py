"""An independent oracle for cron fire times: it checks every minute, or second, of real time.

It shares no code with the package. It parses the fields itself, uses no library, and does no
arithmetic on clock changes. It only uses the wall time that a zone shows at an instant.
"""

import calendar
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
NAMES = {
    3: {name: index + 1 for index, name in enumerate(MONTHS)},
    4: {name: index for index, name in enumerate(WEEKDAYS)},
}
BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6), (0, 59))


def expected(
    expression: str, zone: ZoneInfo, start: datetime, stop: datetime, *, day_or: bool = True
) -> list[datetime]:
    """Return the fire times in ``(start, stop]``. Both are whole minutes."""
    texts = expression.split()
    matches = matcher(texts, day_or=day_or)
    step = SECOND if len(texts) == 6 or odd_offsets(zone, start, stop) else MINUTE
    if texts[0].startswith("*") or texts[1].startswith("*"):
        instants = clock(zone, start, stop, step)
        return [instant for instant, wall in instants if instant > start and matches(wall)]
    return list(fixed(matches, zone, start, stop, step))


def fixed(
    matches: Callable[[datetime], bool],
    zone: ZoneInfo,
    start: datetime,
    stop: datetime,
    step: timedelta,
) -> Iterator[datetime]:
    """Yield the instants at which the clock first reaches, or jumps over, a matching wall time."""
    warm_up = start - timedelta(hours=27)
    reached = latest(zone, warm_up, start, step)
    for instant, wall in clock(zone, start + step, stop, step):
        fires = False
        while reached < wall:
            reached += step
            fires = fires or matches(reached)
        if fires:
            yield instant


def latest(zone: ZoneInfo, start: datetime, stop: datetime, step: timedelta) -> datetime:
    """Return the latest wall time that the clock shows at the steps from ``start`` to ``stop``.

    Steps of seconds are walked only in the minutes in which the clock is changed.
    """
    minutes = list(clock(zone, start, stop, MINUTE))
    found = max(wall for _, wall in minutes)
    for (instant, wall), (following, after) in pairwise(minutes):
        if step < MINUTE and after - wall != MINUTE:
            found = max(found, *(seen for _, seen in clock(zone, instant, following, step)))
    return found


def clock(
    zone: ZoneInfo, start: datetime, stop: datetime, step: timedelta
) -> Iterator[tuple[datetime, datetime]]:
    """Yield each instant from ``start`` to ``stop`` with its wall time."""
    instant = start
    while instant <= stop:
        yield instant, instant.astimezone(zone).replace(tzinfo=None)
        instant += step


def changes(zone: ZoneInfo, year: int) -> list[datetime]:
    """Return the instants that are followed by a clock change of ``zone`` within six hours."""
    hours = [datetime(year, 1, 1, tzinfo=UTC) + timedelta(hours=6 * n) for n in range(366 * 4)]
    offsets = [instant.astimezone(zone).utcoffset() for instant in hours]
    pairs = zip(hours, offsets, offsets[1:], strict=False)
    return [instant for instant, before, after in pairs if before != after]


def odd_offsets(zone: ZoneInfo, start: datetime, stop: datetime) -> bool:
    """Whether the offset has seconds near the ends of the span."""
    instants = (start - timedelta(hours=27), start, stop)
    offsets = (instant.astimezone(zone).utcoffset() for instant in instants)
    return any((offset or timedelta()) % MINUTE for offset in offsets)


def matcher(texts: list[str], *, day_or: bool) -> Callable[[datetime], bool]:
    """Return a function that tells whether a wall time matches the fields of an expression."""
    minute, hour, _, month, _ = sets = [allowed(texts[n], n) for n in range(5)]
    second = allowed(texts[5], 5) if len(texts) == 6 else {0}
    either = day_or and not (texts[2].startswith("*") or texts[4].startswith("*"))

    def day_matches(wall: datetime) -> bool:
        by_date = wall.day in sets[2] or wall.day in special_dates(texts[2], wall.year, wall.month)
        by_weekday = wall.isoweekday() % 7 in sets[4] or any(
            falls_on(item, wall) for item in texts[4].split(",") if special(item, 4)
        )
        return by_date or by_weekday if either else by_date and by_weekday

    return lambda wall: (
        wall.minute in minute
        and wall.hour in hour
        and wall.second in second
        and wall.month in month
        and day_matches(wall)
    )


def allowed(text: str, index: int) -> set[int]:
    low, high = BOUNDS[index]
    items = [item for item in text.split(",") if not special(item, index)]
    top = 7 if index == 4 else high
    named = {value for value in range(low, top + 1) if any(hit(i, value, index) for i in items)}
    return {value % 7 for value in named} if index == 4 else named


def special(item: str, index: int) -> bool:
    """Whether an item is a day that depends on the month. No name of a weekday contains an l."""
    return (index == 2 and bool({"l", "w"} & set(item))) or (
        index == 4 and bool({"l", "#"} & set(item))
    )


@cache
def special_dates(text: str, year: int, month: int) -> set[int]:
    """Return the days of L, L-3, 15W and LW in a month."""
    weeks = calendar.monthcalendar(year, month)
    days = [day for week in weeks for day in week if day]
    weekdays = [day for week in weeks for day in week[:5] if day]
    found = set()
    for item in text.split(","):
        if not special(item, 2):
            continue
        start, _, back = item.replace("w", "").partition("-")
        wanted = days[-1] - int(back or 0) if start == "l" else int(start)
        if wanted in days and "w" in item:
            # A Saturday or Sunday has exactly one nearest weekday, also at the ends of the month.
            found.add(min(weekdays, key=lambda day: abs(day - wanted)))
        elif wanted in days:
            found.add(wanted)
    return found


def falls_on(item: str, wall: datetime) -> bool:
    """Whether ``mon#2``, ``friL`` or ``l5`` matches the day of ``wall``."""
    day, _, week = item.partition("#")
    if number(day.strip("l"), 4) % 7 != wall.isoweekday() % 7:
        return False
    if not week:
        return (wall + timedelta(days=7)).month != wall.month
    return (wall.day + 6) // 7 == int(week)


def hit(item: str, value: int, index: int) -> bool:
    """Whether one item of a field matches ``value`` (7 and 0 are tried for Sunday)."""
    low, high = BOUNDS[index]
    body, _, step = item.partition("/")
    if body == "*":
        first, last = low, high
    elif "-" in body:
        first, last = (number(end, index) for end in body.split("-"))
    else:
        first = number(body, index)
        last = high if step else first
    if first > last:
        return value >= first or value <= last
    return first <= value <= last and (value - first) % int(step or 1) == 0


def number(text: str, index: int) -> int:
    names = NAMES.get(index, {})
    return names[text] if text in names else int(text)
