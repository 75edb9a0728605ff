"""The database's clock, the frozen clock, and run ids that sort by time."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from celery_dynbeat.common.clock import DatabaseClock
from celery_dynbeat.common.run_ids import created_at, is_run_id, new_run_id
from celery_dynbeat.testing import FrozenClock

START = datetime(2026, 11, 21, 9, tzinfo=UTC)


class Source:
    """A database's clock and a monotonic clock that the test moves."""

    def __init__(self):
        self.instant, self.elapsed, self.readings, self.unreachable = START, 1000.0, 0, False

    def read(self):
        self.readings += 1
        if self.unreachable:
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


def test_after_a_minute_the_database_is_read_again(source, clock):
    clock.now()
    source.advance(61)
    source.instant = START + timedelta(seconds=70)

    assert clock.now() == START + timedelta(seconds=70)


def test_the_clock_continues_while_the_database_is_unreachable(source, clock):
    clock.now()
    source.unreachable = True
    source.advance(61)

    assert clock.now() == clock.now() == START + timedelta(seconds=61)
    assert source.readings == 2


def test_during_a_reading_others_continue_from_the_last_one(source):
    # A caller that holds the last connection of a pool would wait for its own connection.
    def read():
        source.readings += 1
        if source.readings == 2:
            assert reading.now() == START + timedelta(seconds=61)
        return source.instant

    reading = DatabaseClock(read, monotonic=source.monotonic)
    reading.now()
    source.advance(61)

    reading.now()
    assert source.readings == 2


def test_without_any_reading_the_clock_raises(source, clock):
    source.unreachable = True

    with pytest.raises(ConnectionError):
        clock.now()


def test_a_reading_counts_for_the_middle_of_its_round_trip(source):
    def read():
        source.advance(0.004)
        return START

    middle = START + timedelta(milliseconds=2)
    assert DatabaseClock(read, monotonic=source.monotonic).now() == middle
    assert source.elapsed == pytest.approx(1000.004)


def test_a_reading_that_waits_for_its_connection_is_repeated(source):
    def read():
        source.readings += 1
        source.advance(0.002 if source.readings > 1 else 0.2)
        return START + timedelta(seconds=source.elapsed)

    clock = DatabaseClock(read, monotonic=source.monotonic)

    # Without the second reading, the clock would be 100 ms fast.
    error = clock.now() - (START + timedelta(seconds=source.elapsed))
    assert abs(error) <= timedelta(milliseconds=1)
    assert source.readings == 2


def test_a_second_reading_that_fails_leaves_the_first(source):
    def read():
        source.readings += 1
        source.advance(0.2)
        if source.readings > 1:
            raise ConnectionError
        return START

    assert DatabaseClock(read, monotonic=source.monotonic).now() == START + timedelta(seconds=0.3)


def test_a_frozen_clock_moves_only_when_the_test_moves_it():
    clock = FrozenClock(START)

    assert clock.now() == clock.now() == START
    assert clock.advance(timedelta(seconds=1)) == clock.now() == START + timedelta(seconds=1)
    assert clock.move_to(START) == clock.now() == START


def test_ids_are_uuids_of_version_7_that_sort_by_time():
    instants = [START + timedelta(milliseconds=number) for number in range(50)]

    ids = [new_run_id(instant) for instant in instants]

    assert ids == sorted(ids)
    assert {UUID(run_id).version for run_id in ids} == {7}
    assert UUID(ids[0]).int >> 80 == START.timestamp() * 1_000
    assert all(is_run_id(run_id) for run_id in ids)


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
def test_other_values_are_no_run_ids(text):
    assert not is_run_id(text)


def test_a_run_id_contains_the_instant_of_its_creation():
    assert created_at(new_run_id(START)) == START


def test_a_forked_process_makes_other_ids():
    # In a process without threads: a fork of this one may warn.
    program = """
import os
from datetime import UTC, datetime
from celery_dynbeat.common.run_ids import new_run_id
now = datetime(2026, 11, 21, tzinfo=UTC)
new_run_id(now)
child = os.fork()
if child:
    # The outputs of two processes can mix.
    os.waitpid(child, 0)
print(*(new_run_id(now) for _ in range(100)), flush=True)
"""
    made = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout.split()

    assert len(made) == len(set(made)) == 200
