"""The pure rules of alerts, against oracles in brute force."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from celery_dynbeat.common.alert_kinds import AlertKind, Unsent
from celery_dynbeat.common.alert_rules import AlertRules
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.planning.alerting import (
    AlertState,
    End,
    Fact,
    after_facts,
    completes_streak,
    kinds_of,
    recovered,
)
from tests.support.applications import START

SECOND = timedelta(seconds=1)
ENDS = st.lists(st.booleans(), max_size=12)
#: Facts and recoveries of one alert, in the order in which a beat handles them.
STEPS = st.lists(st.one_of(st.integers(0, 20), st.just("recover")), max_size=20)


def ends_of(failed):
    return [End(START + number * SECOND, each) for number, each in enumerate(failed)]


@given(ENDS, st.integers(1, 4), st.randoms())
def test_a_streak_is_n_failures_that_follow_one_another(failed, length, random):
    ends = ends_of(failed)
    shuffled = random.sample(ends, len(ends))
    for number, end in enumerate(ends):
        expected = number + 1 >= length and all(failed[number + 1 - length : number + 1])
        assert completes_streak(shuffled, at=end.at, length=length) == expected


@given(ENDS, st.integers(0, 4), st.booleans())
def test_a_lost_run_counts_as_a_failure_and_alone_is_only_lost(failed, length, lost):
    rules = AlertRules(after_failures=length, lost=lost).effective(Settings(database_url="x"))
    ends = ends_of([*failed, True])
    fact = Fact(kind=AlertKind.LOST, at=ends[-1].at)
    streak = length > 0 and completes_streak(ends, at=fact.at, length=length)
    expected = {AlertKind.LOST} if lost else set()
    if streak and (length > 1 or not lost):
        expected.add(AlertKind.FAILED)

    assert set(kinds_of(fact, rules, ends)) == expected


@given(STEPS)
def test_an_alert_opens_by_the_first_new_fact_after_a_recovery(steps):
    state, openings, is_open, newest = None, 0, False, -1
    for step in steps:
        now = START + timedelta(minutes=1)
        if step == "recover":
            if state is not None and is_open:
                state, is_open = recovered(state, now=now, reports=True), False
            continue
        fact = Fact(kind=AlertKind.FAILED, at=START + step * SECOND, run_id=f"r{openings}-{step}")
        result = after_facts(state, [fact], now=now)
        opens = not is_open and step > newest
        assert (result is not None and result.opened) == opens
        assert (result is None) == (not is_open and not opens)
        if result is not None:
            state, is_open, newest = result.state, True, max(newest, step)
            openings += opens


@given(st.lists(st.integers(0, 20), min_size=1, max_size=12), st.data())
def test_facts_in_several_batches_are_counted_as_in_one(instants, data):
    facts = [
        Fact(kind=AlertKind.FAILED, at=START + at * SECOND, run_id=str(number))
        for number, at in enumerate(instants)
    ]
    cut = data.draw(st.integers(1, len(facts)))
    whole = after_facts(None, facts, now=START)
    first = after_facts(None, facts[:cut], now=START)
    both = after_facts(first.state, facts[cut:], now=START) or first

    assert both.state.fact_count == whole.state.fact_count
    assert both.state.last_at == whole.state.last_at


def test_a_recovery_is_reported_only_after_its_opening_was():
    opened = AlertState(
        id=1, opened_at=START, last_at=START, fact_count=1, unsent=Unsent.OPENED, unsent_at=START
    )
    sent = AlertState(id=1, opened_at=START, last_at=START, fact_count=1)
    now = START + SECOND

    assert recovered(opened, now=now, reports=True).unsent == Unsent.OPENED
    assert recovered(sent, now=now, reports=True).unsent == Unsent.RECOVERED
    assert recovered(sent, now=now, reports=False).unsent is None
