"""Days that depend on the month, compared with lists from the calendar for every month."""

import calendar
from datetime import UTC, date, datetime

import pytest

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.triggers import Cron

FIRST, LAST = 2023, 2030
MONTHS = [(year, month) for year in range(FIRST, LAST + 1) for month in range(1, 13)]
WEEKDAYS = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


def fired(expression: str, *, day_or: bool = True) -> list[date]:
    trigger, found = Cron(expression, day_or=day_or), []
    fire_time = trigger.next_after(datetime(FIRST - 1, 12, 31, 23, 59, tzinfo=UTC))
    while fire_time.year <= LAST:
        found.append(fire_time.date())
        fire_time = trigger.next_after(fire_time)
    return found


def days_of(year: int, month: int) -> list[date]:
    length = calendar.monthrange(year, month)[1]
    return [date(year, month, day) for day in range(1, length + 1)]


def working(days: list[date]) -> list[date]:
    return [day for day in days if day.isoweekday() <= 5]


def nearest(days: list[date], wanted: int) -> list[date]:
    """Return the weekday nearest to the day ``wanted`` of the month, nothing without that day."""
    if wanted not in range(1, len(days) + 1):
        return []
    return [min(working(days), key=lambda day: abs(day.day - wanted))]


def expected(name) -> list[date]:  # a function of the days of a month
    return [day for year, month in MONTHS for day in name(days_of(year, month))]


def test_lw_is_the_last_weekday_of_the_month():
    assert fired("0 0 LW * *") == expected(lambda days: working(days)[-1:])


@pytest.mark.parametrize("number", range(1, 32))
def test_w_is_the_weekday_nearest_to_a_day(number):
    found = fired(f"0 0 {number}W * *")

    assert found == expected(lambda days: nearest(days, number))


@pytest.mark.parametrize("number", range(1, 31))
def test_l_minus_n_is_n_days_before_the_last_day(number):
    found = fired(f"0 0 L-{number} * *")

    assert found == expected(lambda days: [day for day in days if day.day == len(days) - number])


@pytest.mark.parametrize("number", [1, 2, 3, 27, 28, 29, 30])
def test_a_w_after_l_minus_n_is_the_nearest_weekday(number):
    found = fired(f"0 0 L-{number}W * *")

    assert found == expected(lambda days: nearest(days, len(days) - number))


@pytest.mark.parametrize("weekday", range(7))
def test_l_after_a_weekday_is_its_last_one_in_the_month(weekday):
    name, number = WEEKDAYS[weekday], (weekday + 1) % 7
    same = expected(lambda days: [day for day in days if day.weekday() == weekday][-1:])

    assert fired(f"0 0 * * {name}L") == same
    assert fired(f"0 0 * * {number}L") == same
    assert fired(f"0 0 * * L{number}") == same


@pytest.mark.parametrize("week", range(1, 6))
def test_nth_and_last_weekdays_combine_with_plain_weekdays(week):
    def named(days: list[date]) -> list[date]:
        mondays = [day for day in days if day.weekday() == 0][week - 1 : week]
        fridays = [day for day in days if day.weekday() == 4][-1:]
        return sorted({*mondays, *fridays, *(day for day in days if day.weekday() == 2)})

    assert fired(f"0 0 * * mon#{week},fri#1,friL,wed") == expected(
        lambda days: sorted({*named(days), next(day for day in days if day.weekday() == 4)})
    )


def test_a_list_contains_each_day_once():
    def named(days: list[date]) -> list[date]:
        found = {days[0], days[-1], days[-4], working(days)[-1]}
        return sorted({*found, *nearest(days, 1), *nearest(days, 15)})

    assert fired("0 0 1,1W,15W,L-3,LW,L * *") == expected(named)


def test_both_day_fields_must_match_with_a_star_or_day_or_false():
    def named(days: list[date]) -> list[date]:
        return [day for day in working(days)[-1:] if day.weekday() == 4]

    assert fired("0 0 LW * fri", day_or=False) == expected(named)
    assert fired("0 0 LW * */5") == expected(named)


@pytest.mark.parametrize("month", range(1, 13))
@pytest.mark.parametrize("number", [28, 29, 30, 31])
def test_a_day_that_never_occurs_is_rejected(number, month):
    longest = max(calendar.monthrange(year, month)[1] for year in range(2001, 2005))
    for day in (f"{number}", f"{number}W", f"L-{number - 1}"):
        if number <= longest:
            assert Cron(f"0 0 {day} {month} *")
        else:
            with pytest.raises(InvalidTriggerError, match="no such date"):
                Cron(f"0 0 {day} {month} *")
