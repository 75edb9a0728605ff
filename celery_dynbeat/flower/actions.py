"""What the buttons of the pages change: ACTIONS has a row for each.

A row names its handler, which reads what the form names, asks, and calls the row:

SelectedSchedules   schedule=[OWNER, NAME] ...   one or several schedules
SelectedRuns        run=ID ...                   one or several runs, or all=yes: all of a filter
SelectedFireTime    schedule=..., fire_at=...    a fire time of one schedule
OwnerScope          owner=OWNER                  an owner, or everything without the field
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Any, ClassVar, NamedTuple
from zoneinfo import ZoneInfo

from sqlalchemy.exc import SQLAlchemyError

from celery_dynbeat.api.filters import from_texts
from celery_dynbeat.common.errors import DynbeatError, InvalidArgumentError
from celery_dynbeat.common.filters import RunFilter
from celery_dynbeat.common.states import RERUNNABLE, REVOKE
from celery_dynbeat.common.text import counted, shorten
from celery_dynbeat.flower.base.action import HOURS, ActionHandler
from celery_dynbeat.flower.base.fragments import local_time
from celery_dynbeat.flower.base.handler import page_error
from celery_dynbeat.flower.base.page import Message, leave_message
from celery_dynbeat.flower.base.zones import given_instant
from celery_dynbeat.store.runs.run_pages import UNSUCCESSFUL

#: Schedules or runs of one form: as many as on the largest page.
MAX_SELECTED = 100
#: Runs that one request cancels.
MAX_CANCELLED = 10_000
#: Errors that a message lists, and names that a question lists.
_MAX_ERRORS, _MAX_NAMES = 5, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class AllRuns:
    """An action on all runs of a filter.

    - ``why_not`` returns why it changes no run of the filter, or None.
    - ``ask`` returns what the question names, and its details.
    - ``call`` returns the message.
    """

    why_not: Callable[[RunFilter], str | None]
    ask: Callable[[ActionHandler, RunFilter], tuple[str, Sequence[str]]]
    call: Callable[[ActionHandler, RunFilter], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAction:
    """A change, at the URL ``/dynbeat/NAME``.

    - ``call`` changes a row, given the handler and the row. Of a fire time and a scope, it returns
      the message.
    - ``verb`` begins the question. ``button`` is the label on a list, if that differs.
    - ``done`` is the message after several subjects, ``done_one`` after one, if that differs.
    - ``effect`` and ``details`` stand below the question.
    - A destructive action always asks, and its button is red.
    - ``no_end`` is the name of the choice without an end, such as "released", if the form asks for
      the end of the effect, in the fields ``until`` and ``until_at``.
    - ``asks_now``: the form asks, in the field ``now``, if runs wait for the end of quiet hours.
    """

    name: str
    handler: type["TableAction"]
    call: Callable[[Any, Any], Any]
    verb: str = ""
    button: str = ""
    done: str = ""
    done_one: str = ""
    effect: str = ""
    details: Sequence[str] = ()
    is_destructive: bool = False
    no_end: str = ""
    asks_now: bool = False
    all_runs: AllRuns | None = None


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The question before an action, with the number of affected rows, and the button."""

    question: str
    button: str
    details: Sequence[str]


class TableAction(ActionHandler):
    """The handler of a row of ACTIONS, for what a form names. Its methods run in a thread."""

    def initialize(self, action: PageAction) -> None:
        """Take the row."""
        self.action = action

    async def post(self, *_: str) -> None:
        """Ask for a confirmation, or act and redirect."""
        if not self.field("confirmed"):
            asked = await self.call(self.confirmation)
            if asked is not None:
                values = {"hours": list(HOURS), "given": self.given_fields, "back": self.back}
                action = self.action
                await self.render_page("confirm.html", asked=asked, action=action, **values)
                return
        leave_message(self, await self.change(self._acting))
        self.redirect(self.back, status=HTTPStatus.SEE_OTHER)

    def _acting(self) -> Message:
        with self.acting():
            return self.act()

    def confirmation(self) -> Confirmation | None:
        """Return what to ask first, None to act at once."""
        return None

    def act(self) -> Message:
        """Change something and return the message for the next page."""
        raise NotImplementedError

    def asked(
        self, what: str, *, button: str | None = None, details: Sequence[str] = ()
    ) -> Confirmation:
        """Return the question about ``what``. ``button`` names it on the button, if given."""
        verb = self.action.verb
        return Confirmation(
            question=f"{verb} {what}?",
            button=f"{verb} {what if button is None else button}".rstrip(),
            details=[*details, *self.action.details],
        )


