"""What a search over excluded days may cost, and where it ends."""

import time
from datetime import UTC, date, datetime, timedelta

import pytest

from celery_dynbeat.triggers import AnyOf, Cron, Every, Once

SEOUL = "Asia/Seoul"
CHRISTMAS = date(2026, 12, 25)
HOUR = timedelta(hours=1)


def at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)


@pytest.mark.parametrize(
    "trigger",
    [
        Cron("* * * * *").excluding(Cron("0 0 * * *")),
        Cron("0 9 * * *").excluding(*(Cron(f"0 0 * * {n}") for n in range(7))),
        Once(at(2026, 12, 25, 9)).excluding(CHRISTMAS),
        Every(60, anchor=at(2026, 1, 1)).excluding(Every(3600)),
    ],
)
def test_what_is_wholly_excluded_ends_in_bounded_time(trigger):
    started = time.thread_time()

    assert trigger.anchored_at(at(2026, 1, 1)).next_after(at(2026, 1, 1)) is None
    assert time.thread_time() - started < 3


def test_exclusions_of_exclusions_do_not_multiply_the_search():
    never = Cron("0 9 * * *").excluding(Cron("0 0 2-31 * *"), Cron("0 0 1 2-12 *"))
    trigger = never.excluding(never, timezone=SEOUL)
    started = time.thread_time()

    assert trigger.next_after(at(2026, 1, 2)) is None
    assert time.thread_time() - started < 5


def test_days_that_are_left_out_bring_no_fire_times_closer():
    trigger = Every(3600).excluding(Cron("0 0 1-30 * *"))

    assert trigger.shortest_interval(after=at(2026, 1, 1)) == HOUR


def test_a_rule_of_few_days_beside_a_frequent_one_is_not_searched_each_time():
    seldom = Cron("0 9 * * *").excluding(Cron("0 0 2-31 * *"), Cron("0 0 1 2-12 *"))
    trigger = AnyOf(seldom, Every(60, anchor=at(2026, 1, 1)))
    started = time.thread_time()

    counted = trigger.count_until(after=at(2026, 1, 2), until=at(2026, 2, 1), limit=10_000)

    assert counted == 10_000
    assert trigger.shortest_interval(after=at(2026, 1, 2)) == timedelta(minutes=1)
    assert seldom.latest_until(after=at(2026, 1, 2), until=at(2026, 12, 31)) is None
    assert seldom.latest_until(after=at(2025, 12, 1), until=at(2026, 12, 31)) == at(2026, 1, 1, 9)
    assert time.thread_time() - started < 3


def test_a_date_that_waits_years_for_its_weekday_is_found():
    # New Year's Day on a Monday: after 2024 in 2029, then in 2035.
    others = Cron("0 0 * * tue-sun")

    found = Cron("0 9 1 1 *").excluding(others).next_after(at(2029, 6, 1))

    assert found == at(2035, 1, 1, 9)
