"""A pause with an end: beat resumes the schedule at that instant, without its missed fire times."""

from datetime import timedelta

import pytest

from celery_dynbeat.beat import fairness
from tests.support.applications import MINUTELY, START

MINUTE = timedelta(minutes=1)
END = START + 3 * MINUTE


@pytest.fixture
def made(mine):
    return mine.create("n", task="t", trigger=MINUTELY)


def minutes_of(sent):
    return [(run.fire_at - START) / MINUTE for run in sent]


@pytest.mark.usefixtures("made")
def test_beat_resumes_at_the_end_and_sends_the_fire_times_from_then_on(mine, clock, beat, sent):
    paused = mine.pause("n", until=END, reason="on holiday")
    assert (paused.paused_until, paused.next_run_at) == (END, None)

    for _ in range(5):
        clock.advance(MINUTE)
        beat.run_until_idle()

    assert minutes_of(sent) == [3, 4, 5]
    info = mine.get("n")
    assert (info.enabled, info.paused_reason, info.paused_until) == (True, None, None)
    [skipped] = mine.runs(status="skipped")
    assert (skipped.fire_at, skipped.fire_count) == (START + 2 * MINUTE, 2)


@pytest.mark.usefixtures("made")
def test_a_late_beat_plans_from_the_end_of_the_pause(mine, clock, beat, sent):
    mine.update("n", catch_up="all")
    mine.pause("n", until=2 * MINUTE)

    clock.advance(4 * MINUTE + timedelta(seconds=1))
    beat.run_until_idle()

    assert minutes_of(sent) == [2, 3, 4]


@pytest.mark.usefixtures("made")
def test_beat_sleeps_at_most_until_the_end(mine, beat):
    mine.pause("n", until=timedelta(seconds=3))

    beat.run_until_idle()
    dispatcher = beat._dispatcher

    assert dispatcher.run_pass() <= timedelta(seconds=3)


@pytest.mark.usefixtures("made")
def test_the_audit_names_beat_as_the_actor_of_the_resume(mine, clock, beat):
    mine.bound(actor="alice").pause("n", until=END, reason="why")
    clock.advance(3 * MINUTE)
    beat.run_until_idle()

    resumed, paused, *_ = mine.changes("n")

    assert (paused.actor, paused.after["paused_until"]) == ("alice", END.isoformat())
    assert (resumed.action, resumed.actor) == ("resume", "beat")
    assert resumed.before == {
        "enabled": False,
        "paused_reason": "why",
        "paused_until": END.isoformat(),
        "version": 2,
    }
    assert resumed.after == {
        "enabled": True,
        "paused_reason": None,
        "paused_until": None,
        "version": mine.get("n").version,
    }


def test_a_pause_that_the_planning_time_does_not_reach_ends_in_the_next_pass(
    mine, clock, beat, sent, monkeypatch
):
    monkeypatch.setattr(fairness, "PLANNING_NS", 0)
    mine.create_many({"name": f"n{n}", "task": "t", "trigger": MINUTELY} for n in range(3))
    mine.pause_many(until=END, everything=True)
    clock.move_to(END)

    beat.tick()

    paused = list(mine.list(state="paused"))
    assert [(each.name, each.paused_until) for each in paused] == [("n1", END), ("n2", END)]
    beat.run_until_idle()
    assert mine.count(state="paused").count == 0
    assert sorted(run.name for run in sent) == ["n0", "n1", "n2"]
    assert minutes_of(sent) == [3, 3, 3]
    assert [each.actor for each in mine.changes("n2") if each.action == "resume"] == ["beat"]
