"""What is left of a skipped row adds up, whichever of its fire times are taken out."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from celery_dynbeat import Cron
from celery_dynbeat.planning.backfill_planning import choose, fire_times, rest_of
from celery_dynbeat.planning.schedule_spec import ScheduleSpec

HOURLY = Cron("0 * * * *", timezone="UTC")
START = datetime(2026, 11, 21, 9, tzinfo=UTC)
HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Skipped:
    scheduled_for: datetime
    fire_count: int
    error: str | None = "missed"


@given(count=st.integers(1, 20), first=st.integers(0, 30), length=st.integers(1, 30))
def test_what_is_left_and_what_is_taken_are_as_many_as_before(count, first, length):
    row = Skipped(START, count)
    # Consecutive, up to the row's newest at the most: the 0th.
    taken = [START - back * HOUR for back in range(first, max(first - length, -1), -1)]
    covered = [at for at in taken if at > START - count * HOUR]

    rest = rest_of(HOURLY, row, taken)

    assert (rest is None) == (not covered)
    if rest is not None:
        older = 0 if rest.older is None else rest.older.count
        assert rest.newer + older + len(covered) == count
        assert rest.newer == (START - taken[-1]) / HOUR
    if rest is not None and rest.older is not None:
        assert (rest.older.newest, rest.older.reason) == (taken[0] - HOUR, "missed")


def test_a_row_of_another_rule_stands_for_nothing():
    row = Skipped(START + timedelta(minutes=30), 5)

    assert rest_of(HOURLY, row, [START]) is None


def test_the_oldest_part_is_kept_where_the_rule_has_no_fire_time_before_it():
    class Only:
        counts_fast = True

        def next_after(self, instant):
            return START if instant < START else None

        def count_until(self, **_span):
            return 0

        def latest_until(self, **_span):
            return None

    rest = rest_of(Only(), Skipped(START, 3), [START])

    assert (rest.newer, rest.older.count) == (0, 2)
    assert rest.older.newest == START - timedelta(microseconds=1)


def test_fire_times_lie_in_the_range_and_in_the_span_of_the_rule():
    rule = ScheduleSpec(trigger=HOURLY, start_at=START, end_at=START + 3 * HOUR)

    found = fire_times(rule, start=START - 5 * HOUR, end=START + 9 * HOUR, limit=100)

    assert found == [START, START + HOUR, START + 2 * HOUR, START + 3 * HOUR]
    assert fire_times(rule, start=START, end=START + HOUR, limit=1) == [START]


def test_choosing_ends_before_the_first_that_finds_no_room():
    window = [START + number * HOUR for number in range(5)]

    dealt, wanted = choose(window, present={window[1], window[3]}, room=2)

    assert (dealt, wanted) == (window[:4], [window[0], window[2]])
