"""A plan states which fire times are sent, skipped and next: by cases and by plain enumeration."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dynbeat import AnyOf, Cron, Every, InvalidTriggerError, Once
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.planning import ScheduleSpec, expires_at, spec_from_row
from celery_dynbeat.planning.plan import (
    COUNT_LIMIT,
    FAST_COUNT_LIMIT,
    TOO_NEAR,
    Plan,
    Skip,
    first_fire,
    following,
    plan,
    skip_missed,
)

START = datetime(2026, 11, 21, 9, tzinfo=UTC)
MISSED = "missed: a newer fire time was sent instead"


def minute(number):
    return START + timedelta(minutes=number)


def spec(**fields):
    return ScheduleSpec(trigger=Every(60, anchor=START), **fields)


def decide(*, now, fire_at=1, run_count=0, limit=100, unfinished=0, buffered=0, **fields):
    return plan(
        spec(**fields),
        fire_at=minute(fire_at),
        run_count=run_count,
        now=minute(now),
        limit=limit,
        unfinished=unfinished,
        buffered=buffered,
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
def test_a_plan_follows_the_policies_of_the_schedule(arguments, sent, skipped, following):
    made = decide(**arguments)

    assert list(made.send) == [minute(number) for number in sent]
    assert made.next_fire_at == (None if following is None else minute(following))
    assert [(skip.newest, skip.count) for skip in made.skips] == (
        [(minute(skipped[0]), skipped[1])] if skipped else []
    )


def test_a_skip_names_its_reason():
    assert decide(now=2).skips == (Skip(minute(1), 1, MISSED),)
    assert "catch_up is 'none'" in decide(now=2.9, catch_up="none").skips[0].reason
    window = timedelta(seconds=1)
    assert "catch_up_window" in decide(now=2.9, catch_up_window=window).skips[0].reason


@pytest.mark.parametrize(
    ("trigger", "now", "count"),
    [
        (Every(60, anchor=START), 10_000, 9_999),
        (Every(60, anchor=START), 2_000_000, FAST_COUNT_LIMIT),
        (Cron("* * * * *"), 10_000, 9_999),
        (Cron("* * * * *"), 2_000_000, FAST_COUNT_LIMIT),
        (AnyOf(Every(60, anchor=START), Once(START)), 10_000, COUNT_LIMIT),
    ],
)
def test_the_count_of_missed_fire_times_is_bounded_and_the_bound_is_higher_if_counting_is_cheap(
    trigger, now, count
):
    made = plan(
        ScheduleSpec(trigger=trigger), fire_at=minute(1), run_count=0, now=minute(now), limit=1
    )

    assert made.skips == (Skip(minute(now - 1), count, MISSED),)


def test_a_one_off_is_sent_and_has_no_next_fire_time():
    once = ScheduleSpec(trigger=Once(minute(1)))

    made = plan(once, fire_at=minute(1), run_count=0, now=minute(500), limit=100)

    assert made == Plan(send=(minute(1),))


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
def test_the_first_fire_time_is_after_now_and_within_start_at_and_end_at(fields, first):
    assert first_fire(spec(**fields), now=START) == first


class Columns:
    owner, name, trigger_kind, trigger_spec, timezone = "user:42", "digest", "every", "PT1M", "UTC"
    anchor_at = start_at = end_at = max_runs = catch_up = catch_up_window = None
    overlap = max_run_time = window = quiet_hours = hash_name = skips = None
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
def test_an_interval_counts_from_its_anchor_start_at_anchor_at_or_created_at(values, anchor):
    trigger = spec_from_row(Columns(**values), Settings()).trigger

    assert isinstance(trigger, Every)
    assert trigger.anchor == anchor


def test_a_row_without_policies_follows_the_settings():
    settings = Settings(
        catch_up="all",
        catch_up_window=timedelta(hours=1),
        overlap="skip",
        max_run_time=timedelta(minutes=5),
        window=timedelta(seconds=9),
    )
    policies = ("catch_up", "catch_up_window", "overlap", "max_run_time", "window")

    made = spec_from_row(Columns(), settings)

    assert {name: getattr(made, name) for name in policies} == {
        name: getattr(settings, name) for name in policies
    }


def test_a_row_with_a_window_that_cannot_be_read_is_refused():
    assert spec_from_row(Columns(window="50%"), Settings()).window == "50%"
    for stored in ("nonsense", "0%", "-1"):
        with pytest.raises(InvalidTriggerError, match="window = "):
            spec_from_row(Columns(window=stored), Settings())


def test_the_policies_of_a_row_override_the_settings():
    stated = {"catch_up": "none", "overlap": "buffer_one"}
    seconds = {"catch_up_window": 90.0, "max_run_time": 60.0, "window": 0.0}
    settings = Settings(catch_up="all", overlap="skip", window=timedelta(seconds=9))

    made = spec_from_row(Columns(**stated, **seconds), settings)

    assert {name: getattr(made, name) for name in stated} == stated
    assert {name: getattr(made, name).total_seconds() for name in seconds} == seconds


def test_a_run_expires_by_its_schedule_else_by_the_setting():
    settings = Settings(expires_after=timedelta(minutes=2))

    assert expires_at(None, created_at=START, settings=Settings()) is None
    assert expires_at(None, created_at=START, settings=settings) == minute(2)
    assert expires_at(60.0, created_at=START, settings=settings) == minute(1)


def test_an_invalid_trigger_text_is_rejected():
    with pytest.raises(InvalidTriggerError):
        spec_from_row(Columns(trigger_spec="often"), Settings())


@pytest.mark.parametrize(
    ("overlap", "unfinished", "sent", "buffered", "skipped"),
    [
        ("allow", 3, [1, 2, 3], [], []),
        ("skip", 0, [1], [], [2, 3]),
        ("skip", 1, [], [], [1, 2, 3]),
        ("buffer_one", 0, [1], [2], [3]),
        ("buffer_one", 1, [], [1], [2, 3]),
        ("buffer_one", 5, [], [1], [2, 3]),
        ("cancel_previous", 0, [3], [], [1, 2]),
        ("cancel_previous", 2, [3], [], [1, 2]),
    ],
)
def test_overlap_sends_buffers_or_skips(overlap, unfinished, sent, buffered, skipped):
    made = decide(now=3, catch_up="all", overlap=overlap, unfinished=unfinished)

    assert list(made.send) == [minute(number) for number in sent]
    assert list(made.buffered) == [minute(number) for number in buffered]
    assert [(skip.newest, skip.count) for skip in made.skips] == (
        [(minute(skipped[-1]), len(skipped))] if skipped else []
    )
    assert made.replaces == (overlap == "cancel_previous" and unfinished > 0)
    assert made.next_fire_at == minute(4)


def test_fire_times_that_overlap_skips_do_not_count_for_max_runs():
    made = decide(now=3, overlap="skip", unfinished=1, max_runs=1)

    assert made.runs == ()
    assert made.next_fire_at == minute(4)


def test_a_fire_time_too_near_to_the_one_before_is_skipped_and_counted():
    dense = AnyOf(Every(60, anchor=START), Every(1, anchor=minute(2)))
    thinned = ScheduleSpec(trigger=dense, min_interval=timedelta(seconds=30), catch_up="all")

    made = plan(thinned, fire_at=minute(1), run_count=0, now=minute(3), limit=9)

    assert made.send == (minute(1), minute(2), minute(2.5), minute(3))
    # The fire times after the newest one have not passed yet. The next plan reports them.
    assert made.skips == (Skip(minute(3) - timedelta(seconds=1), 2 * 29, TOO_NEAR),)
    assert made.next_fire_at == minute(3.5)
    assert following(thinned, minute(3)) == minute(3.5)
    later = plan(
        thinned,
        fire_at=minute(3.5),
        run_count=4,
        now=minute(3.5),
        limit=9,
        last_run_at=minute(3),
    )
    assert later.skips == (Skip(minute(3.5) - timedelta(seconds=1), 29, TOO_NEAR),)


def test_at_most_one_run_is_buffered():
    made = decide(now=3, catch_up="all", overlap="buffer_one", unfinished=2, buffered=1)

    assert made.runs == ()


def test_cancel_previous_sends_only_the_newest_of_many_missed_fire_times():
    made = decide(now=500, limit=100, catch_up="all", overlap="cancel_previous")

    assert made.send == (minute(500),)
    assert made.skips == (Skip(minute(499), 499, MISSED),)


@given(interval=st.integers(1, 300), catch_up=st.sampled_from(["latest", "all"]))
def test_passes_keep_min_interval_between_runs_and_count_the_other_fire_times(interval, catch_up):
    limited = spec(min_interval=timedelta(seconds=interval), catch_up=catch_up)
    sent, skipped, fire_at = [], 0, minute(1)
    while fire_at <= minute(30):
        last = sent[-1] if sent else None
        made = plan(limited, fire_at=fire_at, run_count=0, now=fire_at, limit=5, last_run_at=last)
        sent += made.send
        skipped += sum(skip.count for skip in made.skips)
        fire_at = made.next_fire_at

    distances = {later - earlier for earlier, later in pairwise(sent)}
    assert all(distance >= timedelta(seconds=interval) for distance in distances)
    assert len(sent) + skipped == (sent[-1] - START) // timedelta(minutes=1)


def test_missed_fire_times_are_counted_within_start_at_and_end_at():
    ended = spec(end_at=minute(3))

    assert skip_missed(spec(), fire_at=minute(1), now=minute(5.5), reason="paused") == (
        Skip(minute(5), 5, "paused"),
    )
    [missed] = skip_missed(ended, fire_at=minute(1), now=minute(5.5), reason="x")
    assert missed.newest == minute(3)
    assert skip_missed(spec(), fire_at=minute(1), now=minute(0.5), reason="paused") == ()


@given(
    catch_up=st.sampled_from(["latest", "all", "none"]),
    window=st.none() | st.integers(1, 2_000),
    seconds=st.integers(60, 1_800),
    end=st.none() | st.integers(0, 2_000),
    max_runs=st.none() | st.integers(1, 9),
    limit=st.integers(1, 9),
)
def test_passes_decide_each_fire_time_once_as_enumeration_does(
    catch_up, window, seconds, end, max_runs, limit
):
    now = START + timedelta(seconds=seconds)
    limited = spec(
        catch_up=catch_up,
        catch_up_window=None if window is None else timedelta(seconds=window),
        end_at=None if end is None else START + timedelta(seconds=end),
        max_runs=max_runs,
    )
    until = now if end is None else min(now, limited.end_at)
    due = [at for number in range(1, 31) if (at := minute(number)) <= until]
    limits = [limited.catch_up_window] * (window is not None) + [limited.grace] * (
        catch_up == "none"
    )
    fresh = [at for at in due if not limits or at >= now - min(limits)]
    expected = fresh[:max_runs] if catch_up == "all" else fresh[-1:]

    sent, skipped, fire_at = [], 0, minute(1)
    while fire_at is not None and fire_at <= now:
        made = plan(limited, fire_at=fire_at, run_count=len(sent), now=now, limit=limit)
        sent += made.send
        skipped += sum(skip.count for skip in made.skips)
        assert made.next_fire_at is None or made.next_fire_at > fire_at
        fire_at = made.next_fire_at

    assert sent == expected
    if catch_up != "all" or max_runs is None:
        assert skipped == len(due) - len(sent)
