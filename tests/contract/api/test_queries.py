"""Lists, histories, upcoming fire times, and the isolation of owners."""

from datetime import timedelta

import pytest

from celery_dynbeat import Cron, InvalidArgumentError, NotFoundError
from tests.support.applications import MINUTELY, START, instants
from tests.support.suites import each_database


def names(page):
    return [schedule.name for schedule in page]


@pytest.mark.parametrize(
    ("trigger", "fields"),
    [
        (Cron("*/7 9-10 * * *", timezone="Asia/Kolkata"), {}),
        (Cron("30 2 * * *", timezone="America/New_York"), {}),
        (MINUTELY, {"start_at": START + timedelta(seconds=90)}),
        (MINUTELY, {"end_at": START + timedelta(minutes=3)}),
        (MINUTELY, {"max_runs": 2}),
    ],
)
def test_upcoming_equals_what_beat_sends(mine, clock, beat, trigger, fields):
    mine.create("n", task="t", trigger=trigger, **fields)
    promised = instants(mine.upcoming("n", count=4))

    for fire_at in promised:
        clock.move_to(fire_at)
        beat.run_until_idle()

    assert [run.fire_at for run in reversed(mine.runs())] == promised
    assert len(promised) > 1


def test_a_paused_schedule_has_no_upcoming_fire_times(mine):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.pause("n")

    assert instants(mine.upcoming("n")) == []


@each_database
def test_a_list_applies_its_filters(mine):
    mine.create("a", task="t", trigger=MINUTELY, tags=["red", 'quo"ted'])
    mine.create("b", task="u", trigger=MINUTELY, tags=["reddish"])
    mine.create("c", task="u", trigger=MINUTELY)
    mine.pause("c")

    assert names(mine.list()) == ["a", "b", "c"]
    assert names(mine.list(task="u")) == ["b", "c"]
    assert names(mine.list(enabled=False)) == ["c"]
    assert names(mine.list(tag="red")) == ["a"]
    assert names(mine.list(tag='quo"ted')) == ["a"]
    assert names(mine.list(task="u", enabled=True)) == ["b"]


def test_pages_contain_each_schedule_once(dynbeat, mine):
    dynbeat.schedules.create_many(
        {"owner": "user:42", "name": f"{number:02}", "task": "t", "trigger": MINUTELY}
        for number in range(7)
    )

    pages = [mine.list(limit=3)]
    while pages[-1].cursor is not None:
        pages.append(mine.list(limit=3, after=pages[-1].cursor))

    assert [names(page) for page in pages] == [["00", "01", "02"], ["03", "04", "05"], ["06"]]


@pytest.mark.parametrize("cursor", ["", "nonsense", "e30=", "WzFd", "ü"])
def test_a_forged_cursor_is_rejected(mine, cursor):
    with pytest.raises(InvalidArgumentError) as caught:
        mine.list(after=cursor)

    assert caught.value.field == "after"


def test_the_cursor_of_another_owner_shows_none_of_its_schedules(dynbeat, mine):
    theirs = dynbeat.schedules.for_owner("user:41")
    theirs.create("a", task="t", trigger=MINUTELY)
    theirs.create("b", task="t", trigger=MINUTELY)
    cursor = theirs.list(limit=1).cursor
    mine.create("z", task="t", trigger=MINUTELY)

    assert names(mine.list(after=cursor)) == ["z"]


@pytest.mark.parametrize("limit", [0, -1, 1001, True, "5"])
def test_a_limit_outside_its_bounds_is_rejected(mine, limit):
    with pytest.raises(InvalidArgumentError) as caught:
        mine.list(limit=limit)

    assert caught.value.field == "limit"


@each_database
def test_a_history_is_newest_first_and_applies_its_filters(mine, clock, beat):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.create("other", task="t", trigger=MINUTELY)
    for _ in range(3):
        clock.advance(timedelta(minutes=1))
        beat.run_until_idle()
    mine.pause("other")

    times = [START + timedelta(minutes=minute) for minute in (3, 2, 1)]
    assert [run.fire_at for run in mine.runs("n")] == times
    assert [run.fire_at for run in mine.runs("n", since=times[1])] == times[:2]
    assert [run.fire_at for run in mine.runs("n", limit=1)] == times[:1]
    assert {run.name for run in mine.runs(status="revoked")} == {"other"}
    assert len(mine.runs()) == 6
    with pytest.raises(InvalidArgumentError):
        mine.runs(status="odd")


def test_a_new_schedule_with_an_old_name_has_its_own_history(mine, clock, beat):
    mine.create("n", task="t", trigger=MINUTELY)
    clock.advance(timedelta(minutes=1))
    beat.run_until_idle()
    mine.delete("n")
    assert len(mine.runs("n")) == 1

    mine.create("n", task="t", trigger=MINUTELY)

    assert mine.runs("n") == []


@pytest.mark.parametrize("other", ["User:42", "usér:42", "user:4", "user:42 x", "user:\uff142"])
def test_an_owner_cannot_read_or_change_the_schedules_of_a_similar_name(dynbeat, mine, other):
    theirs = dynbeat.schedules.for_owner(other)
    kept = theirs.create("n", task="t", trigger=MINUTELY)
    theirs.run_now("n")

    for call in (mine.update, mine.pause, mine.resume, mine.delete, mine.run_now, mine.upcoming):
        with pytest.raises(NotFoundError):
            call("n")
    mine.create("n", task="mine", trigger=MINUTELY)
    assert dynbeat.schedules.delete_owner("user:42") == 1

    assert not mine.list()
    assert mine.runs() == mine.runs("n") == []
    assert theirs.get("n") == kept
    assert [run.status for run in theirs.runs("n")] == ["pending"]


@each_database
def test_names_that_differ_by_case_or_accent_are_different(mine):
    for name in ("resume", "Resume", "résumé"):
        mine.create(name, task=name, trigger=MINUTELY)

    assert {mine.get(name).task for name in ("resume", "Resume", "résumé")} == {
        "resume",
        "Resume",
        "résumé",
    }
