import pytest

from benchmarks.gate import (
    MAX_TIME_NOISE,
    MIN_NOISE,
    MIN_TIME_NOISE,
    Limit,
    Rounds,
    compare,
    read_limits,
)

LIMITS = {"beat: CPU of a run": Limit(ratio=1.5, noise=0.1)}


@pytest.mark.parametrize("ratio", [0.9, 1.5, 1.64])
def test_a_ratio_within_the_noise_of_its_limit_is_no_problem(ratio):
    assert compare({"beat: CPU of a run": ratio}, LIMITS) == []


def test_a_ratio_above_the_noise_of_its_limit_is_named_with_both():
    [problem] = compare({"beat: CPU of a run": 1.66}, LIMITS)

    assert problem.startswith("beat: CPU of a run is 1.660; the limit is 1.650")


def test_a_limit_without_its_figure_is_a_problem():
    [problem] = compare({}, LIMITS)

    assert problem.startswith("beat: CPU of a run was not measured")


def test_a_figure_without_a_limit_is_a_problem():
    [problem] = compare({"beat: CPU of a run": 1.5, "worker: statements": 2}, LIMITS)

    assert problem.startswith("worker: statements has no limit")


def test_the_ratio_of_rounds_is_the_median_of_the_ratios_of_each_round():
    rounds = Rounds("us")
    # The machine was slower in the second round, for the baseline as well.
    for value, baseline in [(30, 10), (80, 40), (50, 20)]:
        rounds.add(value, baseline)

    assert rounds.limit().ratio == 2.5


def test_the_noise_of_rounds_grows_with_their_range_between_two_bounds():
    ones = [1.0] * 5
    wide = Rounds("us", values=[6, 8, 10, 12, 14], baselines=ones)
    between = Rounds("us", values=[8.9, 9, 10, 11, 11.2], baselines=ones)
    narrow = Rounds("us", values=[10] * 5, baselines=ones)

    assert wide.limit().noise == MAX_TIME_NOISE
    assert between.limit().noise == pytest.approx(1.5 * 2.15 / 10, abs=0.001)
    assert narrow.limit().noise == MIN_TIME_NOISE


def test_the_least_of_counts_is_compared_because_heartbeats_only_add_to_them():
    assert Rounds("", values=[6, 7, 6.5]).limit() == Limit(ratio=6, noise=MIN_NOISE)


def test_one_more_statement_module_or_round_trip_exceeds_a_count_of_few():
    limit = Rounds("", values=[2.0]).limit()

    assert compare({"worker: statements": 3.0}, {"worker: statements": limit})


#: One statement or two, depending on the machine.
HELD = {"worker: statements of a run", "worker: round trips of a run"}


def test_each_recorded_limit_has_a_ratio_above_zero_and_a_noise_that_shows_a_doubling():
    limits = read_limits()

    assert limits.keys() > HELD
    assert all(
        limit.ratio > 0 and MIN_NOISE <= limit.noise < 1
        for name, limit in limits.items()
        if name not in HELD
    )
