"""The collector runs rarely within the block, and as before after it."""

import contextlib
import gc

import pytest

from celery_dynbeat.cli.base.garbage import collecting_rarely


@pytest.fixture(autouse=True)
def threshold():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_the_threshold_is_restored_also_after_an_error():
    gc.set_threshold(600, 11, 12)

    with contextlib.suppress(KeyError), collecting_rarely():
        assert gc.get_threshold()[0] > 10_000
        raise KeyError

    assert gc.get_threshold()[:2] == (600, 11)


@pytest.mark.parametrize("given", [0, 200_000], ids=["off", "higher"])
def test_a_collector_that_is_off_or_runs_more_rarely_stays_so(given):
    gc.set_threshold(given)

    with collecting_rarely():
        assert gc.get_threshold()[0] == given