class Selected(TableAction):
    """One or several rows of a list. A form of a list has the field ``ask``."""

    #: "schedule".
    noun: ClassVar[str]

    @property
    def items(self) -> Sequence[Any]:
        """The selected rows, each one once. Raises InvalidArgumentError for none and too many."""
        raise NotImplementedError

    @staticmethod
    def shown(item: Any) -> str:
        """Return a row for a sentence."""
        return str(item)

    @classmethod
    def number(cls, done: int, total: int) -> str:
        """Return for a sentence how many rows are done."""
        return f"{done} of {total}"

    def confirmation(self) -> Confirmation | None:
        """Ask for several rows, for a list, and before what cannot be undone."""
        items = self.items
        is_asked = len(items) > 1 or self.field("ask") or self.action.is_destructive
        return self.question(items) if is_asked else None

    def question(self, items: Sequence[Any]) -> Confirmation:
        """Return the question about the rows."""
        return self.asked(counted(len(items), self.noun))

    def act(self) -> Message:
        """Act on each row. The error of a single one is raised."""
        items = self.items
        call = partial(self.action.call, self)
        if len(items) > 1:
            return report(for_each(items, call), self.action)
        call(items[0])
        return report(ActionResult(items, (), ()), self.action)


class ScheduleKey(NamedTuple):
    """The owner and the name of a schedule."""

    owner: str
    name: str

    def __str__(self) -> str:
        return f"{self.name} of {self.owner}" if self.owner else self.name


class SelectedSchedules(Selected):
    """The schedules of the fields ``schedule``."""

    noun = "schedule"

    @property
    def items(self) -> Sequence[ScheduleKey]:
        """The schedules."""
        return decode(self.fields("schedule"))

    @staticmethod
    def shown(item: Any) -> str:
        """Return the name in quotation marks."""
        return f"“{item}”"

    @classmethod
    def number(cls, done: int, total: int) -> str:
        """Return how many schedules are done."""
        return counted(done, cls.noun) if done == total else f"{done} of {counted(total, cls.noun)}"

    def question(self, items: Sequence[Any]) -> Confirmation:
        """Return the question about one schedule, or about several with their first names."""
        number = counted(len(items), self.noun)
        if len(items) == 1:
            return self.asked(self.shown(items[0]), button=number)
        return self.asked(number, details=names(items))

    def act(self) -> Message:
        """Act on each schedule, and say when the effect ends."""
        until, message = self.until if self.action.no_end else None, super().act()
        if until is None:
            return message
        end = local_time(until, self.zone.common)
        return Message(f"{message.text} Until {end}.", message.kind)


class SelectedRuns(Selected):
    """The runs of the fields ``run``, or all runs that match the filter in the fields."""

    noun = "run"

    @property
    def items(self) -> Sequence[str]:
        """The ids of the runs."""
        return _selected(self.fields("run"), self.noun)

    def confirmation(self) -> Confirmation | None:
        """Ask with the number of runs."""
        every = self._every
        if every is None:
            return super().confirmation()
        what, details = every.ask(self, self._matching(every))
        return self.asked(what, details=details)

    def act(self) -> Message:
        """Act on each run, or on all that match."""
        every = self._every
        if every is None:
            return super().act()
        return Message(every.call(self, self._matching(every)))

    @property
    def _every(self) -> AllRuns | None:
        is_all = "yes" in {self.argument("all"), self.field("all")}
        return self.action.all_runs if is_all else None

    def _matching(self, every: AllRuns) -> RunFilter:
        given = {name: self.fields(name) for name in self.request.body_arguments}
        zone, now = self.zone.common, self.dynbeat.context.clock.now()
        matching = run_filter(given, zone=zone, now=now)
        reason = every.why_not(matching)
        if reason is not None:
            raise InvalidArgumentError(reason, field="status")
        return matching


class SelectedFireTime(TableAction):
    """The fire time in the field ``fire_at`` of one schedule."""

    def act(self) -> Message:
        """Change the fire time."""
        [key, *others] = decode(self.fields("schedule"))
        if others:
            msg = "Skip next works on one schedule at a time."
            raise InvalidArgumentError(msg, field="schedule")
        message: Message = self.action.call(self, key)
        return message

    @property
    def given_time(self) -> datetime | None:
        """The fire time that the viewer saw. Since then, another one can have become the next.

        Raises InvalidArgumentError for a text that is not an instant.
        """
        given = self.field("fire_at")
        try:
            return datetime.fromisoformat(given) if given else None
        except ValueError as error:
            msg = f"fire_at = {shorten(given)}: must be an instant in ISO 8601"
            raise InvalidArgumentError(msg, field="fire_at") from error


