"""The planning time of a claim, and the owners that come second: with a clock of the test."""

from datetime import UTC, datetime, timedelta

import pytest

from celery_dynbeat.beat.fairness import COSTLY_FOR, CostlyOwners, PlanningTime

NOW = datetime(2026, 7, 1, tzinfo=UTC)
MILLISECOND = 1_000_000
SECOND = timedelta(seconds=1)


class Clock:
    """CPU time in nanoseconds."""

    def __init__(self):
        self.ns = 0

    def __call__(self):
        return self.ns


@pytest.fixture
def clock():
    return Clock()


def planned(planning, clock, owner, *milliseconds):
    for each in milliseconds:
        clock.ns += each * MILLISECOND
        planning.add_row(owner)


def test_a_claim_plans_for_its_planning_time_and_no_longer(clock):
    planning = PlanningTime(clock=clock, cpu_clock=clock)

    planned(planning, clock, "one", 100, 149)
    assert planning.has_time_for("one")

    planned(planning, clock, "one", 1)
    assert not planning.has_time_for("one")
    assert not planning.has_time_for("other")


def test_costly_owners_have_a_planning_time_of_their_own(clock):
    planning = PlanningTime(costly_owners={"costly"}, clock=clock, cpu_clock=clock)

    planned(planning, clock, "costly", 49)
    assert planning.has_time_for("costly")
    planned(planning, clock, "costly", 1)
    assert not planning.has_time_for("costly")

    planned(planning, clock, "other", 249)
    assert planning.has_time_for("other")


def test_each_owner_whose_schedules_take_long_is_costly(clock):
    planning = PlanningTime(clock=clock, cpu_clock=clock)
    for number in range(20):
        planned(planning, clock, f"costly {number}", 10)
    for number in range(20):
        planned(planning, clock, f"plain {number}", 0)

    assert planning.costly_owners() == {f"costly {number}" for number in range(20)}


def test_cpu_time_of_other_processes_does_not_count(clock):
    processor = Clock()
    planning = PlanningTime(clock=clock, cpu_clock=processor)

    for _ in range(10):
        # 0.1 ms for a plain row; then a row that waited for the CPU.
        processor.ns += MILLISECOND // 10
        planned(planning, clock, "one", 0)
        processor.ns += MILLISECOND // 10
        planned(planning, clock, "one", 100)

    assert planning.has_time_for("one")
    assert planning.costly_owners() == frozenset()


def test_an_owner_is_costly_when_a_second_claim_finds_it_so():
    owners = CostlyOwners()

    assert owners.add({"one"}, NOW) == frozenset()
    assert owners.at(NOW) == frozenset()
    assert owners.add({"one", "two"}, NOW + SECOND) == {"one"}
    assert owners.add({"one", "two"}, NOW + SECOND) == {"two"}

    assert owners.at(NOW + SECOND) == {"one", "two"}


def test_two_distant_claims_make_no_owner_costly():
    owners = CostlyOwners()
    owners.add({"one"}, NOW)

    assert owners.add({"one"}, NOW + COSTLY_FOR) == frozenset()


def test_a_costly_owner_expires_some_seconds_after_the_last_claim_that_found_it_so():
    owners = CostlyOwners()
    owners.add({"one"}, NOW)
    owners.add({"one"}, NOW + SECOND)

    assert owners.at(NOW + COSTLY_FOR) == {"one"}
    assert owners.at(NOW + SECOND + COSTLY_FOR) == frozenset()


def test_the_number_of_costly_owners_is_bounded():
    owners = CostlyOwners()
    for number in range(150):
        owners.add({str(number)}, NOW)
        owners.add({str(number)}, NOW)

    assert owners.at(NOW) == {str(number) for number in range(50, 150)}
