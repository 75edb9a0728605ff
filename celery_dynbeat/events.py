"""The names of what is logged: the ``event`` of each log record (see docs/reference/logging.md)."""

from enum import StrEnum


class Event(StrEnum):
    """One name for each kind of record, stable for those who filter their logs."""

    BEAT_STARTED = "beat_started"
    BEAT_STOPPED = "beat_stopped"
    APPLICATION_RECORDED = "application_recorded"
    APPLICATION_DIFFERS = "application_differs"
    APPLICATION_UNNAMED = "application_unnamed"
    CONFIG_SYNCED = "config_synced"
    CONFIG_REFUSED = "config_refused"
    RUNS_DISPATCHED = "runs_dispatched"
    RUNS_REPUBLISHED = "runs_republished"
    RUNS_BACKFILLED = "runs_backfilled"
    RETRIES_RECALLED = "retries_recalled"
    HISTORY_PRUNED = "history_pruned"
    RUN_REFUSED = "run_refused"
    RUN_REDELIVERED = "run_redelivered"
    RUN_PUT_OFF = "run_put_off"
    RUN_UNPUBLISHABLE = "run_unpublishable"
    OUTAGE_BEGAN = "outage_began"
    OUTAGE_ENDED = "outage_ended"
    RUN_LOST = "run_lost"
    SCHEDULE_PAUSED = "schedule_paused"
    SCHEDULE_SET_ASIDE = "schedule_set_aside"
    SCHEDULE_PASSED_OVER = "schedule_passed_over"
    TASK_UNKNOWN = "task_unknown"
    OWNER_COSTLY = "owner_costly"
    CONFIRM_UNKNOWN = "confirm_unknown"
    TERMINATE_FAILED = "terminate_failed"
    PASS_FAILED = "pass_failed"  # noqa: S105 - a pass of beat
    PASS_RECOVERED = "pass_recovered"  # noqa: S105
    LISTENER_FAILED = "listener_failed"
    LISTENER_DEAF = "listener_deaf"
    NOTIFY_FAILED = "notify_failed"
    OUTCOME_KEPT = "outcome_kept"
    OUTCOME_DROPPED = "outcome_dropped"
    OUTCOMES_HANDED_OVER = "outcomes_handed_over"
    POOL_CHECK_FAILED = "pool_check_failed"
    HEARTBEAT_FAILED = "heartbeat_failed"
