"""``skip`` takes one fire time out, ``unskip`` puts it back: the calls, without a beat."""

from datetime import datetime, timedelta

import pytest

from celery_dynbeat import (
    ConflictError,
    Cron,
    Every,
    FireTime,
    InvalidArgumentError,
    NotFoundError,
    Once,
)
from celery_dynbeat.api import timing
from tests.support.applications import MINUTELY, START, instants

MINUTE = timedelta(minutes=1)


def at(*minutes):
    return [START + minute * MINUTE for minute in minutes]


@pytest.fixture
def made(mine):
    return mine.create("n", task="t", trigger=MINUTELY)


def skipped(mine):
    upcoming = mine.upcoming("n", count=99, with_skipped=True)
    return [each.fire_at for each in upcoming if each.is_skipped]


@pytest.mark.usefixtures("made")
def test_upcoming_says_who_skipped_and_why(dynbeat, mine):
    with dynbeat.acting(actor="alice@example.com", reason="ticket 12"):
        mine.skip("n", at(1)[0])
        mine.skip("n", at(2)[0], reason="holiday")
    mine.skip("n", at(3)[0])

    texts = [
        "skipped by alice@example.com: ticket 12",
        "skipped by alice@example.com: holiday",
        "skipped by a call",
    ]
    assert mine.upcoming("n", count=4, with_skipped=True) == [
        *(
            FireTime(fire_at=when, local=when, is_skipped=True, reason=text)
            for when, text in zip(at(1, 2, 3), texts, strict=True)
        ),
        FireTime(fire_at=at(4)[0], local=at(4)[0], run_at=at(4)[0]),
    ]


@pytest.mark.usefixtures("made")
def test_a_second_skip_of_the_same_fire_time_changes_nothing(mine):
    first = mine.skip("n", at(1)[0], reason="holiday")

    assert mine.skip("n", at(1)[0], reason="another") == first
    assert mine.upcoming("n", count=1, with_skipped=True)[0].reason == "skipped by a call: holiday"


@pytest.mark.usefixtures("made")
def test_other_instants_are_refused_with_the_nearest_fire_times(mine, clock):
    clock.advance(MINUTE / 2)
    near = START + 2.5 * MINUTE
    with pytest.raises(InvalidArgumentError) as refused:
        mine.skip("n", near)
    assert refused.value.field == "fire_at"
    assert f"the nearest are {at(2)[0]} and {at(3)[0]}" in str(refused.value)
    with pytest.raises(InvalidArgumentError, match=f"nearest are {at(1)[0]}$".replace("+", r"\+")):
        mine.skip("n", clock.now() + timedelta(seconds=1))
    for passed in (START, clock.now(), START - MINUTE):
        with pytest.raises(InvalidArgumentError, match="has passed or is due"):
            mine.skip("n", passed)
    with pytest.raises(InvalidArgumentError, match="aware"):
        mine.skip("n", datetime(2026, 11, 21, 9, 1))  # noqa: DTZ001
    with pytest.raises(NotFoundError):
        mine.skip("other", at(1)[0])
    assert mine.runs() == []


def test_fire_times_beyond_the_span_are_refused_and_beyond_max_runs_are_not(mine):
    span = {"start_at": at(3)[0], "end_at": at(5)[0]}
    mine.create("n", task="t", trigger=Every(60, anchor=START), max_runs=1, **span)

    with pytest.raises(InvalidArgumentError, match=r"nearest are .*09:03"):
        mine.skip("n", at(2)[0])
    with pytest.raises(InvalidArgumentError, match=r"nearest are .*09:05"):
        mine.skip("n", at(6)[0])
    mine.skip("n", at(4)[0])
    assert instants(mine.upcoming("n")) == at(3)
    mine.skip("n", at(3)[0])
    assert instants(mine.upcoming("n")) == at(5)


