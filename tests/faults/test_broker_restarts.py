"""The broker restarts under load, or starts after beat."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from celery_dynbeat import Every
from tests.support.fault_summary import SUMMARY_PROPERTY
from tests.support.waiting import wait_until

LATER_THAN_ANY_TEST = 3_600


@pytest.fixture
def _short_resend_after(fault_site):
    """Make beat resend messages soon."""
    fault_site.config["dynbeat_resend_after"] = 2


@pytest.fixture
def _long_resend_after(fault_site):
    """Make beat resend no message: the broker must preserve the messages that it confirmed."""
    fault_site.config["dynbeat_resend_after"] = LATER_THAN_ANY_TEST


def restart_under_load(busy, broker_server, end):
    """Restart the broker while runs are running and messages are in the queue."""
    getattr(broker_server, end)()
    for beat in busy.beats:
        beat.wait_for_log("pass failed")
    busy.worker.wait_for_log("Connection to broker lost")
    busy.open()
    broker_server.start()


def verify(busy, workload, fault):
    """Verify the workload, and that the beats are the ones that were started."""
    workload.verify(fault, within=120)
    assert [beat.exit_status for beat in busy.beats] == [None, None]


def sent_twice(site):
    """Return the number of runs that were published more than once."""
    published = Counter(entry["run_id"] for entry in site.event_log.read("before_publish"))
    return sum(number > 1 for number in published.values())


# About 15 s: a worker tries to reconnect after 2 s, then after 4 s.
@pytest.mark.combination(broker="redis")
@pytest.mark.parametrize("end", ["kill", "stop"])
@pytest.mark.usefixtures("_short_resend_after")
def test_messages_that_a_restarted_redis_lost_are_sent_again(
    busy, workload, fault_site, broker_server, end
):
    with workload.fault():
        restart_under_load(busy, broker_server, end)

    wait_until(lambda: sent_twice(fault_site), within=20)
    verify(busy, workload, f"Redis ended by {end}, and started, empty")


# About 20 s: RabbitMQ needs 6 s to start.
@pytest.mark.combination(broker="rabbitmq")
@pytest.mark.parametrize("busy", ["prefork"], indirect=True)
@pytest.mark.parametrize("end", ["kill", "stop"])
@pytest.mark.usefixtures("_long_resend_after")
def test_messages_that_rabbitmq_has_confirmed_survive_its_restart(
    busy, workload, broker_server, end
):
    with workload.fault():
        restart_under_load(busy, broker_server, end)

    verify(busy, workload, f"RabbitMQ ended by {end}, and started")


def all_have_passed(instants):
    return datetime.now(UTC) > max(instants)


def test_without_a_broker_at_the_start_nothing_is_claimed(fault_site, workload, broker_server):
    broker_server.stop()
    with workload.fault():
        beat = fault_site.beat().wait_for_log("pass failed")
        worker = fault_site.worker(pool="threads").wait_for_log("Cannot connect")
        workload.create_repeating(10, seconds=3, first_in=0.5)
        wait_until(lambda: all_have_passed(at for _, at in workload.expected), within=15)
        beat.wait_for_log("pass failed", times=beat.text.count("pass failed") + 1)
        assert fault_site.count_runs() == 0
        broker_server.start()

    workload.verify("no broker while beat and worker start")
    assert (beat.exit_status, worker.exit_status) == (None, None)


def test_fire_times_without_a_broker_follow_catch_up(fault_site, broker_server, record_property):
    broker_server.stop()
    beat = fault_site.beat().wait_for_log("pass failed")
    first = datetime.now(UTC) + timedelta(seconds=1)
    fire_times = [first + timedelta(seconds=n) for n in range(4)]
    every = {"task": "probe.record", "trigger": Every(timedelta(seconds=1))}
    for policy in ("all", "latest", "none"):
        period = {"start_at": first, "end_at": fire_times[-1]}
        fault_site.mine.create(policy, catch_up=policy, **every, **period)
    # "none" tolerates a delay of the dispatch timeout, which is 2 s.
    late = [at + timedelta(seconds=2) for at in fire_times]
    wait_until(lambda: all_have_passed(late), within=15)

    broker_server.start()
    fault_site.worker(pool="threads")
    beat.wait_for_log("beat works again", within=70)
    wait_until(lambda: accounted(fault_site) == dict.fromkeys(POLICIES, 4), within=30)
    wait_until(lambda: starts(fault_site).total() == 5, within=20)

    assert starts(fault_site) == {
        **dict.fromkeys(isoformat("all", fire_times), 1),
        **dict.fromkeys(isoformat("latest", fire_times[-1:]), 1),
    }
    record_property(SUMMARY_PROPERTY, "no broker for 4 fire times: all 4 starts, latest 1, none 0")


POLICIES = ("all", "latest", "none")


def isoformat(name, instants):
    return [(name, at.isoformat()) for at in instants]


def accounted(site):
    """Return the number of fire times of each schedule in the history."""
    counts = Counter()
    for run in site.all_runs():
        counts[run.name] += run.fire_count
    return dict(counts)


def starts(site):
    """Return the number of starts of each fire time of each schedule."""
    headers = [start["headers"] for start in site.event_log.starts()]
    return Counter((each["dynbeat_schedule"], each["dynbeat_fire_at"]) for each in headers)
