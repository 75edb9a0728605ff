"""The essential fault tests: one for each kind of fault.

The whole suite takes an hour on two cores. ``make test-rest`` runs only these.
"""

import os
from collections.abc import Sequence

import pytest

from tests.support.combinations import FAULTS_VARIABLE

#: Parts of test names, one for each kind of fault.
ESSENTIAL = (
    "killed_in_a_pass_loses_and_duplicates_no_run[postgresql-redis-committed-one-beat]",
    "killed_in_a_pass_loses_and_duplicates_no_run[postgresql-redis-published-one-beat]",
    "after_a_kill_during_publish",
    "suspended_for_longer_than_all_timeouts_duplicates_no_run[postgresql-redis-committed]",
    "runs_whose_messages_were_lost_start_once",
    "a_pass_reconnects_when_redis_stops_answering",
    "restarted_redis_lost_are_sent_again[postgresql-redis-stop]",
    "a_failover_loses_and_duplicates_no_run",
    "killed_worker_of_a_quorum_queue_loses_and_duplicates_no_run",
    "silent_listen_connection_is_replaced",
    "restart_of_the_database_loses_and_duplicates_no_run[postgresql-redis-kill]",
    "session_terminated_in_a_pass_loses_and_duplicates_no_run[postgresql-redis-committed]",
    "locked_rows_delay_no_other_run",
    "pool_process_is_killed_has_failed[postgresql-redis-hold]",
    "are_lost_soon_after_the_node_timeout[postgresql-redis-prefork]",
    "rabbitmq_redelivers_unacknowledged_starts_again[postgresql-rabbitmq-pool-killed]",
    "redis_redelivers_unacknowledged_starts_again[postgresql-redis-orphans]",
    "idempotent_runs_of_a_killed_worker_start_once_more[postgresql-redis-prefork]",
    "whose_message_goes_to_another_worker_starts_again_on_rabbitmq",
    "of_a_recycled_pool_process_is_written_by_its_worker[postgresql-redis-max_tasks]",
    "pool_that_cannot_terminate_warns_once",
    "late_outcome_of_an_attempt_does_not_change_the_next",
    "row_of_beat_shows_an_unreachable_broker",
    "random_edits_and_faults",
)
#: Fast files: most of their tests start no process.
QUICK_FILES = ("test_clocks.py", "test_rolling_upgrade.py")


def is_slow(item: pytest.Item) -> bool:
    """Return whether the item is a fault test that starts processes, which is slow."""
    return item.path.parent.name == "faults" and item.path.name not in QUICK_FILES


def nonessential(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the slow fault tests of ``items`` that are not essential, to deselect them.

    The list is empty unless the environment requests only essential tests. Raises pytest.UsageError
    for a part in ESSENTIAL that matches no test.
    """
    if os.environ.get(FAULTS_VARIABLE) != "essential":
        return []
    slow = [item for item in items if is_slow(item)]
    stale = [part for part in ESSENTIAL if not any(part in item.name for item in slow)]
    if slow and stale:
        message = f"no fault test has a name with: {', '.join(stale)}"
        raise pytest.UsageError(message)
    return [item for item in slow if not any(part in item.name for part in ESSENTIAL)]