class OwnerScope(TableAction):
    """The owner of the field ``owner``, or everything. ``""`` is the application itself."""

    def confirmation(self) -> Confirmation | None:
        """Ask for the reason and the end, before an action with an effect that ends."""
        if not self.action.no_end:
            return None
        owner = self.owner
        scope = "all schedules" if owner is None else f"the schedules of {self.whose}"
        return self.asked(scope, button="")

    def act(self) -> Message:
        """Change it."""
        message: Message = self.action.call(self, self.calls_of(self.owner))
        return message

    @property
    def owner(self) -> str | None:
        """The owner that the form names; None means everything."""
        return self.field("owner") if self.has("owner") else None

    @property
    def whose(self) -> str:
        """What the action concerns."""
        return "Everything" if self.owner is None else self.owner or "(application)"


def encode(owner: str, name: str) -> str:
    """Return the value of a field ``schedule``. An owner and a name can contain any character."""
    return json.dumps([owner, name])


def decode(values: Iterable[str]) -> Sequence[ScheduleKey]:
    """Return the schedules of the fields, each one once.

    Raises InvalidArgumentError for none, for more than MAX_SELECTED, and for an invalid value.
    """
    return _selected(map(_decode, values), "schedule")


def _decode(value: str) -> ScheduleKey:
    try:
        owner, name = json.loads(value)
        # JSON can contain a lone surrogate. No page and no database can encode it.
        json.dumps([owner, name], ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError):
        owner = name = None
    if not isinstance(owner, str) or not isinstance(name, str):
        msg = f"schedule = {shorten(value)}: must be a JSON array of an owner and a name"
        raise InvalidArgumentError(msg, field="schedule")
    return ScheduleKey(owner, name)


def _selected(items: Iterable[Any], noun: str) -> Sequence[Any]:
    found = list(dict.fromkeys(items))
    if not found:
        raise InvalidArgumentError(f"No {noun} is selected. Select at least one.", field=noun)
    if len(found) > MAX_SELECTED:
        msg = f"{len(found):,} {noun}s are selected. Select at most {MAX_SELECTED} at once."
        raise InvalidArgumentError(msg, field=noun)
    return found


def names(keys: Sequence[ScheduleKey]) -> Sequence[str]:
    """Return the first names of a selection, and how many follow."""
    more = len(keys) - _MAX_NAMES
    return [*map(str, keys[:_MAX_NAMES]), *([f"and {more} more"] if more > 0 else [])]


@dataclass(frozen=True, slots=True)
class ActionResult:
    """The results for the selected rows. ``failed`` has the errors. ``rest`` were not tried."""

    done: Sequence[Any]
    failed: Sequence[tuple[Any, str]]
    rest: Sequence[Any]


def for_each(items: Sequence[Any], call: Callable[[Any], object]) -> ActionResult:
    """Call ``call`` for each row. An error of the database ends the loop.

    Each call is a transaction, so one row that fails does not undo the others.
    """
    done: list[Any] = []
    failed: list[tuple[Any, str]] = []
    for index, item in enumerate(items):
        try:
            call(item)
        except DynbeatError as error:
            failed.append((item, str(error)))
        except SQLAlchemyError as error:
            known = page_error(error)
            failed.append((item, known.text if known else ""))
            return ActionResult(done, failed, items[index + 1 :])
        else:
            done.append(item)
    return ActionResult(done, failed, ())


def report(outcome: ActionResult, action: PageAction) -> Message:
    """Return the message for an outcome of the action."""
    handler: Any = action.handler
    done, failed, rest = outcome.done, outcome.failed, outcome.rest
    total = len(done) + len(failed) + len(rest)
    if total == len(done) == 1:
        return Message((action.done_one or action.done).format(handler.shown(done[0])))
    parts = [action.done.format(handler.number(len(done), total))]
    parts += [f"{handler.shown(each)}: {text.rstrip('.')}." for each, text in failed[:_MAX_ERRORS]]
    if len(failed) > _MAX_ERRORS:
        parts.append(f"{len(failed) - _MAX_ERRORS} other {handler.noun}s failed.")
    if rest:
        parts.append(f"{counted(len(rest), handler.noun)} not tried.")
    return Message(" ".join(parts), "success" if not failed else "warning" if done else "danger")


