"""Attributes of log records: the event and the name of the node (docs/reference/logging.md)."""

import os
from enum import StrEnum
from typing import NamedTuple


class Event(StrEnum):
    """The names of the log events. Log filters rely on them: a name does not change."""

    BEAT_STARTED = "beat_started"
    BEAT_STOPPED = "beat_stopped"
    APPLICATION_RECORDED = "application_recorded"
    APPLICATION_DIFFERS = "application_differs"
    APPLICATION_UNNAMED = "application_unnamed"
    ENCODING_LIMITED = "encoding_limited"
    SCHEMA_LOCKED = "schema_locked"
    CONFIG_SYNCED = "config_synced"
    CONFIG_REFUSED = "config_refused"
    RUNS_DISPATCHED = "runs_dispatched"
    RUNS_REPUBLISHED = "runs_republished"
    RUNS_BACKFILLED = "runs_backfilled"
    RUNS_RERUN = "runs_rerun"
    REQUEST_CANCELLED = "request_cancelled"
    RETRIES_RESENT = "retries_resent"
    HISTORY_PRUNED = "history_pruned"
    ZONES_REPLANNED = "zones_replanned"
    RUN_REFUSED = "run_refused"
    RUN_REDELIVERED = "run_redelivered"
    RUN_DEFERRED = "run_deferred"
    RUN_UNPUBLISHABLE = "run_unpublishable"
    OUTAGE_STARTED = "outage_started"
    OUTAGE_ENDED = "outage_ended"
    RUN_DECLINED = "run_declined"
    RUN_LOST = "run_lost"
    SCHEDULES_HELD = "schedules_held"
    PAUSES_ENDED = "pauses_ended"
    CALENDAR_IN_FORCE = "calendar_in_force"
    SCHEDULE_PAUSED = "schedule_paused"
    SCHEDULE_QUARANTINED = "schedule_quarantined"
    TRIGGER_UNSUPPORTED = "trigger_unsupported"
    TASK_UNKNOWN = "task_unknown"
    OWNER_COSTLY = "owner_costly"
    OWNER_LIMITS_FAILED = "owner_limits_failed"
    CONFIRM_UNKNOWN = "confirm_unknown"
    TERMINATE_FAILED = "terminate_failed"
    RUN_NOT_TERMINATED = "run_not_terminated"
    PASS_FAILED = "pass_failed"  # noqa: S105 - a pass of beat
    PASS_RECOVERED = "pass_recovered"  # noqa: S105
    LISTENER_FAILED = "listener_failed"
    LISTENER_UNUSABLE = "listener_unusable"
    NOTIFY_FAILED = "notify_failed"
    OUTCOME_BUFFERED = "outcome_buffered"
    OUTCOME_DROPPED = "outcome_dropped"
    OUTCOMES_HANDED_OVER = "outcomes_handed_over"
    POOL_CHECK_FAILED = "pool_check_failed"
    CHECK_IN_FAILED = "check_in_failed"
    PING_DROPPED = "ping_dropped"
    PING_FAILED = "ping_failed"
    HEARTBEAT_FAILED = "heartbeat_failed"
    ALERT_SENT = "alert_sent"
    ALERT_DELAYED = "alert_delayed"
    ALERT_DROPPED = "alert_dropped"
    RECIPIENT_FAILED = "recipient_failed"
    METRICS_EXPORTED = "metrics_exported"
    METRICS_UNAVAILABLE = "metrics_unavailable"
    METRICS_FAILED = "metrics_failed"
    ALERT_OPENED = "alert_opened"
    ALERT_RECOVERED = "alert_recovered"
    ALERT_FACT_DROPPED = "alert_fact_dropped"
    ALERT_RULES_INVALID = "alert_rules_invalid"
    ALERT_PASS_FAILED = "alert_pass_failed"  # noqa: S105
    ALERT_PASS_RECOVERED = "alert_pass_recovered"  # noqa: S105


class _Named(NamedTuple):
    pid: int
    name: str


# A log formatter cannot get the name in another way, because the standard library creates
# formatters without arguments.
_named: _Named | None = None


def set_node_name(name: str) -> None:
    """Set the name, unless this process has one: a worker with ``-B`` can run beat in a thread."""
    global _named  # noqa: PLW0603 - see above
    if _named is None or _named.pid != os.getpid():
        _named = _Named(os.getpid(), name)


def node_name() -> str | None:
    """Return the name. A forked process has its parent's name until it sets a different one."""
    return None if _named is None else _named.name
