"""Lists, histories, upcoming fire times, and the isolation of owners."""

from datetime import timedelta

from tests.support.applications import MINUTELY
from tests.support.suites import each_database


def names(page):
    return [schedule.name for schedule in page]


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


def test_a_new_schedule_with_an_old_name_has_its_own_history(mine, clock, beat):
    mine.create("n", task="t", trigger=MINUTELY)
    clock.advance(timedelta(minutes=1))
    beat.run_until_idle()
    mine.delete("n")
    assert len(mine.runs("n")) == 1

    mine.create("n", task="t", trigger=MINUTELY)

    assert mine.runs("n") == []


@each_database
def test_names_that_differ_by_case_or_accent_are_different(mine):
    for name in ("resume", "Resume", "résumé"):
        mine.create(name, task=name, trigger=MINUTELY)

    assert {mine.get(name).task for name in ("resume", "Resume", "résumé")} == {
        "resume",
        "Resume",
        "résumé",
    }
