"""The next fire times of a schedule on its clock, with notes on clock changes."""

from dataclasses import replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from celery_dynbeat import Cron

NEW_YORK = ZoneInfo("America/New_York")
#: Two days before New York's clock goes back.
BEFORE_CHANGE = datetime(2026, 10, 30, 12, tzinfo=UTC)
RULE = Cron("30 1 * * *", timezone=str(NEW_YORK))


@pytest.fixture
def digest(mine, clock):
    clock.move_to(BEFORE_CHANGE)
    return mine.create("digest", task="t", trigger=RULE)


@pytest.mark.usefixtures("digest")
def test_each_has_its_local_time_in_the_zone_of_the_schedule(mine):
    for fire in mine.upcoming("digest", count=4):
        # Not ==: Python finds a repeated wall time equal to no other instant.
        assert fire.fire_at.timestamp() == fire.local.timestamp()
        assert (fire.fire_at.tzinfo, fire.local.tzinfo) == (UTC, NEW_YORK)
        assert (fire.local.hour, fire.local.minute) == (1, 30)
        assert fire.to_dict()["local"] == fire.local.isoformat()


@pytest.mark.usefixtures("digest")
def test_a_change_of_the_clock_is_noted(mine):
    notes = {each.local.date().isoformat(): each.note for each in mine.upcoming("digest", count=4)}

    assert notes["2026-10-31"] is None
    assert "twice on 2026-11-01" in notes["2026-11-01"]
    assert "back by 1 hour" in notes["2026-11-02"]
    assert notes["2026-11-03"] is None


@pytest.mark.usefixtures("digest")
def test_a_preview_and_an_explanation_show_the_same_fire_times(mine):
    found = mine.upcoming("digest", count=4)
    previewed = mine.preview(RULE, "digest", 4).fire_times

    assert mine.explain("digest", count=4).next == found
    # A preview shows them in the zone of the owner.
    assert [replace(each, local=each.fire_at.astimezone(NEW_YORK)) for each in previewed] == found


@pytest.mark.usefixtures("digest")
def test_the_note_of_a_skipped_fire_time_says_who_skipped_it(mine):
    first = mine.upcoming("digest")[0].fire_at
    mine.bound(actor="alice").skip("digest", first, reason="holiday")

    found = mine.upcoming("digest", with_skipped=True)[0]

    assert (found.is_skipped, found.note) == (True, "skipped by alice: holiday")