@pytest.mark.usefixtures("made")
def test_unskip_of_another_fire_time_is_refused(mine, clock):
    mine.skip("n", at(2)[0])

    with pytest.raises(InvalidArgumentError, match=r"is not skipped .*09:02"):
        mine.unskip("n", at(3)[0])
    mine.unskip("n", at(2)[0])
    with pytest.raises(InvalidArgumentError, match="no fire time in the future is"):
        mine.unskip("n", at(2)[0])
    mine.skip("n", at(2)[0])
    clock.advance(2 * MINUTE)
    with pytest.raises(InvalidArgumentError, match="has passed"):
        mine.unskip("n", at(2)[0])


@pytest.mark.parametrize("puts_back", [True, False])
def test_a_schedule_without_other_fire_times_finishes_at_the_skipped_one(
    mine, clock, beat, sent, puts_back
):
    when = START + 5 * MINUTE
    mine.create("n", task="t", trigger=Once(when))

    assert mine.skip("n", when).finished_at is None
    assert instants(mine.upcoming("n")) == []
    assert [each.fire_at for each in mine.upcoming("n", with_skipped=True)] == [when]
    if puts_back:
        assert mine.unskip("n", when).next_run_at == when
    clock.move_to(when)
    beat.run_until_idle()

    assert [run.fire_at for run in sent] == ([when] if puts_back else [])
    assert [run.status for run in mine.runs()] == ["sent" if puts_back else "skipped"]
    assert mine.get("n").finished_at == when
    with pytest.raises(ConflictError, match="the schedule finished at"):
        mine.skip("n", when + MINUTE)


@pytest.mark.usefixtures("made")
def test_a_paused_schedule_keeps_its_skips(mine, clock):
    mine.skip("n", at(2)[0])
    mine.pause("n")
    mine.skip("n", at(3)[0])
    assert instants(mine.upcoming("n")) == []
    assert [each.fire_at for each in mine.upcoming("n", with_skipped=True)] == at(2, 3)
    mine.skip("n", at(1)[0])
    assert mine.get("n").next_run_at is None
    clock.advance(MINUTE)

    assert mine.resume("n").next_run_at == at(4)[0]
    # The skipped fire time did not count as missed.
    assert [run.error for run in mine.runs()] == ["skipped by a call"]
    assert mine.unskip("n", at(3)[0]).next_run_at == at(3)[0]


@pytest.mark.usefixtures("made")
def test_skips_that_an_edited_trigger_does_not_yield_have_no_effect(mine):
    for minute in at(1, 2, 3, 4):
        mine.skip("n", minute)

    edited = mine.update("n", trigger=Every(120, anchor=START), end_at=at(20)[0])

    assert edited.next_run_at == at(6)[0]
    assert skipped(mine) == at(2, 4)
    assert mine.update("n", description="x").next_run_at == at(6)[0]
    mine.update("n", end_at=at(3)[0], start_at=at(1)[0])
    assert (skipped(mine), instants(mine.upcoming("n"))) == (at(2), [])
    mine.update("n", trigger=Every(60, anchor=START), end_at=None)
    assert skipped(mine) == at(1, 2, 3, 4)
    assert instants(mine.upcoming("n", count=2)) == at(5, 6)


@pytest.mark.usefixtures("made")
def test_the_number_of_skips_is_bounded(mine, clock, beat, monkeypatch):
    monkeypatch.setattr(timing, "MAX_SKIPPED", 3)
    for minute in at(1, 2, 3):
        mine.skip("n", minute)

    with pytest.raises(InvalidArgumentError, match="the limit"):
        mine.skip("n", at(4)[0])
    clock.advance(4 * MINUTE)
    beat.run_until_idle()
    mine.skip("n", at(5)[0])


def test_skips_that_would_make_the_plans_too_costly_are_refused(mine, clock, beat, sent):
    # One day of a year is left: each search goes through all the others.
    daily = Every(86_400, anchor=START)
    mine.create("n", task="t", trigger=daily.excluding(Cron("0 0 * 1-11 *"), Cron("0 0 2-31 12 *")))
    *upcoming, last = instants(mine.upcoming("n", count=3))
    mine.skip("n", upcoming[0])

    with pytest.raises(InvalidArgumentError, match="too many skipped fire times"):
        mine.skip("n", last)
    clock.move_to(upcoming[1])
    beat.run_until_idle()
    assert [run.fire_at for run in sent] == upcoming[1:]
