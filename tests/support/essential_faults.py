"""What of the fault suite is run each time: one test of each kind of fault.

The whole of it takes an hour on two cores. ``make faults FAULTS=essential`` runs these.
"""

import os
from collections.abc import Sequence

import pytest

from tests.support.combinations import FAULTS_VARIABLE

#: Parts of names of tests: one for each kind of fault.
ESSENTIAL = (
    "killed_in_its_pass_loses_and_doubles_nothing[postgresql-redis-committed-alone]",
    "killed_in_its_pass_loses_and_doubles_nothing[postgresql-redis-published-alone]",
    "killed_in_the_middle_of_its_publish",
    "killed_in_its_sweep_loses_and_doubles_nothing[postgresql-redis-alone]",
    "wakes_up_after_all_timeouts_doubles_nothing[postgresql-redis-committed]",
    "what_was_sent_and_forgotten_starts_once",
    "redis_that_falls_silent_is_given_up_in_a_pass",
    "restarted_redis_forgot_is_sent_again[postgresql-redis-stop]",
    "a_failover_loses_and_doubles_nothing",
    "killed_worker_of_a_quorum_queue_loses_and_doubles_nothing",
    "silent_listen_connection_is_replaced",
    "restarted_database_loses_and_doubles_nothing[postgresql-redis-kill]",
    "session_terminated_in_a_pass_loses_and_doubles_nothing[postgresql-redis-committed]",
    "rows_that_are_locked_delay_no_others",
    "pool_process_is_killed_has_failed[postgresql-redis-hold]",
    "are_lost_soon_after_the_node_timeout[postgresql-redis-prefork]",
    "that_may_be_rerun_start_once_more[postgresql-redis-prefork]",
    "rabbitmq_delivers_again_at_once_wait_for_no_start[postgresql-rabbitmq-prefork]",
    "whose_message_goes_to_another_worker_starts_anew_on_redis",
    "whose_message_goes_to_another_worker_starts_anew_on_rabbitmq",
    "of_a_recycled_pool_process_is_written_by_its_worker[postgresql-redis-max_tasks]",
    "pool_that_cannot_says_so_once",
    "late_outcome_of_an_attempt_does_not_touch_the_next",
    "late_retry_of_an_attempt_starts_nothing",
    "row_of_beat_tells_of_a_broker_that_is_away",
    "a_long_bad_day",
)
#: These are cheap: no process takes part in most of them.
QUICK_FILES = ("test_clocks.py", "test_rolling_upgrade.py")


def is_slow(item: pytest.Item) -> bool:
    """Return whether a fault test takes processes, and so its time."""
    return item.path.parent.name == "faults" and item.path.name not in QUICK_FILES


def nonessential(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the long ones of ``items`` to leave out, when only the essential ones are asked for.

    Raises pytest.UsageError for a name in ESSENTIAL that no test bears.
    """
    if os.environ.get(FAULTS_VARIABLE) != "essential":
        return []
    ours = [item for item in items if is_slow(item)]
    stale = [part for part in ESSENTIAL if not any(part in item.name for item in ours)]
    if ours and stale:
        message = f"no fault test is called so: {', '.join(stale)}"
        raise pytest.UsageError(message)
    return [item for item in ours if not any(part in item.name for part in ESSENTIAL)]
