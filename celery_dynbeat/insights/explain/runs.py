"""The history of one fire time and the reasons for it, as pure functions of one run.

A run passes ``due -> ready -> recorded -> sent -> started -> ended``. A run that did not wait is
ready when it is due: at its fire time, or later because of quiet hours or its window. The delay of
its first attempt is the sum of three parts, each with its own cause:

    recorded  no beat claimed the schedule, or a hold kept it back
    sent      no beat ran, or the broker refused or did not answer
    started   the message waited in its queue

The time before it was ready is no delay. The start of a later attempt says nothing about the first.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from celery_dynbeat.api.results import RunInfo
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.states import Origin, Status, Wait, was_started
from celery_dynbeat.common.text import counted, first_line, format_distance, format_duration
from celery_dynbeat.planning import ScheduleSpec
from celery_dynbeat.planning.plan import run_at

#: A run that started within this time after its fire time is on time.
ON_TIME = timedelta(seconds=5)

_ENDED = {
    Status.SUCCEEDED: "succeeded",
    Status.FAILED: "failed",
    Status.REVOKED: "was revoked",
    Status.EXPIRED: "expired",
    Status.LOST: "was lost",
    Status.SKIPPED: "skipped itself",
}


_WAITS: Mapping[str, str] = {
    Wait.PLACE: "for a place",
    Wait.HOLD: "for the end of a hold",
    Wait.QUIET: "for the end of a quiet time",
    Wait.PREVIOUS: "for the previous run",
    Wait.BATCH: "for its turn in its batch",
    Wait.POSTPONED: "because its task postponed it",
}


def wait_text(run: RunInfo) -> str:
    """Return what the run waits or waited for, as part of a sentence; "" if it did not wait."""
    return _WAITS.get(run.waited_for or "", "")


def start_delay(run: RunInfo) -> timedelta | None:
    """Return how long after its fire time the run started, or None if that is not known.

    A manual run and a rerun count from the call, and a run that waited from the end of its wait.
    The start of a second attempt replaces the start of the first.
    """
    if run.started_at is None or run.attempt > 1:
        return None
    return run.started_at - _expected_at(run)


def _expected_at(run: RunInfo, spec: ScheduleSpec | None = None) -> datetime:
    if run.ready_at is not None:
        return run.ready_at
    if spec is None or run.origin != Origin.SCHEDULE:
        return run.due_at
    return effective_at(spec, run.due_at)


def effective_at(spec: ScheduleSpec, fire_at: datetime) -> datetime:
    """Return when ``fire_at`` is due, after quiet hours and the offset in its window."""
    try:
        return run_at(spec, fire_at)
    except InvalidTriggerError:
        # The search for the next fire time takes too many steps.
        return fire_at


def planned_delay(run: RunInfo, spec: ScheduleSpec | None) -> str | None:
    """Return why the present ``spec`` lets the run start after its fire time, or None."""
    expected_at = _expected_at(run, spec)
    if spec is None or run.ready_at is not None or expected_at <= run.due_at:
        return None
    if spec.quiet is not None and spec.quiet.end(run.due_at) > run.due_at:
        return f"its fire time was {spec.quiet.describe(run.due_at)}"
    return f"its window delayed it by {format_duration(expected_at - run.due_at)}"


def delay_reason(run: RunInfo, *, spec: ScheduleSpec | None = None) -> str | None:
    """Return why the first attempt started late, which is its longest part. None if it did not.

    A fire time counts from the end of quiet hours and of the offset in its window.
    """
    if start_delay(run) is None or run.started_at is None or run.sent_at is None:
        return None
    expected_at = _expected_at(run, spec)
    if run.started_at - expected_at <= ON_TIME:
        return None
    recorded_at = max(run.created_at, expected_at)
    until_recorded = recorded_at - expected_at
    until_sent = run.sent_at - recorded_at
    in_queue = run.started_at - run.sent_at
    longest = max(until_recorded, until_sent, in_queue)
    shown = format_duration(longest)
    if longest == in_queue:
        return f"its message waited {shown} in the queue"
    if longest == until_sent:
        # A manual run is recorded by the call, also while no beat runs.
        return f"no beat published it for {shown}: none ran, or the broker refused it"
    return f"no beat claimed it for {shown}, or it was held"


def explain_run(run: RunInfo, *, now: datetime, spec: ScheduleSpec | None = None) -> str:
    """Return what happened to the fire time of ``run``, as the rest of a sentence."""
    status = Status(run.status)
    if not was_started(status, run.attempt):
        return _skipped(run)
    if status is Status.PENDING:
        return _pending(run, now)
    if status is Status.SENT:
        return f"has waited in its queue for {_ago(run.sent_at or run.created_at, now)}"
    if status is Status.RUNNING:
        return (
            f"has been running for {_ago(run.started_at or run.created_at, now)} on {_worker(run)}"
        )
    if status is Status.RETRYING:
        when = "" if run.retry_at is None else f" {format_distance(run.retry_at, now=now)}"
        return f"failed and waits for its retry{when}: {first_line(run.error)}"
    return _ended(run, status, spec)


def _pending(run: RunInfo, now: datetime) -> str:
    again = f" after {counted(run.attempt, 'attempt')}" if run.attempt else ""
    if run.is_waiting:
        until = "" if run.retry_at is None else f" until {run.retry_at:%Y-%m-%d %H:%M:%S} UTC"
        waits = f"waits{until} {wait_text(run)}{again}"
        return f"{waits}, and was recorded {_ago(run.created_at, now)} ago"
    return f"was recorded {_ago(run.created_at, now)} ago and is not published{again}"


def _skipped(run: RunInfo) -> str:
    others = f" with {run.fire_count - 1} before it" if run.fire_count > 1 else ""
    return f"was skipped{others}: {first_line(run.error)}"


def _ended(run: RunInfo, status: Status, spec: ScheduleSpec | None) -> str:
    reason = "" if status is Status.SUCCEEDED else _because(run)
    if run.started_at is None:
        return f"{_ENDED[status]} before it started{reason}"
    took = "" if run.finished_at is None else format_duration(run.finished_at - run.started_at)
    end = f"on {_worker(run)} and {_ENDED[status]} after {took}{reason}"
    waited = "" if run.wait is None else f"waited {format_duration(run.wait)} {wait_text(run)}, "
    delay = start_delay(run)
    if delay is None:
        return f"{waited}started attempt {run.attempt} {end}{_earlier(run)}"
    late = f"{format_duration(max(delay, timedelta(0)))} late"
    why = delay_reason(run, spec=spec) or planned_delay(run, spec)
    return f"{waited}started {late} ({why}) {end}" if why else f"{waited}started {late} {end}"


def _earlier(run: RunInfo) -> str:
    """Return the last error before the present attempt, in parentheses."""
    return f" ({run.earlier_errors[-1]})" if run.earlier_errors else ""


def _because(run: RunInfo) -> str:
    line = first_line(run.error)
    return f": {line}" if line else ""


def _worker(run: RunInfo) -> str:
    return "a worker" if run.worker is None else f"worker {run.worker}"


def _ago(instant: datetime, now: datetime) -> str:
    return format_duration(max(now - instant, timedelta(0)))
