"""Each metric once: its name, its labels, and where its value comes from.

Imports no Prometheus library. Label values are bounded: names of tasks and queues, and fixed sets
of statuses and reasons. No label is a schedule or an owner.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum, auto
from itertools import accumulate
from typing import Any, TypeAlias

from celery_dynbeat.common.states import Origin
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.health.nodes import (
    Limits,
    NodeState,
    SeenNode,
    missing_nodes,
    of_kind,
    seen,
)
from celery_dynbeat.store.health import Tables
from celery_dynbeat.store.rollups import RUN_TIME_BOUNDS, Figures, names_of
from celery_dynbeat.telemetry import events

NAMESPACE = "dynbeat"
UNKNOWN, OTHER = "(unknown)", "(other)"
#: From one millisecond to a day, in seconds. A broker outage makes lags and queue times of hours.
WAIT_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800, 7_200, 86_400)
PASS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
#: The first words of the stored reasons of skipped fire times.
SKIP_REASONS = ("overlap", "missed", "skipped")
#: The statuses of ended runs. "other" are revoked and expired ones, and those that their task
#: skipped.
ENDED_STATUSES = ("succeeded", "failed", "lost", "other")


class MetricKind(StrEnum):
    """The type of a metric, as Prometheus names it."""

    COUNTER = auto()
    GAUGE = auto()
    HISTOGRAM = auto()


@dataclass(frozen=True, slots=True)
class Distribution:
    """The values of one series of a histogram: their sum, and the number in each bucket."""

    numbers: Sequence[int]
    sum: float


#: The values of a metric by the values of its labels: numbers, or each a Distribution.
Series: TypeAlias = Mapping[tuple[str, ...], Any]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. ``name`` is without NAMESPACE, and ends with ``_total`` if it is a counter."""

    name: str
    help: str
    labels: tuple[str, ...] = field(default=(), kw_only=True)
    buckets: tuple[float, ...] = field(default=(), kw_only=True)

    @property
    def full_name(self) -> str:
        """The name that Prometheus shows."""
        return f"{NAMESPACE}_{self.name}"

    @property
    def kind(self) -> MetricKind:
        """The type of the metric."""
        if self.buckets:
            return MetricKind.HISTOGRAM
        return MetricKind.COUNTER if self.name.endswith("_total") else MetricKind.GAUGE


def _once(_event: Any) -> Iterable[tuple[Any, ...]]:
    return [(1,)]


@dataclass(frozen=True, slots=True)
class EventMetric(Metric):
    """A metric that beat counts.

    ``values`` returns what an event adds to the counter or observes: numbers, each followed by the
    values of the labels.
    """

    event: type
    values: Callable[[Any], Iterable[tuple[Any, ...]]] = _once


@dataclass(frozen=True, slots=True)
class Reading:
    """What one scrape reads from the database. ``waiting_runs`` is None if no owner has a limit."""

    tables: Tables
    limits: Limits
    oldest_pending_at: datetime | None
    waiting_runs: int | None
    totals: Sequence[tuple[str, Figures]]
    now: datetime

    def age(self, instant: datetime | None) -> float:
        """Return how long ago ``instant`` was, in seconds."""
        return 0.0 if instant is None else max((self.now - instant).total_seconds(), 0.0)

    def _nodes(self) -> Sequence[SeenNode]:
        return seen(self.tables.nodes, now=self.now, timeout=self.limits.node_timeout)

    def states(self, kind: NodeKind) -> Series:
        """Return the number of nodes of a kind by state."""
        states = Counter(node.state for node in of_kind(self._nodes(), kind))
        return {(str(state),): states[state] for state in NodeState}

    def missing(self) -> Series:
        """Return the number of missing nodes by kind."""
        found = {
            kind: missing_nodes(self._nodes(), kind, now=self.now, limits=self.limits)
            for kind in NodeKind
        }
        return {(str(kind),): 0 if each is None else each.number for kind, each in found.items()}

    def ended(self) -> Series:
        """Return the number of ended runs by queue and status."""
        return {
            (queue or UNKNOWN, status): getattr(figures, status)
            for queue, figures in self.totals
            for status in ENDED_STATUSES
        }

    def durations(self) -> Series:
        """Return the durations of runs by queue."""
        names = names_of(RUN_TIME_BOUNDS)
        return {
            (queue or UNKNOWN,): Distribution(
                [*accumulate(figures.run_times.get(name, 0) for name in names)], figures.run_seconds
            )
            for queue, figures in self.totals
        }


@dataclass(frozen=True, slots=True)
class DatabaseMetric(Metric):
    """A metric of the whole installation. ``value`` is None if the metric is absent."""

    value: Callable[[Reading], float | Series | None]


def skip_reason(reason: str) -> str:
    """Return the label for the stored reason of a skipped fire time."""
    first = reason.replace(":", " ").partition(" ")[0]
    return first if first in SKIP_REASONS else OTHER


def _first_sent(event: events.RunsSent) -> Iterable[events.SentRun]:
    return (run for run in event.runs if not run.sent_before)


