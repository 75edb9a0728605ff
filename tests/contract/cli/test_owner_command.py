"""owner: the schedules and runs of an owner, and the limits on their number."""

import pytest

from tests.support.applications import MINUTELY, application


@pytest.fixture
def dynbeat(database_url, clock):
    settings = {"owner_limits": {"user:1": {"max_running": 1}, "*": {"max_schedules": 3}}}
    with application(database_url, clock=clock, **settings) as made:
        made.schedules.for_owner("user:1").create("n", task="t", trigger=MINUTELY)
        yield made


def test_the_usage_is_shown_with_its_limits(shown, as_json, dynbeat):
    assert shown("owner", "user:1") == [
        "owner\tuser:1",
        "schedules\t1 of 3 (dynbeat_owner_limits: max_schedules)",
        "unfinished_runs\t0 of 1 (dynbeat_owner_limits: max_running)",
        "time_zone\tUTC",
    ]
    found = as_json("owner", "user:1")[0]
    assert dynbeat.schedules.usage("user:1").to_dict().items() <= found.items()
