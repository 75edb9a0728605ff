"""Create a schedule; invalid fields are rejected."""

from datetime import timedelta

import pytest

from celery_dynbeat import Cron, ScheduleExistsError
from tests.support.applications import MINUTELY, START
from tests.support.suites import each_database


def test_a_new_schedule_has_a_next_run_and_the_given_fields(mine):
    made = mine.create(
        "digest",
        task="mail.send",
        trigger=Cron("0 9 * * mon-fri", timezone="Asia/Seoul"),
        args=[1, "zwei"],
        kwargs={"ключ": None},
        queue="mail",
        priority=3,
        options={"time_limit": 5},
        catch_up="all",
        catch_up_window=timedelta(hours=1),
        expires_after=90,
        max_runs=7,
        description="every morning",
        tags=["b", "a", "b"],
    )

    read = mine.get("digest")

    assert read == made
    assert read.trigger == Cron("0 9 * * mon-fri", timezone="Asia/Seoul")
    assert read.next_run_at == START.replace(day=23, hour=0)
    assert (read.args, read.kwargs) == ([1, "zwei"], {"ключ": None})
    assert read.options == {"queue": "mail", "priority": 3, "time_limit": 5}
    assert (read.catch_up_window, read.expires_after) == (
        timedelta(hours=1),
        timedelta(seconds=90),
    )
    assert (read.tags, read.version, read.run_count) == (["a", "b"], 1, 0)
    assert read.created_at == START


def test_a_name_is_unique_for_each_owner(dynbeat, mine):
    mine.create("digest", task="t", trigger=MINUTELY)
    dynbeat.schedules.for_owner("user:43").create("digest", task="t", trigger=MINUTELY)

    with pytest.raises(ScheduleExistsError) as caught:
        mine.create("digest", task="other", trigger=MINUTELY)

    assert (caught.value.owner, caught.value.name) == ("user:42", "digest")
    assert mine.get("digest").task == "t"


@each_database
def test_a_name_of_255_characters_outside_the_bmp_is_stored(mine):
    mine.create("🎉" * 255, task="t", trigger=MINUTELY)

    assert mine.get("🎉" * 255).name == "🎉" * 255
