"""The bins of a histogram."""

from datetime import UTC, datetime, timedelta

import pytest

from celery_dynbeat.insights.timeline import MAX_BINS, bins_of

START = datetime(2026, 11, 21, 9, 0, 30, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


@pytest.mark.parametrize(
    ("length", "width"),
    [
        (timedelta(seconds=1), MINUTE),
        (15 * MINUTE, MINUTE),
        (6 * HOUR, MINUTE),
        (DAY, 5 * MINUTE),
        (7 * DAY, 30 * MINUTE),
        (28 * DAY, 2 * HOUR),
        (366 * DAY, DAY),
    ],
)
def test_bins_have_a_round_width_that_grows_with_the_window(length, width):
    bins = bins_of(START, START + length)

    assert {end - start for start, end in bins} == {width}
    assert len(bins) <= MAX_BINS + 1


@pytest.mark.parametrize("length", [MINUTE, 59 * MINUTE, 6 * HOUR, 7 * HOUR, 28 * DAY])
def test_bins_follow_each_other_and_contain_the_window(length):
    bins = bins_of(START, START + length)

    width = bins[0].end - bins[0].start
    assert bins[0].start <= START < bins[0].end
    assert bins[-1].start < START + length <= bins[-1].end
    assert [span.end for span in bins[:-1]] == [span.start for span in bins[1:]]
    assert (bins[0].start - datetime(2026, 11, 21, tzinfo=UTC)) % width == timedelta(0)
