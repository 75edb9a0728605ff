"""usage: the schedules and runs of an owner, and the limits on their number."""

import pytest

from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, application


@pytest.fixture
def dynbeat(database_url, clock):
    settings = {"owner_limits": {"user:1": {"max_running": 1}}, "max_schedules_per_owner": 3}
    with application(database_url, clock=clock, **settings) as made:
        made.schedules.for_owner("user:1").create("n", task="t", trigger=MINUTELY)
        yield made


def test_usage_has_a_row_for_each_limit(shown, as_json, dynbeat):
    assert shown("usage", "--owner", "user:1") == [
        "user:1\t1\t3\t2\tdynbeat_max_schedules_per_owner",
        "user:1\t0\t1\t1\tdynbeat_owner_limits: max_running",
    ]
    assert as_json("usage", "--owner", "user:1") == [dynbeat.schedules.usage("user:1").to_dict()]


def test_usage_of_the_application(shown, command):
    # stdout has only rows.
    assert shown("usage") == []
    assert command("usage").stderr == "owner '' has 0 schedules, without a limit\n"


def test_the_owners_whose_runs_wait_are_listed(as_json, dynbeat):
    mine = dynbeat.schedules.for_owner("user:1")
    for _ in range(3):
        mine.run_now("n")
    ManualBeat(dynbeat).run_until_idle()

    [found] = as_json("usage", "--all-owners", "--waiting")
    assert (found["owner"], found["waiting"], found["running"]) == ("user:1", 2, 1)
    assert (found["max_running"], found["running_key"]) == (1, "user:1")
