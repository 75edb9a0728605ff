"""The next fire times of a schedule in two zones, with notes on clock changes and skips."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from celery_dynbeat import Cron, Every, InvalidScheduleError, ScheduleNotFoundError
from celery_dynbeat.insights.statistics.upcoming import next_fire_times
from tests.support.applications import execute, instants
from tests.support.suites import one_database

NEW_YORK, SEOUL = ZoneInfo("America/New_York"), ZoneInfo("Asia/Seoul")
#: Two days before New York's clock goes back.
BEFORE_CHANGE = datetime(2026, 10, 30, 12, tzinfo=UTC)


def times_of(dynbeat, name="digest", **given):
    return next_fire_times(dynbeat.context, owner="user:42", name=name, **given)


@pytest.fixture
def digest(mine, clock):
    clock.move_to(BEFORE_CHANGE)
    return mine.create("digest", task="t", trigger=Cron("30 1 * * *", timezone=str(NEW_YORK)))


@pytest.mark.usefixtures("digest")
def test_they_are_those_of_upcoming_with_the_skipped_ones(dynbeat, mine):
    with dynbeat.acting(actor="alice"):
        mine.skip("digest", instants(mine.upcoming("digest"))[1], reason="holiday")

    found = times_of(dynbeat, count=6)

    expected = mine.upcoming("digest", count=6, with_skipped=True)
    given = [(fire.at, fire.is_skipped, fire.skip_reason) for fire in found]
    assert given == [(each.at, each.is_skipped, each.reason) for each in expected]
    assert [fire.skip_reason for fire in found if fire.is_skipped] == ["skipped by alice: holiday"]


@one_database
@pytest.mark.usefixtures("digest")
def test_each_has_its_local_time_in_the_zones_of_the_schedule_and_of_the_viewer(dynbeat):
    for fire in times_of(dynbeat, count=4, viewer_zone=SEOUL):
        # Not ==: Python finds a repeated wall time equal to no other instant.
        instants = {each.timestamp() for each in (fire.at, fire.local, fire.viewer_local)}
        assert len(instants) == 1
        assert (fire.at.tzinfo, fire.local.tzinfo) == (UTC, NEW_YORK)
        assert (fire.local.hour, fire.local.minute) == (1, 30)
        assert fire.viewer_local.tzinfo == SEOUL
        shown = fire.to_dict()
        assert shown["local"] == fire.local.isoformat()
        assert shown["viewer_local"].endswith("+09:00")


@one_database
@pytest.mark.usefixtures("digest")
def test_without_a_viewer_the_zone_is_that_of_the_schedule(dynbeat):
    assert all(fire.viewer_local.tzinfo == NEW_YORK for fire in times_of(dynbeat))


@one_database
@pytest.mark.usefixtures("digest")
def test_a_change_of_the_clock_is_noted(dynbeat):
    notes = {fire.local.date().isoformat(): fire.clock_note for fire in times_of(dynbeat, count=4)}

    assert notes["2026-10-31"] is None
    assert "twice on 2026-11-01" in notes["2026-11-01"]
    assert "back by 1 hour" in notes["2026-11-02"]
    assert notes["2026-11-03"] is None


@one_database
def test_a_paused_damaged_or_finished_schedule_has_none(dynbeat, mine, clock):
    mine.create("paused", task="t", trigger=Every(60), enabled=False)
    mine.create("damaged", task="t", trigger=Every(60))
    mine.create("ending", task="t", trigger=Every(60), end_at=clock.now() + timedelta(seconds=90))
    execute(dynbeat, "UPDATE dynbeat_schedule SET trigger_spec = '?' WHERE name = 'damaged'")

    assert [len(times_of(dynbeat, name)) for name in ("paused", "damaged", "ending")] == [0, 0, 1]


@one_database
@pytest.mark.usefixtures("digest")
def test_values_are_checked(dynbeat):
    with pytest.raises(ScheduleNotFoundError):
        times_of(dynbeat, "unknown")
    with pytest.raises(InvalidScheduleError, match="count"):
        times_of(dynbeat, count=1_001)
