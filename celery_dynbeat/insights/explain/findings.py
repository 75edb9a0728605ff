"""The findings of the rules, and the texts that several rules use. PURE."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from celery_dynbeat.api import RunInfo
from celery_dynbeat.common.text import format_distance
from celery_dynbeat.insights.explain.facts import Facts
from celery_dynbeat.insights.explain.runs import explain_run


class Cause(StrEnum):
    """Why a schedule ran or did not run. Programs rely on the values."""

    QUARANTINED = "quarantined"
    TRIGGER_UNREADABLE = "trigger_unreadable"
    FINISHED = "finished"
    PAUSED = "paused"
    HELD = "held"
    QUIET_HOURS = "quiet_hours"
    IN_WINDOW = "in_window"
    NO_BEAT = "no_beat"
    BEAT_FAILING = "beat_failing"
    OVERDUE = "overdue"
    NOT_FIRED_YET = "not_fired_yet"
    NOT_PUBLISHED = "not_published"
    WAITS_FOR_PREVIOUS = "waits_for_previous"
    WAITS_FOR_PLACE = "waits_for_place"
    WAITS_FOR_TURN = "waits_for_turn"
    POSTPONED = "postponed"
    NO_WORKER = "no_worker"
    NO_WORKER_FOR_QUEUE = "no_worker_for_queue"
    TASK_NOT_REGISTERED = "task_not_registered"
    CONTENT_REFUSED = "content_refused"
    WAITS_IN_QUEUE = "waits_in_queue"
    RUNNING = "running"
    WORKER_SILENT = "worker_silent"
    RETRYING = "retrying"
    SKIPPED_OVERLAP = "skipped_overlap"
    SKIPPED = "skipped"
    FAILED = "failed"
    LOST = "lost"
    REVOKED = "revoked"
    EXPIRED = "expired"
    RAN_LATE = "ran_late"
    RAN = "ran"


@dataclass(frozen=True, slots=True)
class Finding:
    """The cause, one sentence that states it, and the fix; "" if nothing needs a fix.

    The cause is a Cause, or a PastCause for an instant of the past.
    """

    cause: StrEnum
    sentence: str
    fix: str = ""


def age_text(facts: Facts, run: RunInfo) -> str:
    """Return when the fire time of ``run`` was, as part of a sentence."""
    if facts.age(run.scheduled_for) < timedelta(seconds=1):
        return "just now"
    return format_distance(run.scheduled_for, now=facts.now)


def story(facts: Facts, run: RunInfo) -> str:
    """Return what happened to ``run``, as the rest of a sentence."""
    return explain_run(run, now=facts.now, spec=facts.spec)
