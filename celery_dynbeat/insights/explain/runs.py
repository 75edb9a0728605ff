"""The history of one fire time and the reasons for it, as pure functions of one run.

A run passes ``due -> recorded -> sent -> started -> ended``. Its delay is the sum of three waits,
each with its own cause:

    recorded  no beat claimed the schedule, a hold or quiet hours kept it back, or jitter delays it
    sent      the broker refused or did not answer, or overlap made the run wait
    started   the message waited in its queue
"""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from celery_dynbeat.api import RunInfo
from celery_dynbeat.common.states import Status, was_started
from celery_dynbeat.common.text import cut, format_distance, format_duration

if TYPE_CHECKING:
    from celery_dynbeat.planning.quiet_hours import Quiet

#: A run that started within this time after its fire time is on time.
ON_TIME = timedelta(seconds=5)
_ERROR_LENGTH = 200

_ENDED = {
    Status.SUCCEEDED: "succeeded",
    Status.FAILED: "failed",
    Status.REVOKED: "was revoked",
    Status.EXPIRED: "expired",
    Status.LOST: "was lost",
    Status.SKIPPED: "skipped itself",
}


def first_line(text: str | None) -> str:
    """Return the first line of an error, cut."""
    return cut((text or "").strip().partition("\n")[0], _ERROR_LENGTH)


def start_delay(run: RunInfo) -> timedelta | None:
    """Return how long after its fire time the run started, or None if it has not started.

    A manual run and a rerun count from the call.
    """
    return None if run.started_at is None else run.started_at - _expected_at(run)


def _expected_at(run: RunInfo, quiet: "Quiet | None" = None) -> datetime:
    if run.origin != "schedule":
        return run.created_at
    return run.scheduled_for if quiet is None else quiet.end(run.scheduled_for)


def delay_reason(
    run: RunInfo, *, jitter: timedelta | None, quiet: "Quiet | None" = None
) -> str | None:
    """Return why the run started late, which is the longest of its waits. None if it was on time.

    A fire time in ``quiet`` hours counts from their end.
    """
    expected_at = _expected_at(run, quiet)
    delay = None if run.started_at is None else run.started_at - expected_at
    if delay is None or delay <= ON_TIME + (jitter or timedelta(0)) or run.sent_at is None:
        return None
    assert run.started_at is not None  # noqa: S101 - it has a delay
    until_recorded = run.created_at - expected_at
    until_sent = run.sent_at - run.created_at
    in_queue = run.started_at - run.sent_at
    longest = max(until_recorded, until_sent, in_queue)
    shown = format_duration(longest)
    if longest == in_queue:
        return f"its message waited {shown} in the queue"
    if longest == until_sent:
        # A manual run is recorded by the call, also while no beat runs.
        return (
            f"no beat published it for {shown}: none ran, the broker refused it, or it waited for"
            " the previous run"
        )
    # A hold that has ended leaves nothing in the row.
    return f"no beat claimed it for {shown}, or it was held"


def explain_run(
    run: RunInfo,
    *,
    now: datetime,
    jitter: timedelta | None = None,
    quiet: "Quiet | None" = None,
) -> str:
    """Return what happened to the fire time of ``run``, as the rest of a sentence."""
    status = Status(run.status)
    if not was_started(status, run.attempt):
        return _skipped(run, now)
    if status is Status.PENDING:
        return f"was recorded {_ago(run.created_at, now)} ago and is not published"
    if status is Status.SENT:
        return f"has waited in its queue for {_ago(run.sent_at or run.created_at, now)}"
    if status is Status.RUNNING:
        return (
            f"has been running for {_ago(run.started_at or run.created_at, now)} on {_worker(run)}"
        )
    if status is Status.RETRYING:
        when = "" if run.retry_at is None else f" {format_distance(run.retry_at, now=now)}"
        return f"failed and waits for its retry{when}: {first_line(run.error)}"
    return _ended(run, status, jitter, quiet)


def _skipped(run: RunInfo, now: datetime) -> str:
    verb = "will be" if run.scheduled_for > now else "was"
    others = f" with {run.fire_count - 1} before it" if run.fire_count > 1 else ""
    return f"{verb} skipped{others}: {first_line(run.error)}"


def _ended(run: RunInfo, status: Status, jitter: timedelta | None, quiet: "Quiet | None") -> str:
    reason = "" if status is Status.SUCCEEDED else _because(run)
    delay = start_delay(run)
    if delay is None or run.started_at is None:
        return f"{_ENDED[status]} before it started{reason}"
    late = f"{format_duration(max(delay, timedelta(0)))} late"
    why = delay_reason(run, jitter=jitter, quiet=quiet)
    if why is None and _expected_at(run, quiet) > _expected_at(run):
        why = "its fire time was in quiet hours"
    took = "" if run.finished_at is None else format_duration(run.finished_at - run.started_at)
    lateness = f"{late} ({why})" if why else late
    return f"started {lateness} on {_worker(run)} and {_ENDED[status]} after {took}{reason}"


def _because(run: RunInfo) -> str:
    line = first_line(run.error)
    return f": {line}" if line else ""


def _worker(run: RunInfo) -> str:
    return "a worker" if run.worker is None else f"worker {run.worker}"


def _ago(instant: datetime, now: datetime) -> str:
    return format_duration(max(now - instant, timedelta(0)))
