"""What stands before the sending of a run: one ordered list. PURE.

The first obstacle that does not let a run go decides, and its reason is shown. Beat asks for each
obstacle in one place:

    a pause or an error     the row is not in the due index
    excluded day, skip()    the trigger does not yield the fire time (``plan``)
    hold, quiet hours       ``before_sending``, for a claimed fire time, a retry, a run that waited
    overlap                 ``plan`` for a fire time, the sweep for a run of a batch
    cap                     the admission of runs that wait for a place

``explain``, ``upcoming`` and ``preview`` ask ``before_sending`` and ``plan`` as well.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from celery_dynbeat.common.states import Wait
from celery_dynbeat.planning import ScheduleSpec
from celery_dynbeat.planning.plan import SUPERSEDED, delayed_at
from celery_dynbeat.planning.quiet_hours import Quiet
from celery_dynbeat.planning.upcoming import PlannedFireTime
from celery_dynbeat.triggers.zones import describe_instant

#: A waiting run is checked again after the time that it has existed, within these limits, because
#: neither a release nor an edit of quiet hours changes runs.
_SHORTEST, _LONGEST = timedelta(seconds=1), timedelta(minutes=1)


class Obstacle(StrEnum):
    """The obstacles in their order, as docs/explanation/guarantees.md names them."""

    STOPPED = "paused, error"
    EXCLUDED = "excluded day of its rule"
    SKIPPED = "skip()"
    HOLD = "hold"
    QUIET = "quiet hours and quiet days of its owner"
    OVERLAP = "overlap"
    CAP = "cap"


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a run waits for, and until when."""

    reason: Wait
    until: datetime


class HoldInForce(NamedTuple):
    """The end of a hold, or None if only a release ends it, and who holds for what reason."""

    until: datetime | None
    note: str


def first_pass(now: datetime, hold: HoldInForce | None) -> datetime:
    """Return when the passes of beat begin: at the end of a hold."""
    return now if hold is None or hold.until is None else max(now, hold.until)


def stopped_by(planned: PlannedFireTime, hold: HoldInForce | None) -> PlannedFireTime:
    """Return the fire time, without ``run_at`` during a hold that only a release ends."""
    is_endless = hold is not None and hold.until is None
    return planned._replace(run_at=None) if is_endless else planned


def before_sending(
    *, now: datetime, held_until: datetime | None, quiet: Quiet | None
) -> Waiting | None:
    """Return what a run waits for at ``now``, or None if it can be sent.

    ``held_until`` is the end of the holds of its owner, ``quiet`` are the quiet hours.
    """
    if held_until is not None and held_until > now:
        return Waiting(Wait.HOLD, held_until)
    if quiet is not None and (end := quiet.end(now)) > now:
        return Waiting(Wait.QUIET, end)
    return None


def next_check(
    waiting: Waiting, *, now: datetime, created_at: datetime, expires_at: datetime | None
) -> datetime:
    """Return when a waiting run asks again. At ``expires_at``, it expires."""
    until = waiting.until if expires_at is None else min(waiting.until, expires_at)
    return min(until, now + min(max(now - created_at, _SHORTEST), _LONGEST))


def wait_note(
    spec: ScheduleSpec,
    planned: PlannedFireTime,
    *,
    now: datetime,
    timezone: str,
    hold: HoldInForce | None = None,
) -> str | None:
    """Return why a fire time is sent later than it fires, and when, or why it has no run.

    None means that it is sent at once. ``hold`` is in force at ``now``.
    """
    at, run_at, zone = planned.at, planned.run_at, timezone
    if hold is not None and (hold.until is None or at < hold.until):
        what = hold.note
    elif (quiet_at := _quiet_at(spec, at, now=now)) is not None and spec.quiet is not None:
        what, zone = spec.quiet.describe(quiet_at), spec.quiet.windows.zone.key
    elif run_at is not None and run_at > max(at, now):
        what = "in its window"
    else:
        return planned.reason and _in_future(planned.reason)
    if planned.reason is not None:
        return f"{what}: {_in_future(planned.reason)}"
    return what if run_at is None else f"{what}: sent at {describe_instant(run_at, zone)}"


def _quiet_at(spec: ScheduleSpec, fire_at: datetime, *, now: datetime) -> datetime | None:
    """Return an instant in the quiet time for whose end the fire time waits, or None."""
    if spec.quiet is None:
        return None
    # The offset in its window can end in quiet hours. They can also be newer than the fire time.
    instants = (fire_at, delayed_at(spec, fire_at), *([now] if fire_at <= now else []))
    return next((each for each in instants if spec.quiet.end(each) > each), None)


def _in_future(reason: str) -> str:
    """Return the reason of a skip as the reason of a future one."""
    if reason == SUPERSEDED:
        return "a newer fire time is sent instead"
    return "overlap skips it" if reason.startswith("overlap:") else reason
