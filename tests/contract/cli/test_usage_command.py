"""usage: the schedules of an owner or a group, and the limits on their number."""

import pytest

from tests.support.applications import MINUTELY, application


@pytest.fixture
def dynbeat(database_url, clock):
    settings = {"owner_limits": {"org:7/": {"max_schedules": 5}}, "max_schedules_per_owner": 3}
    with application(database_url, clock=clock, **settings) as made:
        made.schedules.for_owner("org:7/user:1").create("n", task="t", trigger=MINUTELY)
        yield made


def test_usage_has_a_row_for_each_limit(shown, as_json, dynbeat):
    assert shown("usage", "--owner", "org:7/user:2") == [
        "org:7/\t1\t5\t4\tdynbeat_owner_limits: max_schedules",
        "org:7/user:2\t0\t3\t3\tdynbeat_max_schedules_per_owner",
    ]
    assert as_json("usage", "--owner", "org:7/user:1") == [
        dynbeat.schedules.usage("org:7/user:1").to_dict()
    ]


def test_usage_of_a_group_and_of_the_application(shown, command):
    assert shown("usage", "--owner", "org:7/") == [
        "org:7/\t1\t5\t4\tdynbeat_owner_limits: max_schedules"
    ]
    # stdout has only rows.
    assert shown("usage") == []
    assert command("usage").stderr == "owner '' has 0 schedules, without a limit\n"
