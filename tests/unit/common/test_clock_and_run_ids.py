"""The database's clock carried on, clocks that stand still, and ids that sort by time."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from celery_dynbeat.common.clock import DatabaseClock
from celery_dynbeat.common.run_ids import created_at, is_run_id, new_run_id
from celery_dynbeat.testing import FrozenClock

START = datetime(2026, 11, 21, 9, tzinfo=UTC)


class Source:
    """A database's clock and a monotonic one, both moved by hand."""

    def __init__(self):
        self.instant, self.elapsed, self.readings, self.away = START, 1000.0, 0, False

    def read(self):
        self.readings += 1
        if self.away:
            raise ConnectionError
        return self.instant

    def monotonic(self):
        return self.elapsed

    def advance(self, seconds):
        self.elapsed += seconds


@pytest.fixture
def source():
    return Source()


@pytest.fixture
def clock(source):
    return DatabaseClock(source.read, monotonic=source.monotonic)


def test_between_two_readings_the_monotonic_clock_counts(source, clock):
    clock.now()
    source.advance(59.5)

    assert clock.now() == START + timedelta(seconds=59.5)
    assert source.readings == 1


def test_after_a_minute_the_database_is_asked_again(source, clock):
    clock.now()
    source.advance(61)
    source.instant = START + timedelta(seconds=70)

    assert clock.now() == START + timedelta(seconds=70)


def test_the_clock_outlives_a_database_that_is_away(source, clock):
    clock.now()
    source.away = True
    source.advance(61)

    assert clock.now() == clock.now() == START + timedelta(seconds=61)
    assert source.readings == 2


def test_without_any_reading_there_is_no_time(source, clock):
    source.away = True

    with pytest.raises(ConnectionError):
        clock.now()


def test_a_reading_counts_for_the_middle_of_its_round_trip(source):
    def slow():
        source.advance(2)
        return START

    assert DatabaseClock(slow, monotonic=source.monotonic).now() == START + timedelta(seconds=1)


def test_a_frozen_clock_moves_only_when_told():
    clock = FrozenClock(START)

    assert clock.now() == clock.now() == START
    assert clock.advance(timedelta(seconds=1)) == clock.now() == START + timedelta(seconds=1)
    assert clock.move_to(START) == clock.now() == START


def test_a_frozen_clock_refuses_what_has_no_zone():
    with pytest.raises(ValueError, match="naive"):
        FrozenClock(datetime(2026, 1, 1))  # noqa: DTZ001 - naive on purpose


def test_ids_are_uuids_of_version_7_that_sort_by_time():
    instants = [START + timedelta(milliseconds=number) for number in range(50)]

    made = [new_run_id(instant) for instant in instants]

    assert made == sorted(made)
    assert {UUID(run_id).version for run_id in made} == {7}
    assert UUID(made[0]).int >> 80 == START.timestamp() * 1_000
    assert all(is_run_id(run_id) for run_id in made)


def test_ids_of_one_instant_differ():
    assert len({new_run_id(START) for _ in range(1_000)}) == 1_000


@pytest.mark.parametrize(
    "text",
    [
        None,
        7,
        "",
        "x",
        "4f0f8a0e-7f5c-4a3e-9d2b-0a1b2c3d4e5f",
        "{01a1fd55-7a80-7da9-ade5-7b449e290722}",
        "01A1FD55-7A80-7DA9-ADE5-7B449E290722",
    ],
)
def test_what_a_message_claims_may_be_no_run_id(text):
    assert not is_run_id(text)


def test_a_run_id_says_when_it_was_made():
    assert created_at(new_run_id(START)) == START