#: Counted in the beat where the fact happens.
EVENT_METRICS = (
    EventMetric(
        "runs_dispatched_total",
        "Runs sent for the first time",
        events.RunsSent,
        lambda event: [(1, run.task, run.queue) for run in _first_sent(event)],
        labels=("task", "queue"),
    ),
    EventMetric(
        "runs_resent_total",
        "Runs sent again by the sweep",
        events.RunsSent,
        lambda event: [(1,) for run in event.runs if run.sent_before],
    ),
    EventMetric(
        "retries_resent_total",
        "Retries sent again because the broker lost them",
        events.RetriesResent,
        lambda event: [(event.count,)],
    ),
    EventMetric(
        "runs_skipped_total",
        "Fire times that a policy skipped",
        events.FireTimesSkipped,
        lambda event: [(event.count, skip_reason(event.reason))],
        labels=("reason",),
    ),
    EventMetric(
        "lag_seconds",
        "Time from the fire time to the publish of its run",
        events.RunsSent,
        lambda event: [
            (run.lag.total_seconds(), run.queue)
            for run in _first_sent(event)
            if run.origin == Origin.SCHEDULE
        ],
        labels=("queue",),
        buckets=WAIT_BUCKETS,
    ),
    EventMetric("quarantines_total", "Schedules put into quarantine", events.ScheduleQuarantined),
    EventMetric(
        "automatic_pauses_total",
        "Schedules paused after failures",
        events.SchedulePaused,
        lambda event: [(1,)] if event.automatic else [],
    ),
    EventMetric(
        "pass_duration_seconds",
        "Duration of successful passes",
        events.PassEnded,
        lambda event: [] if event.error else [(event.duration.total_seconds(),)],
        buckets=PASS_BUCKETS,
    ),
    EventMetric(
        "passes_failed_total",
        "Passes that failed",
        events.PassEnded,
        lambda event: [(1,)] if event.error else [],
    ),
    EventMetric("publish_errors_total", "Runs that could not be published", events.PublishFailed),
    EventMetric(
        "notifications_received_total",
        "Change notifications that woke beat",
        events.NotificationReceived,
    ),
    EventMetric(
        "pruned_runs_total",
        "Runs deleted from the history",
        events.HistoryPruned,
        lambda event: [(event.count,)] if event.table == "run" else [],
    ),
    EventMetric(
        "pruned_changes_total",
        "Changes deleted from the audit",
        events.HistoryPruned,
        lambda event: [(event.count,)] if event.table == "change" else [],
    ),
    EventMetric(
        "alerts_opened_total",
        "Alerts that were opened",
        events.AlertOpened,
        lambda event: [(1, event.kind)],
        labels=("reason",),
    ),
    EventMetric(
        "alerts_recovered_total",
        "Alerts whose schedule recovered",
        events.AlertRecovered,
        lambda event: [(1, event.kind)],
        labels=("reason",),
    ),
    EventMetric(
        "alert_messages_sent_total", "Messages about alerts that were sent", events.AlertMessageSent
    ),
    EventMetric(
        "alert_messages_dropped_total",
        "Messages about alerts that were dropped",
        events.AlertMessageDropped,
    ),
)
#: Counted by the events of SQLAlchemy's engine.
DATABASE_ERRORS = Metric("database_errors_total", "Errors of the database", labels=("reason",))
LAST_PASS = Metric("last_successful_pass_age_seconds", "Time since the last successful pass")
CLOCK_OFFSET = Metric("clock_offset_seconds", "This host's clock minus the database's")
BEAT_METRICS: Sequence[Metric] = (*EVENT_METRICS, DATABASE_ERRORS, LAST_PASS, CLOCK_OFFSET)

SCRAPE_SUCCESS = Metric("database_scrape_success", "1 if the metrics of the database could be read")
#: Read from the database at a scrape.
READ_METRICS = (
    DatabaseMetric("due_schedules", "Schedules that are due", lambda read: read.tables.due.count),
    DatabaseMetric(
        "oldest_due_age_seconds",
        "How long the oldest due schedule has been due",
        lambda read: read.age(read.tables.oldest_due_at),
    ),
    DatabaseMetric(
        "overdue_runs", "Runs that beat must send again", lambda read: read.tables.overdue.count
    ),
    DatabaseMetric(
        "oldest_overdue_run_age_seconds",
        "How long the oldest overdue run has been overdue",
        lambda read: read.age(read.tables.overdue_since),
    ),
    DatabaseMetric(
        "unfinished_runs",
        "Runs that have not ended",
        lambda read: {(status,): found.count for status, found in read.tables.runs.items()},
        labels=("status",),
    ),
    DatabaseMetric(
        "oldest_pending_run_age_seconds",
        "How long the oldest run that no worker has started could have been sent",
        lambda read: read.age(read.oldest_pending_at),
    ),
    DatabaseMetric(
        "waiting_runs", "Runs that wait for a place, at most 10,000", lambda read: read.waiting_runs
    ),
    DatabaseMetric(
        "quarantined_schedules",
        "Schedules in quarantine",
        lambda read: read.tables.quarantined.count,
    ),
    DatabaseMetric(
        "failing_schedules",
        "Schedules whose last run failed or was lost",
        lambda read: read.tables.failing.count,
    ),
    DatabaseMetric(
        "lost_runs",
        "Runs that were lost within the last hour, at most 5",
        lambda read: len(read.tables.lost_first),
    ),
    DatabaseMetric("holds", "Holds in force", lambda read: read.tables.holds.count),
    DatabaseMetric(
        "beats",
        "Beats by the state of their node",
        lambda read: read.states(NodeKind.BEAT),
        labels=("status",),
    ),
    DatabaseMetric(
        "workers",
        "Workers by the state of their node",
        lambda read: read.states(NodeKind.WORKER),
        labels=("status",),
    ),
    DatabaseMetric(
        "missing_nodes", "Beats and workers that are missing", Reading.missing, labels=("kind",)
    ),
    DatabaseMetric(
        "runs_ended_total", "Runs that ended", Reading.ended, labels=("queue", "status")
    ),
    DatabaseMetric(
        "run_duration_seconds",
        "Time from the start to the end of succeeded and failed runs",
        Reading.durations,
        labels=("queue",),
        buckets=RUN_TIME_BOUNDS,
    ),
)
DATABASE_METRICS: Sequence[Metric] = (SCRAPE_SUCCESS, *READ_METRICS)
