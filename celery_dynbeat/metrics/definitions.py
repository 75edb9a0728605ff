"""The metrics: name, type, labels, and which process exports each. Imports no Prometheus library.

Label values are bounded: names of tasks and queues, and fixed sets of statuses and reasons. No
label is a schedule or an owner.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum, auto

from celery_dynbeat.common.buckets import RUN_TIME_BOUNDS


class Kind(StrEnum):
    """The type of a metric, as Prometheus names it."""

    COUNTER = auto()
    GAUGE = auto()
    HISTOGRAM = auto()


class Exporter(StrEnum):
    """A process whose endpoint has a metric."""

    BEAT = auto()
    FLOWER = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric. ``name`` includes the unit, and ``_total`` if it is a counter."""

    name: str
    kind: Kind
    help: str
    exporters: frozenset[Exporter]
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


BEAT = frozenset({Exporter.BEAT})
#: They read the database.
DATABASE = frozenset({Exporter.BEAT, Exporter.FLOWER})

#: From one millisecond to a day, in seconds. A broker outage makes lags and queue times of hours.
WAIT_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800, 7_200, 86_400)
PASS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


def _counter(name: str, text: str, exporters: frozenset[Exporter], *labels: str) -> Metric:
    return Metric(name=name, kind=Kind.COUNTER, help=text, exporters=exporters, labels=labels)


def _gauge(name: str, text: str, exporters: frozenset[Exporter], *labels: str) -> Metric:
    return Metric(name=name, kind=Kind.GAUGE, help=text, exporters=exporters, labels=labels)


def _histogram(
    name: str,
    text: str,
    exporters: frozenset[Exporter],
    *labels: str,
    buckets: tuple[float, ...],
) -> Metric:
    return Metric(
        name=name,
        kind=Kind.HISTOGRAM,
        help=text,
        exporters=exporters,
        labels=labels,
        buckets=buckets,
    )


#: Counted in the beat where the fact happens.
DISPATCHED = _counter(
    "dynbeat_runs_dispatched_total", "Runs sent for the first time", BEAT, "task", "queue"
)
RESENT = _counter("dynbeat_runs_resent_total", "Runs sent again by the sweep", BEAT)
RETRIES_RESENT = _counter(
    "dynbeat_retries_resent_total", "Retries sent again because the broker lost them", BEAT
)
SKIPPED = _counter("dynbeat_runs_skipped_total", "Fire times that a policy skipped", BEAT, "reason")
LAG = _histogram(
    "dynbeat_lag_seconds",
    "Time from the fire time to the publish of its run",
    BEAT,
    "queue",
    buckets=WAIT_BUCKETS,
)
QUARANTINES = _counter("dynbeat_quarantines_total", "Schedules put into quarantine", BEAT)
PAUSES = _counter("dynbeat_automatic_pauses_total", "Schedules paused after failures", BEAT)
PASS_DURATION = _histogram(
    "dynbeat_pass_duration_seconds", "Duration of successful passes", BEAT, buckets=PASS_BUCKETS
)
PASSES_FAILED = _counter("dynbeat_passes_failed_total", "Passes that failed", BEAT)
LAST_PASS = _gauge(
    "dynbeat_last_successful_pass_age_seconds", "Time since the last successful pass", BEAT
)
PUBLISH_ERRORS = _counter("dynbeat_publish_errors_total", "Runs that could not be published", BEAT)
DATABASE_ERRORS = _counter(
    "dynbeat_database_errors_total", "Errors of the database", BEAT, "reason"
)
NOTIFICATIONS = _counter(
    "dynbeat_notifications_received_total", "Change notifications that woke beat", BEAT
)
PRUNED_RUNS = _counter("dynbeat_pruned_runs_total", "Runs deleted from the history", BEAT)
PRUNED_CHANGES = _counter("dynbeat_pruned_changes_total", "Changes deleted from the audit", BEAT)
ALERTS_OPENED = _counter("dynbeat_alerts_opened_total", "Alerts that were opened", BEAT, "reason")
ALERTS_RECOVERED = _counter(
    "dynbeat_alerts_recovered_total", "Alerts whose schedule recovered", BEAT, "reason"
)
ALERT_MESSAGES_SENT = _counter(
    "dynbeat_alert_messages_sent_total", "Messages about alerts that were sent", BEAT
)
ALERT_MESSAGES_DROPPED = _counter(
    "dynbeat_alert_messages_dropped_total", "Messages about alerts that were dropped", BEAT
)
CLOCK_OFFSET = _gauge(
    "dynbeat_clock_offset_seconds", "This host's clock minus the database's", BEAT
)

#: Read from the database at a scrape.
DUE_SCHEDULES = _gauge("dynbeat_due_schedules", "Schedules that are due", DATABASE)
OLDEST_DUE = _gauge(
    "dynbeat_oldest_due_age_seconds", "How long the oldest due schedule has been due", DATABASE
)
OVERDUE_RUNS = _gauge("dynbeat_overdue_runs", "Runs that beat must send again", DATABASE)
OLDEST_OVERDUE = _gauge(
    "dynbeat_oldest_overdue_run_age_seconds",
    "How long the oldest overdue run has been overdue",
    DATABASE,
)
UNFINISHED_RUNS = _gauge("dynbeat_unfinished_runs", "Runs that have not ended", DATABASE, "status")
OLDEST_PENDING = _gauge(
    "dynbeat_oldest_pending_run_age_seconds",
    "How long the oldest run that no worker has started could have been sent",
    DATABASE,
)
QUARANTINED_SCHEDULES = _gauge("dynbeat_quarantined_schedules", "Schedules in quarantine", DATABASE)
FAILING_SCHEDULES = _gauge(
    "dynbeat_failing_schedules", "Schedules whose last run failed or was lost", DATABASE
)
LOST_RUNS = _gauge(
    "dynbeat_lost_runs", "Runs that were lost within the last hour, at most 5", DATABASE
)
HOLDS = _gauge("dynbeat_holds", "Holds in force", DATABASE)
BEATS = _gauge("dynbeat_beats", "Beats by the state of their node", DATABASE, "status")
WORKERS = _gauge("dynbeat_workers", "Workers by the state of their node", DATABASE, "status")
MISSING_NODES = _gauge(
    "dynbeat_missing_nodes", "Beats and workers that are missing", DATABASE, "kind"
)
WAITING_RUNS = _gauge(
    "dynbeat_waiting_runs", "Runs that wait for a place, at most 10,000", DATABASE
)
#: From the rollup.
ENDED = _counter("dynbeat_runs_ended_total", "Runs that ended", DATABASE, "queue", "status")
RUN_DURATION = _histogram(
    "dynbeat_run_duration_seconds",
    "Time from the start to the end of succeeded and failed runs",
    DATABASE,
    "queue",
    buckets=RUN_TIME_BOUNDS,
)
SCRAPE_SUCCESS = _gauge(
    "dynbeat_database_scrape_success", "1 if the metrics of the database could be read", DATABASE
)
SCRAPE_DURATION = _gauge(
    "dynbeat_database_scrape_duration_seconds", "Duration of the last read", DATABASE
)

METRICS: Mapping[str, Metric] = {
    each.name: each for each in list(globals().values()) if isinstance(each, Metric)
}


def exported_by(exporter: Exporter) -> Sequence[Metric]:
    """Return the metrics on the endpoint of ``exporter``."""
    return [metric for metric in METRICS.values() if exporter in metric.exporters]