def run_filter(given: Mapping[str, Sequence[str]], *, zone: ZoneInfo, now: datetime) -> RunFilter:
    """Return the filter of a URL or a form.

    ``?since=24h`` is a duration back from now, ``?since=2026-11-22T09:00`` a time in ``zone``.
    Raises InvalidArgumentError with the argument, its rule and the fix.
    """
    matching = from_texts(RunFilter, given, instant=partial(given_instant, zone=zone, now=now))
    if matching.name is not None and matching.owner is None:
        rule = 'a schedule has an owner: add owner:..., or owner:"" for the application'
        raise InvalidArgumentError(f"name = {shorten(matching.name)}: {rule}", field="name")
    return matching


def _keywords(matching: RunFilter) -> dict[str, Any]:
    """Return the arguments of ``rerun_many``, which are the first of ``cancel_runs``."""
    return {key: getattr(matching, key) for key in ("name", "task", "since", "until")}


def _count(form: ActionHandler, matching: RunFilter, statuses: Sequence[str] | None) -> Any:
    count: Any = form.calls_of(matching.owner).count_runs
    kept = {"origin": matching.origin, "batch_id": matching.batch_id, "status": statuses}
    return count(**_keywords(matching), **kept)


def _only_of_lists(matching: RunFilter) -> str:
    """Return the keys of the filter that ``rerun_many`` and ``cancel_runs`` do not have."""
    return " and ".join(key for key in ("worker", "text") if getattr(matching, key) is not None)


def _rerun_statuses(matching: RunFilter) -> Sequence[str]:
    """Return the statuses that run again: those of the filter, by default failed and lost."""
    return [each for each in matching.statuses or UNSUCCESSFUL if each in RERUNNABLE]


def _why_no_rerun(matching: RunFilter) -> str | None:
    if keys := _only_of_lists(matching):
        return f"A rerun of all runs cannot filter by {keys}."
    if matching.since is None:
        return "Choose a period, for example 24 h."
    if matching.origin is not None or matching.batch_id is not None:
        return "A rerun of all runs cannot filter by origin or batch."
    return None if _rerun_statuses(matching) else "Only ended runs can be rerun."


def _ask_rerun(form: ActionHandler, matching: RunFilter) -> tuple[str, Sequence[str]]:
    chosen = _rerun_statuses(matching)
    statuses = " and ".join(chosen)
    matched, every = _count(form, matching, chosen), _count(form, matching, None)
    details = (
        f"{matched} {statuses} of {every} runs match the filter.",
        "Runs that have a rerun are excluded.",
    )
    return f"all matching {statuses} runs", details


def _rerun_all(form: ActionHandler, matching: RunFilter) -> str:
    rerun_many: Any = form.calls_of(matching.owner).rerun_many
    statuses = _rerun_statuses(matching)
    result = rerun_many(**_keywords(matching), status=statuses, now=form.has("now"))
    more = "" if result.left_since is None else " More runs match: repeat the rerun."
    return f"Recorded {counted(result.total, 'rerun')}.{more}"


def _cancel_statuses(matching: RunFilter) -> Sequence[str]:
    """Return the statuses that are cancelled: those of the filter, by default all."""
    return [each for each in matching.statuses or REVOKE.sources if each in REVOKE.sources]


def _why_no_cancel(matching: RunFilter) -> str | None:
    if keys := _only_of_lists(matching):
        return f"A cancellation of all runs cannot filter by {keys}."
    possible = "Only pending, sent and retrying runs can be cancelled."
    return None if _cancel_statuses(matching) else possible


def _ask_cancel(form: ActionHandler, matching: RunFilter) -> tuple[str, Sequence[str]]:
    return f"{_count(form, matching, _cancel_statuses(matching))} matching runs", ()


def _cancel_all(form: ActionHandler, matching: RunFilter) -> str:
    count = form.calls_of(matching.owner).cancel_runs(
        **_keywords(matching),
        origin=matching.origin,
        batch_id=matching.batch_id,
        status=_cancel_statuses(matching),
        limit=MAX_CANCELLED,
    )
    more = " More runs may match. Cancel again to include them." if count == MAX_CANCELLED else ""
    return f"Cancelled {count:,} runs.{more}"


