"""Rerun or cancel the runs that a form selects, or all that match its filter.

run=ID ...    the selected runs
?all=yes      all runs of the filter in the fields, such as owner, batch and status
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from celery_dynbeat.common.errors import DynbeatError, InvalidScheduleError
from celery_dynbeat.common.text import counted
from celery_dynbeat.flower.base.action import ActionHandler, Confirmation
from celery_dynbeat.flower.base.messages import Message
from celery_dynbeat.flower.pages.run_filter import RunFilter, run_filter

#: Runs of one form: as many as on the largest page.
MAX_SELECTED = 100
#: Runs that one request cancels.
MAX_CANCELLED = 10_000
_SHOWN_ERRORS = 3


class RunsAction(ActionHandler):
    """An action on runs."""

    #: "Cancel".
    verb: ClassVar[str]
    #: The message after one run, and after several: of the number that succeeded and of all.
    done_one: ClassVar[str]
    done_many: ClassVar[str]

    @property
    def is_all(self) -> bool:
        """Whether the action concerns all runs of the filter."""
        return self.argument("all") == "yes" or self.field("all") == "yes"

    @property
    def ids(self) -> Sequence[str]:
        """The selected runs. Raises InvalidScheduleError for none, and for too many."""
        found = list(dict.fromkeys(self.fields("run")))
        if not found:
            raise InvalidScheduleError("No run is selected. Select at least one.", field="run")
        if len(found) > MAX_SELECTED:
            msg = f"{len(found):,} runs are selected. Select at most {MAX_SELECTED} at once."
            raise InvalidScheduleError(msg, field="run")
        return found

    def matching(self) -> RunFilter:
        """Return the filter of the form."""
        return run_filter(
            argument=lambda name: self.field(name) if self._has(name) else None,
            statuses=self.fields("status"),
            zone=self.zone.common,
            now=self.dynbeat.context.clock.now(),
        )

    def each(self, call: Callable[[str], object]) -> Message:
        """Call ``call`` with each selected run, and return what succeeded and what did not.

        The error of a single run is raised.
        """
        if len(self.ids) == 1:
            call(self.ids[0])
            return Message(self.done_one)
        errors: list[str] = []
        for run_id in self.ids:
            try:
                call(run_id)
            except DynbeatError as error:
                errors.append(f"{run_id}: {error}".rstrip("."))
        count = len(self.ids) - len(errors)
        text = self.done_many.format(count, len(self.ids))
        shown = [f"{each}." for each in errors[:_SHOWN_ERRORS]]
        rest = len(errors) - len(shown)
        others = [f"{rest} other runs failed."] if rest else []
        kind = "success" if not errors else "warning" if count else "danger"
        return Message(" ".join([text, *shown, *others]), kind)

    def question(self, shown: str, *, details: Sequence[str]) -> Confirmation:
        """Return the question for a number of runs."""
        return Confirmation(
            question=f"{self.verb} {shown}?",
            button=f"{self.verb} {shown}",
            details=details,
            is_destructive=self.verb == "Cancel",
            asks_now=self.verb == "Rerun",
        )

    def _given(self) -> Sequence[tuple[str, str]]:
        # The button puts it into the URL, which the confirmation does not repeat.
        return [*super()._given(), *([("all", "yes")] if self.is_all else [])]

    def _has(self, name: str) -> bool:
        return name in self.request.body_arguments


class RerunAction(RunsAction):
    """Run ended runs again."""

    verb = "Rerun"
    done_one, done_many = "Recorded a rerun.", "Recorded {} of {} reruns."
    _DETAILS = ("The tasks receive the original fire times.",)

    def confirmation(self) -> Confirmation | None:
        """Ask with the number of runs. One run of its page needs no question."""
        if not self.is_all:
            count = len(self.ids)
            if count == 1 and not self.field("ask"):
                return None
            return self.question(counted(count, "run"), details=self._DETAILS)
        matching = self._rerunnable()
        statuses = " and ".join(matching.rerun_statuses)
        calls, chosen = self.calls_of(matching.owner), matching.rerun_statuses
        matched = calls.count_runs(**matching.arguments(status=chosen))
        every = calls.count_runs(**matching.arguments(status=None))
        details = (
            f"{matched} {statuses} of {every} runs match the filter.",
            "Runs that have a rerun are excluded.",
            *self._DETAILS,
        )
        return self.question(f"all matching {statuses} runs", details=details)

    def act(self) -> Message:
        """Record the reruns."""
        if not self.is_all:
            return self.each(partial(self.schedules.rerun, now=self._has("now")))
        matching = self._rerunnable()
        assert matching.since is not None  # noqa: S101 - _rerunnable() checks it
        owner = matching.owner
        calls = self.schedules if owner is None else self.for_owner(owner)
        result = calls.rerun_many(
            since=matching.since,
            until=matching.until,
            status=matching.rerun_statuses,
            name=matching.name,
            task=matching.task,
            now=self._has("now"),
        )
        more = "" if result.left_since is None else " More runs match: repeat the rerun."
        return Message(f"Recorded {counted(result.created, 'rerun')}.{more}")

    def _rerunnable(self) -> RunFilter:
        matching = self.matching()
        reason = matching.why_no_rerun()
        if reason is not None:
            raise InvalidScheduleError(reason, field="status")
        return matching


class CancelAction(RunsAction):
    """Cancel runs that have not started, or that wait for a retry."""

    verb = "Cancel"
    done_one, done_many = "Cancelled the run.", "Cancelled {} of {} runs."
    _DETAILS = (
        "Running tasks continue. No other run is made for the fire times of the cancelled runs.",
    )

    def confirmation(self) -> Confirmation | None:
        """Ask with the number of runs."""
        if not self.is_all:
            return self.question(counted(len(self.ids), "run"), details=self._DETAILS)
        matching = self._cancellable()
        arguments = matching.arguments(status=matching.cancel_statuses)
        matched = self.calls_of(matching.owner).count_runs(**arguments)
        return self.question(f"{matched} matching runs", details=self._DETAILS)

    def act(self) -> Message:
        """Cancel them."""
        if not self.is_all:
            return self.each(self.schedules.cancel_run)
        matching = self._cancellable()
        arguments = matching.arguments(status=matching.cancel_statuses)
        count = self.calls_of(matching.owner).cancel_runs(**arguments, limit=MAX_CANCELLED)
        more = (
            " More runs may match. Cancel again to include them." if count == MAX_CANCELLED else ""
        )
        return Message(f"Cancelled {count:,} runs.{more}")

    def _cancellable(self) -> RunFilter:
        matching = self.matching()
        reason = matching.why_no_cancel()
        if reason is not None:
            raise InvalidScheduleError(reason, field="status")
        return matching
