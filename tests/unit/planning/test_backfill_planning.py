"""Fire times leave a skipped row, and the counts still add up."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dynbeat import Cron
from celery_dynbeat.planning import ScheduleSpec
from celery_dynbeat.planning.backfill_planning import fire_times, remainder_of
from celery_dynbeat.planning.plan import Skip

HOURLY = Cron("0 * * * *", timezone="UTC")
START = datetime(2026, 11, 21, 9, tzinfo=UTC)
HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Skipped:
    fire_at: datetime
    fire_count: int
    error: str | None = "missed"


@given(count=st.integers(1, 20), first=st.integers(0, 30), length=st.integers(1, 30))
def test_removed_and_remaining_fire_times_add_up_to_the_count_of_the_row(count, first, length):
    row = Skipped(START, count)
    # Consecutive fire times; number 0 is the row's newest.
    removed = [START - back * HOUR for back in range(first, max(first - length, -1), -1)]
    covered = [at for at in removed if at > START - count * HOUR]

    remainder = remainder_of(HOURLY, row, removed)

    assert (remainder is None) == (not covered)
    if remainder is not None:
        older = 0 if remainder.older is None else remainder.older.count
        assert remainder.newer + older + len(covered) == count
        assert remainder.newer == (START - removed[-1]) / HOUR
    if remainder is not None and remainder.older is not None:
        assert (remainder.older.newest, remainder.older.reason) == (removed[0] - HOUR, "missed")


def test_a_row_of_another_trigger_covers_nothing():
    row = Skipped(START + timedelta(minutes=30), 5)

    assert remainder_of(HOURLY, row, [START]) is None


@pytest.mark.parametrize(
    ("removed", "left"), [([START - HOUR, START], 2), ([START], 2), ([START - HOUR], None)]
)
def test_a_row_from_before_the_trigger_changed_loses_its_newest_fire_time_only(removed, left):
    remainder = remainder_of(HOURLY, Skipped(START, 3), removed, is_of_trigger=False)

    if left is None:
        assert remainder is None
    else:
        older = Skip(START - timedelta(microseconds=1), left, "missed")
        assert (remainder.newer, remainder.older) == (0, older)


def test_a_row_of_one_fire_time_from_before_the_trigger_changed_has_no_rest():
    remainder = remainder_of(HOURLY, Skipped(START, 1), [START], is_of_trigger=False)

    assert (remainder.newer, remainder.older) == (0, None)


def test_the_older_fire_times_are_recorded_if_the_trigger_has_none_before_the_removed():
    class Only:
        counts_fast = True

        def next_after(self, instant):
            return START if instant < START else None

        def count_until(self, **_span):
            return 0

        def latest_until(self, **_span):
            return None

    remainder = remainder_of(Only(), Skipped(START, 3), [START])

    assert (remainder.newer, remainder.older.count) == (0, 2)
    assert remainder.older.newest == START - timedelta(microseconds=1)


def test_fire_times_are_within_the_span_and_within_start_at_and_end_at():
    spec = ScheduleSpec(trigger=HOURLY, start_at=START, end_at=START + 3 * HOUR)

    found = fire_times(spec, after=START - 5 * HOUR, until=START + 9 * HOUR, limit=100)

    assert found == [START, START + HOUR, START + 2 * HOUR, START + 3 * HOUR]
    within = fire_times(spec, after=START, until=START + 2 * HOUR, limit=100)
    assert within == [START + HOUR], "neither the first instant nor the last one counts"
    assert fire_times(spec, after=START, until=START + 9 * HOUR, limit=1) == [START + HOUR]
