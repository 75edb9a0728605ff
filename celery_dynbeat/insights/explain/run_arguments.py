"""The arguments that a run was sent with.

A run stores no arguments. Each message has those that the schedule has when beat publishes it, for
the first time or again, until a worker starts the run. So they are known if no edit changed them
from the record of the run to its last start. Each edit writes the version before and after it: a
chain of versions without a gap, back from the present schedule or its deletion, has all edits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from celery_dynbeat.api import ChangeInfo, OwnerSchedules, RunInfo, ScheduleInfo
from celery_dynbeat.common.errors import ScheduleNotFoundError
from celery_dynbeat.common.states import Action

#: Edits that are read, the newest first.
MAX_CHANGES = 100
#: The clocks of two processes can differ by less.
_CLOCK_ERROR = timedelta(seconds=1)
_INCOMPLETE = "They are not known: the audit does not have all edits since the run."
_NOT_SENT = "The run was not sent."


@dataclass(frozen=True, slots=True, kw_only=True)
class SentArguments:
    """The arguments of a run. SQL by hand can write any JSON."""

    args: Any
    kwargs: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownArguments:
    """Why the arguments of a run are not known: a sentence."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """The arguments of the schedule in one of its versions."""

    number: int
    args: Any
    kwargs: Any

    @property
    def arguments(self) -> SentArguments:
        return SentArguments(args=self.args, kwargs=self.kwargs)

    def is_result_of(self, edit: ChangeInfo) -> bool:
        """Return whether the edit can have made this version: not if an edit is missing between.

        Without audit, the schedule can be deleted and another one created under its name.
        """
        empty: Mapping[str, Any] = (
            {"args": [], "kwargs": {}} if edit.action == Action.CREATE else {}
        )
        own = {"version": self.number, "args": self.args, "kwargs": self.kwargs}
        made = {**empty, **(edit.after or {})}
        return "version" in made and all(made.get(name, own[name]) == own[name] for name in own)

    def before(self, values: Mapping[str, Any]) -> "_Version":
        """Return the version before an edit with these old values."""
        return replace(
            self,
            number=values["version"],
            args=values.get("args", self.args),
            kwargs=values.get("kwargs", self.kwargs),
        )


def schedule_of(mine: OwnerSchedules, run: RunInfo) -> ScheduleInfo | None:
    """Return the schedule of a run of ``mine``, None if it was deleted."""
    try:
        schedule = mine.get(run.name)
    except ScheduleNotFoundError:
        return None
    # A new schedule can have the name of a deleted one.
    return schedule if schedule.id == run.schedule_id else None


def run_arguments(
    mine: OwnerSchedules, run: RunInfo, *, schedule: ScheduleInfo | None, now: datetime
) -> SentArguments | UnknownArguments:
    """Return the arguments of a run of ``mine``. ``schedule`` is None if it was deleted."""
    if run.sent_at is None and run.started_at is None:
        return UnknownArguments(reason=_NOT_SENT)
    if schedule is not None and schedule.updated_at < run.created_at - _CLOCK_ERROR:
        return SentArguments(args=schedule.args, kwargs=schedule.kwargs)
    # An earlier schedule may have had the name.
    since = None if schedule is None else schedule.created_at
    changes = mine.changes(run.name, since=since, limit=MAX_CHANGES)
    return _derived(run, schedule, list(changes), now=now)


def _derived(
    run: RunInfo, schedule: ScheduleInfo | None, changes: Sequence[ChangeInfo], *, now: datetime
) -> SentArguments | UnknownArguments:
    recorded_at = run.created_at - _CLOCK_ERROR
    started_at = (run.started_at or run.finished_at or now) + _CLOCK_ERROR
    # Others are no edits of the schedule, such as a manual run.
    edits = [each for each in changes if "version" in {**(each.before or {}), **(each.after or {})}]
    if schedule is not None:
        version = _Version(number=schedule.version, args=schedule.args, kwargs=schedule.kwargs)
    else:
        deletion = _deletion(edits, after=run.created_at + _CLOCK_ERROR)
        if deletion is None:
            return UnknownArguments(reason=_INCOMPLETE)
        # Empty values are not in the audit.
        version = _Version(number=0, args=[], kwargs={}).before(edits[deletion].before or {})
        edits = edits[deletion + 1 :]
    for edit in edits:
        before = edit.before or {}
        if not version.is_result_of(edit):
            break
        if edit.changed_at < recorded_at or (edit.action == Action.CREATE and schedule):
            return version.arguments
        if edit.action == Action.CREATE:
            break
        if edit.changed_at <= started_at and not {"args", "kwargs"}.isdisjoint(before):
            return UnknownArguments(reason=_changed_meanwhile(edit))
        version = version.before(before)
    return UnknownArguments(reason=_INCOMPLETE)


def _deletion(edits: Sequence[ChangeInfo], *, after: datetime) -> int | None:
    """Return the index of the first deletion after an instant. ``edits`` are the newest first."""
    found = [
        number
        for number, edit in enumerate(edits)
        if edit.action == Action.DELETE and edit.changed_at > after
    ]
    return found[-1] if found else None


def _changed_meanwhile(change: ChangeInfo) -> str:
    return (
        f"They are not known: they were changed at {change.changed_at:%Y-%m-%d %H:%M:%S} UTC,"
        " before the run started, and its message can have been sent again."
    )
