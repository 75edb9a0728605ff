"""The cost of a plan: one budget in steps, and a cache of counts."""

import sys
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from random import Random

import pytest

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.planning import ScheduleSpec, with_search_budget
from celery_dynbeat.planning.plan import plan
from celery_dynbeat.triggers import (
    AnyOf,
    Cron,
    Every,
    Excluding,
    Once,
    RRule,
    Solar,
    Trigger,
    solar,
)
from celery_dynbeat.triggers.base import (
    LOOKUP_STEPS,
    PLAN_STEPS,
    SEARCH_STEPS,
    SearchBudget,
)
from celery_dynbeat.triggers.cron.trigger import _first_after as first_cron
from celery_dynbeat.triggers.rrule import days
from celery_dynbeat.triggers.rrule import trigger as prepared
from celery_dynbeat.triggers.wrappers import BudgetedTrigger
from celery_dynbeat.triggers.zones import first_instant

NOW = datetime(2026, 7, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
RARE = "DTSTART:20260101T090000Z\nFREQ=DAILY;INTERVAL=363;BYMONTH=2;BYMONTHDAY=29;BYDAY=TU"
MINUTE = Cron("* * * * *")
YEARLY = (Cron("0 0 2-31 * *"), Cron("0 0 1 2-12 *"))


def counted(number: int, *, rules: int = 4, count: int = 1000) -> str:
    """Return the text of rules with COUNT from 1905 on. Each number gives other rules."""
    each = (f"FREQ=DAILY;COUNT={count};BYMONTHDAY={1 + (number + n) % 28}" for n in range(rules))
    start = f"1905{1 + number % 12:02}{1 + number % 28:02}T{number % 24:02}{number % 60:02}00Z"
    return "\n".join([f"DTSTART:{start}", *(f"RRULE:{rule}" for rule in each)])


@pytest.fixture(autouse=True)
def _empty_caches():
    prepared.prepare.cache_clear()
    prepared.preparation_steps.cache_clear()
    days.counted.cache_clear()


def test_a_search_costs_the_same_with_warm_and_cold_caches():
    trigger = AnyOf(RRule(counted(1)), RRule(RARE), Cron("0 9 * * *").excluding(*YEARLY))

    first, again, cold = SearchBudget(), SearchBudget(), SearchBudget()
    trigger.next_within(NOW, first)
    trigger.next_within(NOW, again)
    prepared.prepare.cache_clear()
    trigger.next_within(NOW, cold)

    assert first.spent == again.spent == cold.spent > 3 * LOOKUP_STEPS
    assert RRule(counted(1)).preparation_steps == RRule(counted(1)).preparation_steps > 4_000


def test_all_searches_of_a_plan_share_one_budget():
    trigger = AnyOf(*(Cron(f"{minute} * * * *") for minute in range(20)))
    rule = with_search_budget(ScheduleSpec(trigger), steps=20 * LOOKUP_STEPS)
    assert rule.trigger.next_after(NOW) == NOW + 60 * SECOND

    with pytest.raises(InvalidTriggerError) as refusal:
        rule.trigger.next_after(NOW + 60 * SECOND)

    assert "too costly, because planning it takes more than 1000 steps" in str(refusal.value)
    assert "or make several schedules" in str(refusal.value)


@pytest.mark.parametrize(
    "trigger",
    [
        Cron("0 9 * * *").excluding(date(2026, 12, 25), *YEARLY),
        AnyOf(*(Cron(f"{minute} * * * *") for minute in range(20))),
        AnyOf(RRule(counted(1)), Cron("* * * * * *")),
        RRule(RARE),
        RRule("DTSTART:20250101T090000Z\nRRULE:FREQ=WEEKLY;BYDAY=MO,FR;BYHOUR=7,9;COUNT=900"),
        Solar("sunrise", latitude=52.5, longitude=13.4),
    ],
    ids=["few days", "many crons", "counted and each second", "rare", "counted", "sun"],
)
@pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
def test_a_plan_is_the_same_with_and_without_a_budget(trigger, catch_up):
    rule = ScheduleSpec(trigger, catch_up=catch_up)
    given = {"run_count": 0, "now": NOW + timedelta(days=3), "limit": 100}
    fire_at = trigger.next_after(NOW)

    assert with_search_budget(rule).trigger is not trigger
    assert plan(with_search_budget(rule), fire_at=fire_at, **given) == plan(
        rule, fire_at=fire_at, **given
    )


def test_fire_times_beyond_the_budget_stay_due_for_the_next_pass():
    trigger = AnyOf(MINUTE, Cron("* * * * * 30"))
    now = NOW + timedelta(minutes=30)
    given = {"run_count": 0, "now": now, "limit": 100}
    sent, fire_at, plans = [], trigger.next_after(NOW), 0
    whole = plan(ScheduleSpec(trigger, catch_up="all"), fire_at=fire_at, **given)

    while fire_at <= now:
        rule = with_search_budget(ScheduleSpec(trigger, catch_up="all"), steps=100 * LOOKUP_STEPS)
        made = plan(rule, fire_at=fire_at, **given)
        sent += made.send
        fire_at, plans = made.next_fire_at, plans + 1

    assert plans == 3
    assert tuple(sent) == whole.send
    assert fire_at == whole.next_fire_at


def test_a_count_takes_half_of_the_remaining_budget_and_the_plan_continues():
    budget = SearchBudget(400 * LOOKUP_STEPS)
    trigger = BudgetedTrigger(AnyOf(Cron("* * * * * *"), Cron("0 9 * * *")), budget)

    found = trigger.count_until(after=NOW, until=NOW + timedelta(days=1), limit=1_000)

    assert 150 < found < 200
    assert trigger.next_after(NOW) == NOW + SECOND


@pytest.mark.parametrize("plain", [Cron("* * * * *"), Every(60), Once(NOW)])
def test_a_trigger_with_a_constant_cost_gets_no_budget(plain):
    rule = ScheduleSpec(plain)

    assert with_search_budget(rule) is rule


def costly_part(random: Random) -> Trigger:
    """Return a rare trigger, or one whose search is long."""
    zone = random.choice(["UTC", "Asia/Seoul", "America/Scoresbysund", "Australia/Lord_Howe"])
    clock, weekday = f"{random.randrange(60)} {random.choice('23*')}", random.randrange(7)
    rule = random.choice(["BYMONTHDAY=29;BYDAY=TU", "BYMONTHDAY=31", "BYDAY=FR"])
    start = f"DTSTART;TZID={zone}:20280229T0230{random.randrange(10, 60)}"
    event = random.choice(["sunrise", "dusk_astronomical", "solar_noon"])
    latitude = random.choice([90, 89.9, 66.6, random.uniform(-70, 70)])
    day = random.choice(["31 2,12", "L-3 2,4", "15W 2", "30,31 12"])
    parts = [
        Cron(f"{clock} 29 2 {weekday}", day_or=False, timezone=zone),
        Cron(f"{clock} {day} {weekday}", day_or=False, timezone=zone),
        RRule(f"{start}\nFREQ=DAILY;INTERVAL=97;{rule}"),
        Solar(event, latitude=latitude, longitude=random.uniform(-180, 180)),
    ]
    return random.choice(parts)


def costly_trigger(random: Random) -> Trigger:
    """Return a combination. Raises InvalidTriggerError if it is refused."""
    fires = [costly_part(random) for _ in range(random.randrange(2, 20))]
    excluded = [costly_part(random) for _ in range(random.randrange(1, 5))]
    shape = random.randrange(4)
    if shape == 0:
        return AnyOf(MINUTE, *(part for part in fires if isinstance(part, Cron)))
    if shape == 1:
        return Excluding(AnyOf(*fires), *excluded, timezone="Asia/Seoul")
    if shape == 2:
        return AnyOf(*(Excluding(part, *excluded) for part in fires[:5]), *fires[5:])
    return AnyOf(*(Excluding(part, *YEARLY) for part in fires[:4]), MINUTE)


@pytest.mark.no_cover
def test_a_step_bounds_the_work_of_the_costliest_triggers():
    """Work is the number of calls, which is the same on every machine."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    random, profile = Random(29), sys.getprofile()  # noqa: S311 - repeatable
    for _ in range(40):
        with suppress(InvalidTriggerError):
            trigger = costly_trigger(random)
            for cached in (first_cron, first_instant, solar._fire_time, solar._event_on):
                cached.cache_clear()
            budget, fire_time = SearchBudget(PLAN_STEPS), NOW + timedelta(random.randrange(800))
            budgeted, calls = BudgetedTrigger(trigger, budget), 0
            sys.setprofile(count)
            try:
                for _ in range(3):
                    fire_time = budgeted.next_after(fire_time)
            finally:
                sys.setprofile(profile)
                assert budget.spent <= PLAN_STEPS + SEARCH_STEPS
                assert calls < 5 * budget.spent, trigger
