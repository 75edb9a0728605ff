"""The cost of one search in any combination, and where a search ends."""

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta

import pytest

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.triggers import AnyOf, Cron, Every, Once, Solar, Trigger, parse_trigger
from celery_dynbeat.triggers.composite.excluding import Excluding

CHRISTMAS = date(2026, 12, 25)
# Three times the cost of a search on a slow machine.
SOON = 1.0


def at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)


SUNSETS = [Solar("sunset", latitude=50 + n, longitude=13.4) for n in range(20)]
DUSKS = [Solar("dusk_astronomical", latitude=60 + n / 2, longitude=13.4) for n in range(20)]
CRONS = [Cron(f"{n} 0 * * *") for n in range(20)]
YEARLY = (Cron("0 0 2-31 * *"), Cron("0 0 1 2-12 *"))
MINUTE = Cron("* * * * *")


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "trigger",
    [
        AnyOf(*(Excluding(cron, Cron("0 12 * * *")) for cron in CRONS[:19]), Cron("0 0 * * *")),
        AnyOf(*(Excluding(cron, *YEARLY) for cron in CRONS)),
        Excluding(MINUTE, *CRONS[:10]),
        Excluding(MINUTE, *SUNSETS[:10]),
        Excluding(AnyOf(*CRONS), *YEARLY),
        Excluding(AnyOf(*SUNSETS), *DUSKS[:10]),
        Excluding(Cron("0 9 * * *"), SUNSETS[0]),
        Excluding(Cron("0 9 * * *"), *(date(2026, 1, 3) + timedelta(days=n) for n in range(366))),
        AnyOf(*CRONS),
        AnyOf(*SUNSETS),
        AnyOf(*DUSKS),
        AnyOf(*(Every(60 + n) for n in range(20))),
        AnyOf(*(Excluding(dusk, *YEARLY) for dusk in DUSKS[:10])),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "ask",
    [
        lambda trigger: trigger.next_after(at(2026, 1, 2)),
        lambda trigger: trigger.latest_until(after=at(1990, 1, 1), until=at(2026, 12, 31)),
        lambda trigger: trigger.count_until(after=at(1990, 1, 1), until=at(2026, 1, 1), limit=1000),
        lambda trigger: trigger.shortest_interval(after=at(2026, 1, 1)),
        lambda trigger: trigger.checked(),
    ],
    ids=["next", "latest", "count", "shortest", "check"],
)
def test_each_search_ends_or_is_rejected_quickly(
    trigger: Trigger, ask: Callable[[Trigger], object]
):
    started = time.thread_time()

    for _ in range(2):
        with suppress(InvalidTriggerError):
            ask(trigger)

    assert time.thread_time() - started < SOON


@pytest.mark.parametrize(
    ("trigger", "excluded"),
    [
        (MINUTE, [Cron("0 0 * * *")]),
        (Cron("0 9 * * *"), [Cron(f"0 0 * * {n}") for n in range(7)]),
        (Once(at(2026, 12, 25, 9)), [CHRISTMAS]),
        (Every(60, anchor=at(2026, 1, 1)), [Every(3600)]),
    ],
)
def test_a_trigger_without_fire_times_is_rejected(trigger, excluded):
    with pytest.raises(InvalidTriggerError, match="no fire time left"):
        trigger.excluding(*excluded)


@pytest.mark.no_cover
def test_all_parts_of_a_text_share_one_search_budget():
    # Each searches a year from 1901 on to find its first fire time.
    parts = [Excluding(cron, date(1901, 1, 1), *YEARLY) for cron in CRONS]
    text = AnyOf(*parts).spec
    started = time.thread_time()

    with pytest.raises(InvalidTriggerError, match="too costly"):
        parse_trigger("any_of", text)
    assert time.thread_time() - started < SOON


@pytest.mark.parametrize(
    "dense",
    [
        Every(timedelta(microseconds=1), anchor=at(2027, 6, 1)),
        Cron("* * * 6 * *"),
        Cron("* * * 6 * *").excluding(CHRISTMAS),
    ],
)
def test_the_shortest_interval_covers_a_part_that_starts_later(dense):
    shortest = AnyOf(Cron("0 * * * *"), dense).shortest_interval(after=at(2026, 11, 21))

    assert shortest <= timedelta(seconds=1)
