"""The database becomes unreachable under load, and reachable again."""

import pytest

from tests.support.failpoints import GATE_VARIABLE, HOLD_VARIABLE, HOLDING, held_marker
from tests.support.waiting import wait_until


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_restart_of_the_database_loses_and_duplicates_no_run(
    busy, workload, database_server, end
):
    with workload.fault():
        getattr(database_server, end)()
        busy.meet_the_fault()
        database_server.start()

    workload.verify(f"database server ended by {end}, and started")
    assert busy.is_unharmed()


def test_terminated_sessions_lose_and_duplicate_no_run(busy, workload, database_faults):
    terminated = 0
    with workload.fault():
        busy.open()
        for stroke in range(5):
            terminated += database_faults.terminate_sessions()
            workload.wait_for_starts(4 + 20 * stroke + 10)

    workload.verify(f"{terminated} database sessions terminated, 5 times")
    assert busy.is_unharmed()


@pytest.mark.parametrize("point", ["recorded", "committed", "published"])
def test_a_session_terminated_in_a_pass_loses_and_duplicates_no_run(
    fault_site, workload, database_faults, point
):
    gate = fault_site.gate("pass")
    beat = fault_site.beat(scheduler=HOLDING, **{HOLD_VARIABLE: point, GATE_VARIABLE: str(gate)})
    fault_site.worker(pool="threads").wait_for_log("ready.")
    beat.wait_for_log("beat started")
    workload.create_one_offs(50, first_in=1)
    wait_until(held_marker(gate).exists, within=15)

    with workload.fault():
        assert database_faults.terminate_sessions()
        gate.touch()

    workload.verify(f"sessions terminated while beat is at {point!r}")
    assert beat.exit_status is None


def test_no_run_is_lost_while_the_database_has_no_free_connection(busy, workload, database_faults):
    with workload.fault(), database_faults.exhausted():
        busy.meet_the_fault()

    workload.verify("no connection free")
    assert busy.is_unharmed()


def test_a_failover_to_a_read_only_server_loses_and_duplicates_no_run(
    busy, workload, database_faults
):
    with workload.fault(), database_faults.read_only():
        busy.meet_the_fault()

    workload.verify("failover to a read-only server, and back")
    assert busy.is_unharmed()
