"""What a run waits for before it is sent. PURE.

A fire time, a retry and a run that waited ask the same question, in this order:

    hold         waits for its end or the release
    quiet hours  waits for their end

The first that does not let the run go decides, and its reason is shown.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from celery_dynbeat.common.states import Wait

if TYPE_CHECKING:
    from celery_dynbeat.planning.quiet_hours import Quiet

#: A waiting run is checked again after the time that it has existed, within these limits, because
#: neither a release nor an edit of quiet hours changes runs.
_SHORTEST, _LONGEST = timedelta(seconds=1), timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a run waits for, and until when."""

    reason: Wait
    until: datetime


def before_sending(
    *, now: datetime, held_until: datetime | None, quiet: "Quiet | None"
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