def _pause(form: ActionHandler, key: ScheduleKey) -> None:
    form.for_owner(key.owner).pause(
        key.name, until=form.until, reason=form.reason, expected_version=form.version
    )


def _skip(form: SelectedFireTime, key: ScheduleKey) -> Message:
    mine = form.for_owner(key.owner)
    upcoming = (each.fire_at for each in mine.upcoming(key.name, count=1))
    fire_at = form.given_time or next(upcoming, None)
    if fire_at is None:
        return Message(f"“{key}” has no fire time to skip.", "warning")
    info = mine.skip(key.name, fire_at, expected_version=form.version)
    return Message(f"“{key}” skips {local_time(fire_at, form.zone.of(info.timezone))}.")


def _unskip(form: SelectedFireTime, key: ScheduleKey) -> Message:
    fire_at = form.given_time
    if fire_at is None:
        msg = "fire_at is missing; pass the skipped fire time"
        raise InvalidArgumentError(msg, field="fire_at")
    info = form.for_owner(key.owner).unskip(key.name, fire_at)
    return Message(f"“{key}” runs again at {local_time(fire_at, form.zone.of(info.timezone))}.")


def _hold(scope: OwnerScope, calls: Any) -> Message:
    hold = calls.hold(reason=scope.reason, until=scope.until)
    end = "it is released"
    if hold.until_at is not None:
        end = local_time(hold.until_at, scope.zone.common)
    return Message(f"{scope.whose} is held until {end}.")


def _release(scope: OwnerScope, calls: Any) -> Message:
    return Message(f"{scope.whose} {'is released' if calls.release() else 'was not held'}.")


#: By name, in the order of the buttons.
ACTIONS: Mapping[str, PageAction] = {
    action.name: action
    for action in (
        PageAction(
            name="pause",
            handler=SelectedSchedules,
            call=_pause,
            verb="Pause",
            done="Paused {}.",
            effect="Runs that have not started are revoked.",
            no_end="resumed",
        ),
        PageAction(
            name="resume",
            handler=SelectedSchedules,
            call=lambda form, key: form.for_owner(key.owner).resume(
                key.name, expected_version=form.version
            ),
            verb="Resume",
            done="Resumed {}.",
            effect="Fire times missed during the pause are skipped.",
        ),
        PageAction(
            name="run_now",
            handler=SelectedSchedules,
            call=lambda form, key: form.for_owner(key.owner).run_now(key.name),
            verb="Run",
            button="Run now",
            done="Requested a run of {}.",
            effect=(
                "Each schedule runs once now with its stored arguments. Its fire times do not"
                " change."
            ),
        ),
        PageAction(
            name="delete",
            handler=SelectedSchedules,
            call=lambda form, key: form.for_owner(key.owner).delete(
                key.name, expected_version=form.version
            ),
            verb="Delete",
            done="Deleted {}.",
            effect=(
                "Runs that have not started are revoked. The history stays until it is pruned."
            ),
            is_destructive=True,
        ),
        PageAction(name="skip_next", handler=SelectedFireTime, call=_skip),
        PageAction(name="unskip", handler=SelectedFireTime, call=_unskip),
        PageAction(
            name="hold",
            handler=OwnerScope,
            call=_hold,
            verb="Hold",
            details=(
                "Beat starts no fire times until the release. Manual runs still start.",
                "After the release, catch_up decides which missed fire times run.",
            ),
            is_destructive=True,
            no_end="released",
        ),
        PageAction(name="release", handler=OwnerScope, call=_release),
        PageAction(
            name="rerun_runs",
            handler=SelectedRuns,
            call=lambda form, run_id: form.schedules.rerun(run_id, now=form.has("now")),
            verb="Rerun",
            done="Recorded {} reruns.",
            done_one="Recorded a rerun.",
            details=("The tasks receive the original fire times.",),
            asks_now=True,
            all_runs=AllRuns(why_not=_why_no_rerun, ask=_ask_rerun, call=_rerun_all),
        ),
        PageAction(
            name="cancel_runs",
            handler=SelectedRuns,
            call=lambda form, run_id: form.schedules.cancel_run(run_id),
            verb="Cancel",
            done="Cancelled {} runs.",
            done_one="Cancelled the run.",
            details=[
                (
                    "Running tasks continue. No other run is made for the fire times of the"
                    " cancelled runs."
                )
            ],
            is_destructive=True,
            all_runs=AllRuns(why_not=_why_no_cancel, ask=_ask_cancel, call=_cancel_all),
        ),
    )
}
