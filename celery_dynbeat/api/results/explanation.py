"""The result of ``explain``: first the sentence, and then the facts behind it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from celery_dynbeat.api.results.base import Info
from celery_dynbeat.api.results.hold import HoldInfo
from celery_dynbeat.api.results.run import RunInfo
from celery_dynbeat.api.results.schedule import ScheduleInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedRun(Info):
    """A run of the schedule, and what happened to its fire time."""

    run: RunInfo
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo(Info):
    """A beat, or a worker that consumes the queue of the schedule. ``state`` as in ``status``."""

    name: str
    state: str
    seen_at: datetime
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NextFireTime(Info):
    """An upcoming fire time. ``local`` is ISO 8601 text in the zone of the schedule.

    ``note`` says how a clock change affects it, who skipped it, when a later run is sent,
    or that a hold in force stops it.
    """

    at: datetime
    local: str
    note: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation(Info):
    """The reason why a schedule ran or did not run, at ``now``. Instants are aware and in UTC.

    - ``at`` is the fire time that the call asked about, or None for the present.
    - ``sentence`` states the ``cause``. ``fix`` is "" if nothing needs a fix.
    - ``text`` is the explanation as lines of text.
    - ``runs`` are the newest first. ``next`` are the next fire times.
    - ``queue`` is None if it is not known, because a router raised.
    - ``workers`` are those that consume the queue.
    """

    _PROPERTIES: ClassVar[tuple[str, ...]] = ("text",)

    sentence: str
    cause: str
    fix: str
    now: datetime
    at: datetime | None
    schedule: ScheduleInfo
    runs: Sequence[ExplainedRun]
    next: Sequence[NextFireTime]
    holds: Sequence[HoldInfo]
    queue: str | None
    beats: Sequence[NodeInfo]
    workers: Sequence[NodeInfo]

    @property
    def text(self) -> str:
        """The sentence and the fix, and then the last runs and the next fire times."""
        lines = [self.sentence, *([f"Fix: {self.fix}"] if self.fix else [])]
        lines += [_line("last", each.run.scheduled_for, each.text) for each in self.runs]
        lines += [_line("next", each.at, each.note or "") for each in self.next]
        return "\n".join(lines)


def _line(what: str, at: datetime, text: str) -> str:
    return f"{what} {at:%Y-%m-%dT%H:%M:%SZ} {text}".rstrip()
