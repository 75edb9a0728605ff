"""A trigger without skipped fire times agrees with plain enumeration."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from celery_dynbeat import AnyOf, Cron, Every, Once
from celery_dynbeat.planning import ScheduleSpec, with_search_budget
from celery_dynbeat.planning.plan import plan, run_at
from celery_dynbeat.triggers.wrappers import SkippingTrigger

REASON = "skipped by a call"
START = datetime(2026, 11, 21, 9, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
TRIGGERS = [
    Every(60, anchor=START),
    Cron("*/3 * * * *"),
    Once(START + 7 * MINUTE),
    AnyOf(Every(120, anchor=START), Cron("*/5 * * * *")),
]
# Whole minutes are fire times of some triggers. Half minutes are fire times of none.
INSTANTS = st.integers(-2, 60).map(lambda half: START + half * MINUTE / 2)


def without(spec, skipped):
    return spec._replace(
        trigger=SkippingTrigger(spec.trigger, dict.fromkeys(sorted(skipped), REASON))
    )


@given(st.sampled_from(TRIGGERS), st.sets(INSTANTS), INSTANTS, INSTANTS, st.integers(1, 40))
def test_searches_and_counts_agree_with_enumeration(trigger, skipped, after, until, limit):
    left = [
        START + minute * MINUTE
        for minute in range(-2, 200)
        if trigger.next_after(START + minute * MINUTE - MINUTE / 60) == START + minute * MINUTE
        and START + minute * MINUTE not in skipped
    ]
    inside = [at for at in left if after < at <= until]
    for tried in (trigger, with_search_budget(ScheduleSpec(trigger)).trigger):
        skipping = SkippingTrigger(tried, dict.fromkeys(skipped, ""))

        assert skipping.next_after(after) == min((at for at in left if at > after), default=None)
        assert skipping.latest_until(after=after, until=until) == max(inside, default=None)
        counted = skipping.count_until(after=after, until=until, limit=limit)
        assert counted == min(len(inside), limit)


@given(
    st.sets(st.integers(1, 20)).map(lambda minutes: {START + m * MINUTE for m in minutes}),
    st.sampled_from(["latest", "all", "none"]),
    st.sampled_from(["allow", "skip", "buffer_one"]),
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.integers(1, 12) | st.none(),
)
def test_passes_decide_each_other_fire_time_once(skipped, catch_up, overlap, steps, max_runs):
    every = ScheduleSpec(
        Every(60, anchor=START), catch_up=catch_up, overlap=overlap, max_runs=max_runs
    )
    spec = without(every, skipped)
    now, fire_at, made, runs, passed = START, spec.trigger.next_after(START), 0, [], 0
    taken_out = []
    for step in steps:
        now += step * MINUTE
        if fire_at is None or fire_at > now:
            continue
        planned = plan(spec, fire_at=fire_at, run_count=made, now=now, limit=100)
        fire_at, made = planned.next_fire_at, made + len(planned.runs)
        runs += planned.runs
        by_call = [skip.newest for skip in planned.skips if skip.reason == REASON]
        passed += sum(skip.count for skip in planned.skips) - len(by_call)
        assert by_call == sorted(planned.passed)
        taken_out += by_call
        # As the claim writes it into the row.
        spec = without(every, skipped.difference(taken_out))

    assert skipped.isdisjoint(runs)
    assert len(taken_out) == len(set(taken_out))
    if fire_at is not None:
        due = (fire_at - START) // MINUTE - 1
        assert len(runs) + passed == due - sum(at < fire_at for at in skipped)
        assert fire_at not in skipped
        # Those between the last decided fire time and ``now`` follow with the next one.
        assert {at for at in skipped if at < fire_at and at <= now} >= set(taken_out)


def test_a_skip_does_not_change_the_offset_in_a_window():
    spec = ScheduleSpec(Every(60, anchor=START), key="k", window=timedelta(hours=1))
    fire_at = START + MINUTE

    assert run_at(without(spec, {fire_at + MINUTE}), fire_at) == run_at(spec, fire_at)
