"""The arguments that a run was sent with.

A run stores no arguments. Each message carries the arguments that the schedule has when beat
publishes the message. Beat can publish it several times until a worker starts the run. The
arguments are therefore known if no edit changed them between the record of the run and its last
start. Each edit writes the version before and after it. A chain of versions without a gap, back
from the present schedule or its deletion, contains all edits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.api.calls import Calls
from celery_dynbeat.api.checks import check_run_id
from celery_dynbeat.api.results import ChangeInfo, RunArguments, RunInfo, ScheduleInfo
from celery_dynbeat.common.errors import RunNotFoundError
from celery_dynbeat.common.states import Action
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import runs, schedules
from celery_dynbeat.store.schedules import change_pages

#: Edits that are read, the newest first.
MAX_CHANGES = 100
#: The clocks of two processes can differ by less.
_CLOCK_ERROR = timedelta(seconds=1)
_INCOMPLETE = "They are not known: the audit does not have all edits since the run."
_RENAMED = "They are not known: the schedule was renamed since the run."
_NOT_SENT = "The run was not sent."


class RunArgumentCalls(Calls):
    """The call for the arguments of a run."""

    def run_arguments(self, run_id: str, *, session: Session | None = None) -> RunArguments:
        """Return the arguments that a run was sent with.

        A run stores no arguments, so the call derives them from the audit. If this is not possible,
        the result says why, for example because the audit lacks an edit. Raises RunNotFoundError,
        also for a run whose owner is outside the scope of the calls.

        >>> run = mine.run_now("digest")
        >>> mine.run_arguments(run.id).unknown
        'The run was not sent.'
        """
        run_id = check_run_id("run_id", run_id)

        def work(session: Session) -> RunArguments:
            row = runs.get(session, run_id=run_id)
            if row is None or self._owner not in {None, row.owner}:
                raise RunNotFoundError(owner=self._owner, run_id=run_id)
            run = RunInfo.of(row)
            return _arguments(session, run, _schedule(session, run), now=self._context.clock.now())

        return self._context.read_many(session, work)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """The arguments of the schedule in one of its versions."""

    number: int
    args: Any
    kwargs: Any

    @property
    def arguments(self) -> RunArguments:
        return RunArguments(args=self.args, kwargs=self.kwargs)

    def is_result_of(self, edit: ChangeInfo) -> bool:
        """Return whether the edit can have made this version, with no missing edit in between.

        If there is no audit, the schedule can have been deleted and another schedule created under
        its name.
        """
        empty: Mapping[str, Any] = {"args": [], "kwargs": {}} if _is_creation(edit) else {}
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


def schedule_of(context: Context, run: RunInfo) -> ScheduleInfo | None:
    """Return the schedule of a run, or None if it was deleted. It may have another name now."""
    return context.read(None, lambda session: _schedule(session, run))


def _schedule(session: Session, run: RunInfo) -> ScheduleInfo | None:
    if run.schedule_id is None:
        return None
    row = schedules.get_id(session, owner=run.owner, schedule_id=run.schedule_id)
    return None if row is None else ScheduleInfo.of(row)


def _arguments(
    session: Session, run: RunInfo, schedule: ScheduleInfo | None, *, now: datetime
) -> RunArguments:
    """Return the arguments of a run. ``schedule`` is None if it was deleted."""
    if run.sent_at is None and run.started_at is None:
        return RunArguments(unknown=_NOT_SENT)
    if schedule is not None and schedule.updated_at < run.created_at - _CLOCK_ERROR:
        return RunArguments(args=schedule.args, kwargs=schedule.kwargs)
    if schedule is not None and schedule.name != run.name:
        return RunArguments(unknown=_RENAMED)
    # An earlier schedule may have had the name.
    since = None if schedule is None else schedule.created_at
    edits = change_pages.ChangeFilter(owner=run.owner, name=run.name, since=since)
    rows = change_pages.page(session, matching=edits, after=None, limit=MAX_CHANGES)
    return _derived(run, schedule, list(map(ChangeInfo.of, rows)), now=now)


def _derived(
    run: RunInfo, schedule: ScheduleInfo | None, newest: Sequence[ChangeInfo], *, now: datetime
) -> RunArguments:
    recorded_at = run.created_at - _CLOCK_ERROR
    started_at = (run.started_at or run.finished_at or now) + _CLOCK_ERROR
    # Others are not edits of the schedule, such as a manual run.
    edits = [each for each in newest if "version" in {**(each.before or {}), **(each.after or {})}]
    if schedule is not None:
        version = _Version(number=schedule.version, args=schedule.args, kwargs=schedule.kwargs)
    else:
        deletion = _deletion(edits, after=run.created_at + _CLOCK_ERROR)
        if deletion is None:
            return RunArguments(unknown=_INCOMPLETE)
        # Empty values are not in the audit.
        version = _Version(number=0, args=[], kwargs={}).before(edits[deletion].before or {})
        edits = edits[deletion + 1 :]
    for edit in edits:
        before = edit.before or {}
        if not version.is_result_of(edit):
            break
        if edit.changed_at < recorded_at or (_is_creation(edit) and schedule):
            return version.arguments
        # Before a rename, the name may have belonged to another schedule. The edits before a move
        # are in the audit of another owner.
        if _is_creation(edit) or edit.action in {Action.RENAME, Action.MOVE}:
            break
        if edit.changed_at <= started_at and not {"args", "kwargs"}.isdisjoint(before):
            return RunArguments(unknown=_changed_meanwhile(edit))
        version = version.before(before)
    return RunArguments(unknown=_INCOMPLETE)


def _is_creation(edit: ChangeInfo) -> bool:
    """Return whether the edit created the schedule, by a create or by the restore of a deletion."""
    return edit.before is None


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
