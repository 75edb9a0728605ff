"""Which fire times are sent, skipped and next, against cases and against plain enumeration."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dynbeat import Every, InvalidTriggerError, Once
from celery_dynbeat.planning import COUNT_LIMIT, Plan, Rule, Skip, first_fire, plan, rule_of

START = datetime(2026, 11, 21, 9, tzinfo=UTC)
MISSED = "missed: a newer fire time was sent instead"


def minute(number):
    return START + timedelta(minutes=number)


def rule(**fields):
    return Rule(trigger=Every(60, anchor=START), **fields)


def decide(*, now, fire_at=1, run_count=0, limit=100, **fields):
    return plan(
        rule(**fields),
        fire_at=minute(fire_at),
        run_count=run_count,
        now=minute(now),
        limit=limit,
    )


@pytest.mark.parametrize(
    ("arguments", "sent", "skipped", "following"),
    [
        ({"now": 1}, [1], None, 2),
        ({"now": 1.5}, [1], None, 2),
        ({"now": 5}, [5], (4, 4), 6),
        ({"now": 5, "catch_up": "all"}, [1, 2, 3, 4, 5], None, 6),
        ({"now": 5, "catch_up": "all", "limit": 2}, [1, 2], None, 3),
        ({"now": 5, "catch_up": "none"}, [5], (4, 4), 6),
        ({"now": 5.9, "catch_up": "none"}, [], (5, 5), 6),
        ({"now": 5, "catch_up": "all", "catch_up_window": timedelta(minutes=1)}, [4, 5], (3, 3), 6),
        ({"now": 5.9, "catch_up_window": timedelta(seconds=1)}, [], (5, 5), 6),
        ({"now": 5, "max_runs": 2, "run_count": 1}, [5], (4, 4), None),
        ({"now": 5, "max_runs": 2, "catch_up": "all"}, [1, 2], None, None),
        ({"now": 5, "max_runs": 1, "run_count": 1}, [], None, None),
        ({"now": 5, "end_at": minute(3)}, [3], (2, 2), None),
        ({"now": 5, "end_at": minute(0)}, [], None, None),
        ({"now": 5, "end_at": minute(5)}, [5], (4, 4), None),
    ],
)
def test_a_due_schedule_is_decided_by_its_rule(arguments, sent, skipped, following):
    made = decide(**arguments)

    assert list(made.send) == [minute(number) for number in sent]
    assert made.next_fire_at == (None if following is None else minute(following))
    assert (made.skip and (made.skip.newest, made.skip.count)) == (
        skipped and (minute(skipped[0]), skipped[1])
    )


def test_a_skip_says_why():
    assert decide(now=2).skip == Skip(minute(1), 1, MISSED)
    assert "catch_up is 'none'" in decide(now=2.9, catch_up="none").skip.reason
    window = timedelta(seconds=1)
    assert "catch_up_window" in decide(now=2.9, catch_up_window=window).skip.reason


def test_the_count_of_what_was_missed_is_bounded():
    assert decide(now=10_000).skip == Skip(minute(9_999), COUNT_LIMIT, MISSED)


def test_a_one_off_is_sent_and_has_no_next():
    once = Rule(trigger=Once(minute(1)))

    made = plan(once, fire_at=minute(1), run_count=0, now=minute(500), limit=100)

    assert made == Plan((minute(1),), None, None)


@pytest.mark.parametrize(
    ("fields", "first"),
    [
        ({}, minute(1)),
        ({"start_at": minute(7)}, minute(7)),
        ({"start_at": minute(6.5)}, minute(7)),
        ({"start_at": minute(-9)}, minute(1)),
        ({"end_at": minute(1)}, minute(1)),
        ({"end_at": minute(0.9)}, None),
    ],
)
def test_the_first_fire_time_lies_after_now_and_within_the_span(fields, first):
    assert first_fire(rule(**fields), now=START) == first


class Columns:
    trigger_kind, trigger_spec, timezone = "every", "PT1M", "UTC"
    anchor_at = start_at = end_at = max_runs = catch_up = catch_up_window = None
    created_at = START

    def __init__(self, **values):
        vars(self).update(values)


@pytest.mark.parametrize(
    ("values", "anchor"),
    [
        ({}, START),
        ({"anchor_at": minute(0.2)}, minute(0.2)),
        ({"anchor_at": minute(0.2), "start_at": minute(0.4)}, minute(0.4)),
        ({"trigger_spec": "R/2026-11-21T09:00:30Z/PT1M"}, minute(0.5)),
    ],
)
def test_an_interval_counts_from_its_own_anchor_the_start_the_edit_or_the_creation(values, anchor):
    assert rule_of(Columns(**values), catch_up="all", grace=timedelta(1)).trigger.anchor == anchor


def test_a_row_that_leaves_catch_up_open_follows_the_setting():
    assert rule_of(Columns(), catch_up="all", grace=timedelta(1)).catch_up == "all"
    stated = Columns(catch_up="none", catch_up_window=90.0)
    made = rule_of(stated, catch_up="all", grace=timedelta(1))
    assert (made.catch_up, made.catch_up_window) == ("none", timedelta(seconds=90))


def test_damaged_text_is_refused():
    with pytest.raises(InvalidTriggerError):
        rule_of(Columns(trigger_spec="often"), catch_up="all", grace=timedelta(1))


@given(
    catch_up=st.sampled_from(["latest", "all", "none"]),
    window=st.none() | st.integers(1, 2_000),
    seconds=st.integers(60, 1_800),
    end=st.none() | st.integers(0, 2_000),
    most=st.none() | st.integers(1, 9),
    limit=st.integers(1, 9),
)
def test_passes_decide_each_fire_time_once_as_enumeration_does(
    catch_up, window, seconds, end, most, limit
):
    now = START + timedelta(seconds=seconds)
    made_of = rule(
        catch_up=catch_up,
        catch_up_window=None if window is None else timedelta(seconds=window),
        end_at=None if end is None else START + timedelta(seconds=end),
        max_runs=most,
    )
    until = now if end is None else min(now, made_of.end_at)
    due = [at for number in range(1, 31) if (at := minute(number)) <= until]
    limits = [made_of.catch_up_window] * (window is not None) + [made_of.grace] * (
        catch_up == "none"
    )
    fresh = [at for at in due if not limits or at >= now - min(limits)]
    expected = fresh[:most] if catch_up == "all" else fresh[-1:]

    sent, skipped, fire_at = [], 0, minute(1)
    while fire_at is not None and fire_at <= now:
        made = plan(made_of, fire_at=fire_at, run_count=len(sent), now=now, limit=limit)
        sent += made.send
        skipped += made.skip.count if made.skip else 0
        assert made.next_fire_at is None or made.next_fire_at > fire_at
        fire_at = made.next_fire_at

    assert sent == expected
    if catch_up != "all" or most is None:
        assert skipped == len(due) - len(sent)
