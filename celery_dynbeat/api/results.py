"""The values that the API returns. They belong to no session. ``Info.to_dict`` gives their JSON."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any, ClassVar, Generic, TypeVar, overload

from celery_dynbeat.api.fields import FIELDS
from celery_dynbeat.common.alert_kinds import words_of
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.infos import BoundedCount, Info
from celery_dynbeat.common.quiet_rule import QuietHours
from celery_dynbeat.common.retry import Retry
from celery_dynbeat.common.states import UNFINISHED, Action, Origin, State, Status, Wait, lag_of
from celery_dynbeat.db.models import Calendar, Change, Hold, Run, Schedule
from celery_dynbeat.db.statements import Row
from celery_dynbeat.planning import key_for, stored_window
from celery_dynbeat.triggers import Trigger, parse_trigger, trigger_from_json

T = TypeVar("T", bound=Info)


@dataclass(frozen=True, slots=True, eq=False)
class Page(Info, Sequence[T], Generic[T]):
    """One page of a list. Pass ``cursor`` as ``after`` to get the next page.

    ``cursor`` is an opaque text, or None if this is the last page. A page equals a list of the same
    items.
    """

    items: tuple[T, ...]
    cursor: str | None

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, list):
            return list(self.items) == other
        if isinstance(other, Page):
            return (self.items, self.cursor) == (other.items, other.cursor)
        return NotImplemented

    def __hash__(self) -> int:
        return hash((self.items, self.cursor))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInfo(Info):
    """A snapshot of a schedule. Instants are aware and in UTC.

    - ``trigger`` is None if the stored trigger is damaged; ``error`` then contains the reason. An
      ``H`` in it has the values of this schedule.
    - ``given_trigger`` is the trigger in the form that ``create`` takes, without an inherited zone.
    - ``stored_trigger`` has the texts of the row, even of a damaged trigger: ``kind``, ``spec`` and
      ``timezone``.
    - ``timezone`` is the zone of the trigger. If ``inherits_timezone`` is true, the trigger or a
      part of it names no zone and follows the owner's zone.
    - ``next_run_at`` is None if the schedule is paused, finished, quarantined, or due and held.
    - ``paused_until`` is when beat resumes the paused schedule, or None if it stays paused until
      ``resume``.
    - ``held_at`` is when beat found that the due schedule is held, or None if it has not become due
      during the hold. ``is_held`` is true if a hold of the owner or of everything is in force. The
      results of ``get`` and ``list`` have it, and ``next_run_at`` is then None.
    - ``failing_since`` is when the first run in the current series of failed or lost runs ended. It
      is None if the last ended run succeeded, or if no run has ended.
    - A policy (``catch_up`` to ``retry``) that is None follows the settings. ``window`` is a
      duration, or a share of the interval such as ``"50%"``.
    - ``ping_url`` can contain a token. ``to_dict`` includes it, but the repr does not show it.
    - ``managed_by`` is ``"config"`` if the schedule follows an entry of Celery's ``beat_schedule``,
      and ``""`` otherwise.
    - ``version`` increases by one with each edit.
    """

    _PROPERTIES: ClassVar[tuple[str, ...]] = ("state", "rule")

    id: int
    owner: str
    name: str
    task: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]
    trigger: Trigger | None
    given_trigger: Trigger | None
    stored_trigger: Mapping[str, str]
    timezone: str
    inherits_timezone: bool
    enabled: bool
    paused_reason: str | None
    paused_until: datetime | None
    start_at: datetime | None
    end_at: datetime | None
    max_runs: int | None
    run_count: int
    catch_up: str | None
    catch_up_window: timedelta | None
    expires_after: timedelta | None
    finish_within: timedelta | None
    window: timedelta | str | None
    overlap: str | None
    max_run_time: timedelta | None
    on_lost: str | None
    pause_after_failures: int | None
    retry: Retry | None
    next_run_at: datetime | None
    held_at: datetime | None
    is_held: bool
    last_run_at: datetime | None
    failing_since: datetime | None
    finished_at: datetime | None
    error: str | None
    description: str
    tags: Sequence[str]
    ping_url: str | None = field(repr=False)
    managed_by: str
    version: int
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, row: Schedule, *, is_held: bool = False) -> "ScheduleInfo":
        """Return a snapshot of a row, whose owner or everything ``is_held``."""
        trigger, trigger_error = _trigger(row)
        special: dict[str, Any] = {
            "trigger": trigger,
            "given_trigger": None if trigger is None else _given_trigger(row, trigger),
            "stored_trigger": {
                "kind": row.trigger_kind,
                "spec": row.trigger_spec,
                "timezone": row.timezone,
            },
            "error": row.error or trigger_error or _window_error(row),
            # The column has the end of the hold.
            "next_run_at": None if is_held or row.held_at is not None else row.next_run_at,
            "is_held": is_held or row.held_at is not None,
            **{
                name: each.type.value_of(getattr(row, name))
                for name, each in FIELDS.items()
                if not each.in_options
            },
        }
        return cls._of_row(row, **special)

    @property
    def rule(self) -> str | None:
        """The text of ``given_trigger``. None if the stored trigger is damaged."""
        return None if self.given_trigger is None else self.given_trigger.to_text()

    @property
    def state(self) -> str:
        """The most important state of this snapshot.

        It is the first that applies of ``"quarantined"``, ``"finished"``, ``"paused"``, ``"held"``
        ``"failing"`` and ``"active"``. Only
        ``list(state="overdue")`` finds overdue schedules, because this state depends on the time.
        """
        states = {
            State.QUARANTINED: self.error is not None,
            State.FINISHED: self.finished_at is not None,
            State.PAUSED: not self.enabled,
            State.HELD: self.is_held,
            State.FAILING: self.failing_since is not None,
        }
        return str(next((state for state, applies in states.items() if applies), State.ACTIVE))


def _trigger(row: Schedule) -> tuple[Trigger | None, str | None]:
    """Return the row's trigger, or None and the error if it cannot be read."""
    try:
        trigger = parse_trigger(row.trigger_kind, row.trigger_spec, timezone=row.timezone)
        return trigger.bound_to(key_for(row)), None
    except InvalidTriggerError as error:
        return None, f"{type(error).__name__}: {error}"


def _window_error(row: Schedule) -> str | None:
    try:
        stored_window(row.window or 0)
    except InvalidTriggerError as error:
        return f"{type(error).__name__}: {error}"
    return None


def _given_trigger(row: Schedule, trigger: Trigger) -> Trigger:
    """Return the row's trigger without the zone that it inherits."""
    try:
        zone = None if row.inherits_timezone else row.timezone
        return parse_trigger(row.trigger_kind, row.trigger_spec, timezone=zone)
    except InvalidTriggerError:
        # A combination that has no fire time without a zone.
        return trigger


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo(Info):
    """A snapshot of a run. Instants are aware and in UTC.

    - ``id`` is the Celery task id.
    - A ``skipped`` run represents ``fire_count`` fire times, and ``fire_at`` is the newest.
    - ``schedule_id`` is None after the schedule has been deleted.
    - ``batch_id`` is the id of the batch that the run belongs to, or None for other runs.
    - ``rerun_of`` is the id of the run that a rerun repeats. The ``fire_at`` of a rerun is
      the fire time of that run.
    - ``earlier_errors`` has a text for each earlier attempt that failed or was lost, the oldest
      first, such as ``attempt 1, 2026-11-21T09:00:05Z: KeyError: 17``. Of very many attempts, the
      first ones are kept.
    - ``note`` is the text that the task passed to ``note()``, or None.
    - ``waited_for`` is what the run waits or last waited for: ``place``, ``hold``, ``quiet``,
      ``previous``, ``batch`` for its turn in a batch or, if its task has postponed it,
      ``postponed``. None means that it has not
      waited. ``ready_at`` is when it could be sent, or None if it did not wait or still waits.
    - ``retry_at`` is when the next attempt of a run is due that is ``retrying`` or that its task
      has postponed, or None for other runs.
    """

    _PROPERTIES: ClassVar[tuple[str, ...]] = ("wait", "lag", "queue_time", "duration")

    id: str
    schedule_id: int | None
    owner: str
    name: str
    task: str
    fire_at: datetime
    fire_count: int
    status: str
    origin: str
    batch_id: str | None
    rerun_of: str | None
    attempt: int
    retries: int
    created_at: datetime
    sent_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    waited_for: str | None
    ready_at: datetime | None
    retry_at: datetime | None
    worker: str | None
    error: str | None
    traceback: str | None
    earlier_errors: Sequence[str]
    note: str | None

    @classmethod
    def of(cls, row: Run) -> "RunInfo":
        """Return a snapshot of a row."""
        is_postponed = (row.status, row.waited_for) == (Status.PENDING, Wait.POSTPONED)
        postponed_until = row.overdue_at if is_postponed and row.ready_at is None else None
        return cls._of_row(
            row,
            fire_at=row.nominal_at or row.fire_at,
            earlier_errors=tuple((row.earlier_errors or "").splitlines()),
            # On an ended run the column is an instant for beat.
            retry_at=row.retry_at if row.status == Status.RETRYING else postponed_until,
        )

    @property
    def is_waiting(self) -> bool:
        """Whether the run waits for what ``waited_for`` names."""
        is_pending = self.status == Status.PENDING
        return is_pending and self.waited_for is not None and self.ready_at is None

    @property
    def due_at(self) -> datetime:
        """The fire time; for a rerun, a run of a backfill and a manual run, ``created_at``."""
        return self.fire_at if self.origin == Origin.SCHEDULE else self.created_at

    @property
    def wait(self) -> timedelta | None:
        """The time that the first attempt waited for ``waited_for``, from ``due_at``.

        None means that it did not wait, that it still waits, or that a later attempt has waited.
        """
        is_retry = self.sent_at and self.ready_at and self.ready_at > self.sent_at
        return None if is_retry else _elapsed(self.due_at, self.ready_at)

    @property
    def lag(self) -> timedelta | None:
        """The time from ``due_at`` until the run was sent, or None if it was not sent.

        For a run that waited, it counts from ``ready_at``.
        """
        if self.sent_at is None:
            return None
        return lag_of(sent_at=self.sent_at, due_at=self.due_at, ready_at=self.ready_at)

    @property
    def queue_time(self) -> timedelta | None:
        """The time from the first send to the start of the last attempt, or None before a start.

        It is 0 if a worker started the run before beat recorded that it had been sent.
        """
        return _elapsed(self.sent_at, self.started_at)

    @property
    def duration(self) -> timedelta | None:
        """The time from the start of the last attempt to the end of the run; None until then.

        It is never negative, even if the clock was set back during the run.
        """
        return _elapsed(self.started_at, self.finished_at)


def _elapsed(since: datetime | None, until: datetime | None) -> timedelta | None:
    if since is None or until is None:
        return None
    return max(timedelta(0), until - since)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeInfo(Info):
    """One edit, for the audit. ``changed_at`` is aware and in UTC.

    - ``owner`` is None for an edit of everything. ``name`` is ``""`` for an edit of the owner.
    - ``before`` and ``after`` are the changed fields, named and written as in
      ``ScheduleInfo.to_dict``. A new schedule has no ``before``, and a deleted one has no
      ``after``.
    - ``actor`` and ``reason`` are ``""`` if none was given.
    - ``text`` is the changed fields in one line, with a trigger in words:
      ``trigger: Every 5 minutes -> Every hour; window: 5.0 -> null``. It is ``""`` for a new or
      deleted schedule.
    """

    _PROPERTIES: ClassVar[tuple[str, ...]] = ("text",)

    id: int
    changed_at: datetime
    owner: str | None
    name: str
    action: str
    actor: str
    reason: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None

    @classmethod
    def of(cls, row: Change) -> "ChangeInfo":
        """Return a snapshot of a row."""
        return cls._of_row(row, before=row.old_values, after=row.new_values)

    @property
    def text(self) -> str:
        """The changed fields in one line."""
        before, after = self.before or {}, self.after or {}
        if self.before is None:
            made = {} if self.action == Action.CREATE else after
            return "; ".join(f"{name}: {value_text(value, name)}" for name, value in made.items())
        if self.after is None:
            return ""
        return "; ".join(
            f"{name}: {value_text(before.get(name), name)} -> {value_text(after.get(name), name)}"
            for name in {**before, **after}
            if name not in _INTERNAL
        )


#: Fields of a change that tell a reader nothing.
_INTERNAL = ("version",)


def value_text(value: Any, name: str) -> str:
    """Return the value of the field ``name`` of a change as text, with a trigger in words."""
    if name == "trigger" and isinstance(value, Mapping):
        try:
            return trigger_from_json(value).describe()
        except InvalidTriggerError:
            # A damaged row, or a kind that only a newer version knows.
            return " ".join(str(value[key]) for key in ("spec", "timezone") if value.get(key))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FireTime(Info):
    """An upcoming fire time. ``fire_at`` is aware and in UTC.

    - ``local`` is the same instant in the zone of the schedule, or in a preview in the zone of the
      owner. ``to_dict`` keeps its offset.
    - ``run_at`` is when the run is sent: after a hold and quiet hours, and after the offset in its
      window. It is None for a fire time that is taken out, and during a hold without an end. In a
      preview it is also None if ``catch_up`` or ``overlap`` sends another run of the same quiet
      time.
    - If ``is_skipped`` is true, ``skip()`` or a calendar took the fire time out. ``reason`` then
      says who skipped it and why, such as ``"skipped by alice@example.com: public holiday"``.
      ``calendar`` is the name of the calendar that took it out or moved it to a business day.
    - ``wait_note`` says why the run is sent later, and when. ``clock_note`` says how a clock change
      affects the fire time. Each is None if there is nothing to say.
    - ``note`` is all of this in one line, or None.
    """

    _PROPERTIES: ClassVar[tuple[str, ...]] = ("note",)

    fire_at: datetime
    local: datetime
    run_at: datetime | None = None
    is_skipped: bool = False
    reason: str | None = None
    calendar: str | None = None
    wait_note: str | None = None
    clock_note: str | None = None

    @property
    def note(self) -> str | None:
        """The reason of a skip, the effect of a clock change, and why the run is sent later."""
        skip = (self.reason or "skipped") if self.is_skipped else None
        return "; ".join(filter(None, (skip, self.clock_note, self.wait_note))) or None

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that ``json.dumps`` accepts."""
        return {**Info.to_dict(self), "local": self.local.isoformat()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewWarning(Info):
    """A property of a valid schedule that a user may not expect.

    ``code`` is ``"either_day"``, ``"rare"``, ``"all_excluded"``, ``"nothing_excluded"``,
    ``"calendar"``, ``"retry_too_late"`` or ``"no_name"``. ``message`` is a sentence.
    """

    code: str
    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview(Info):
    """The fire times that a schedule would have. ``to_dict`` is a body for a web form.

    - ``name`` is None if the call gave none.
    - ``text`` is the text of the given trigger.
    - ``trigger`` has the values that an ``H`` has in this schedule. If the given trigger names no
      zone, it has the zone of the owner. ``description`` describes it in a sentence.
    - ``timezone`` is the zone of the owner.
    - ``warnings`` name, among other things, the first fire times that a calendar removes or moves.
      No warning prevents ``create()``.
    - ``remaining`` is how many more schedules the owner may have, or None without a limit.
      ``min_interval`` is the shortest interval that the owner's triggers may have.
    """

    owner: str
    name: str | None
    text: str
    trigger: Trigger
    description: str
    timezone: str
    fire_times: Sequence[FireTime]
    warnings: Sequence[PreviewWarning]
    remaining: int | None
    min_interval: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldInfo(Info):
    """A snapshot of a hold. Instants are aware and in UTC.

    - ``owner`` is None if everything is held.
    - ``actor`` made the hold or changed it last. It is "" if the call named no actor.
    - ``created_at`` is when the hold began. A second ``hold()`` does not change it.
    - ``until_at`` is None if the hold lasts until ``release``.
    - ``schedules`` is the number of schedules that the hold stops: those with a next run.
      ``waiting_runs`` is the number of runs that wait for its end. Both read at most 10,000 rows.
      Only ``holds()`` counts; in other results both are None.
    """

    owner: str | None
    actor: str
    reason: str
    created_at: datetime
    until_at: datetime | None
    schedules: BoundedCount | None = None
    waiting_runs: BoundedCount | None = None

    @classmethod
    def of(cls, row: Hold) -> "HoldInfo":
        """Return a snapshot of a row, without counts."""
        return cls._of_row(row, schedules=None, waiting_runs=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertInfo(Info):
    """A snapshot of the last alert of one kind of a schedule. Instants are aware and in UTC.

    - ``kind`` is a value of ``AlertKind``. ``cause`` is why the alert opened, and ``next_step``
      what to do.
    - ``owner`` and ``schedule`` of an alert about beats or workers are empty.
    - ``run_id`` is the run that shows the cause, or None.
    - ``recovered_at`` is None while the alert is open. ``reported_at`` is when a message last
      reported the alert, or None.
    """

    id: int
    owner: str
    schedule: str
    task: str
    kind: str
    cause: str
    next_step: str
    run_id: str | None
    opened_at: datetime
    recovered_at: datetime | None
    reported_at: datetime | None

    @classmethod
    def of(cls, row: Row) -> "AlertInfo":
        """Return a snapshot of a row."""
        next_step = words_of(row.kind, schedule_id=row.schedule_id).next_step
        return cls._of_row(row, schedule=row.name, next_step=next_step)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchInfo(Info):
    """A batch: the runs that one ``backfill`` or ``rerun_many`` has recorded, at most 10,000.

    - ``batch_id`` is None if the call recorded no run.
    - ``counts`` has the number of the runs by status, ``total`` the number of all, and
      ``unfinished`` the number of those that have not ended.
    - ``excluded`` is the number of fire times that already had a run, or of runs that cannot run
      again: their schedule may not run its task, or they have a newer rerun. ``left_since`` is the
      ``since`` of the next call for what is left, or None if nothing is left. Only the call that
      records the batch knows both; in the result of ``get_batch`` they are None.
    """

    _PROPERTIES: ClassVar[tuple[str, ...]] = ("total", "unfinished")

    batch_id: str | None
    created_at: datetime
    counts: Mapping[str, int]
    excluded: int | None = None
    left_since: datetime | None = None

    @classmethod
    def recorded(
        cls,
        batch_id: str | None,
        *,
        number: int,
        considered: int,
        left_since: datetime | None,
        now: datetime,
    ) -> "BatchInfo":
        """Return a new batch of ``number`` runs, of those that were ``considered``."""
        return cls(
            batch_id=batch_id if number else None,
            created_at=now,
            counts={str(Status.PENDING): number} if number else {},
            excluded=considered - number,
            left_since=left_since,
        )

    @property
    def total(self) -> int:
        """The number of runs."""
        return sum(self.counts.values())

    @property
    def unfinished(self) -> int:
        """The number of runs that have not ended."""
        return sum(self.counts.get(status, 0) for status in UNFINISHED)


#: Failures that a result names.
MAX_FAILURES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkFailure(Info):
    """A schedule that a bulk edit did not change, and the error."""

    owner: str
    name: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkResult(Info):
    """The numbers of schedules in a bulk edit. ``matched`` is the sum of the other numbers.

    - ``changed`` schedules were changed or deleted.
    - ``unchanged`` schedules were already in the requested state.
    - ``failed`` schedules caused an error. ``failures`` has the first 100 of them.
    """

    matched: int = 0
    changed: int = 0
    unchanged: int = 0
    failed: int = 0
    failures: Sequence[BulkFailure] = ()

    def plus(self, other: "BulkResult") -> "BulkResult":
        """Return the result of both edits."""
        return BulkResult(
            matched=self.matched + other.matched,
            changed=self.changed + other.changed,
            unchanged=self.unchanged + other.unchanged,
            failed=self.failed + other.failed,
            failures=(*self.failures, *other.failures)[:MAX_FAILURES],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarInfo(Info):
    """A snapshot of a shared calendar. Instants are aware and in UTC.

    - ``dates`` are its days in order, each with its note, or "".
    - ``weekend`` are the days of the week that are not business days, such as ``("sat", "sun")``.
    - ``in_force_at`` is when beat finished planning the schedules with this ``version``, or None
      until then.
    - ``schedules`` is the number of schedules that use the calendar. ``waiting_schedules`` is the
      number of them that are not planned with this version yet. Both are at most 10,000. In a list
      of calendars, both are None.
    """

    name: str
    dates: Mapping[date, str]
    weekend: tuple[str, ...]
    version: int
    created_at: datetime
    updated_at: datetime
    updated_by: str
    in_force_at: datetime | None
    schedules: BoundedCount | None
    waiting_schedules: BoundedCount | None

    @classmethod
    def of(
        cls,
        row: Calendar,
        *,
        dates: Mapping[date, str],
        weekend: tuple[str, ...],
        schedules: BoundedCount | None,
        waiting: BoundedCount | None,
    ) -> "CalendarInfo":
        """Return a snapshot of a row with its days."""
        return cls._of_row(
            row,
            dates=dates,
            weekend=weekend,
            in_force_at=None if waiting is not None and waiting.count > 0 else row.in_force_at,
            schedules=schedules,
            waiting_schedules=waiting,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage(Info):
    """How many schedules and runs an owner has, and the limits on these numbers.

    - ``max_schedules`` and ``max_running`` are the limits, or None without a limit.
    - ``running`` is the number of runs that have a place, of all owners with the same
      ``running_key``. ``waiting`` is the number of runs of the owner that wait for a place. Without
      a limit on its runs, an owner has no key and needs no places.
    """

    _PROPERTIES = ("remaining",)

    owner: str
    schedules: int
    max_schedules: int | None
    running: int = 0
    waiting: int = 0
    max_running: int | None = None
    running_key: str | None = None

    @property
    def remaining(self) -> int | None:
        """How many more schedules the owner may have, or None without a limit."""
        if self.max_schedules is None:
            return None
        return max(self.max_schedules - self.schedules, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietHoursInfo(Info):
    """The quiet hours of an owner, or with ``owner=None`` of ``dynbeat_quiet_hours``.

    ``calendar`` is the calendar of their quiet days, or None. In ``to_dict``, each window is a
    text, such as ``"mon-fri 22:00-07:00"``.
    """

    owner: str | None
    windows: Sequence[QuietHours]
    calendar: str | None = None

    def __str__(self) -> str:
        days = [] if self.calendar is None else [f"the days of {self.calendar}"]
        return ", ".join([*map(str, self.windows), *days])

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that ``json.dumps`` accepts."""
        return {
            "owner": self.owner,
            "windows": [str(each) for each in self.windows],
            "calendar": self.calendar,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRow(Info):
    """The number of ``runs`` of a queue that become due in the minute or hour from ``start_at``.

    ``queue`` is None if the queue is not known.
    """

    start_at: datetime
    queue: str | None
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastInfo(Info):
    """The runs that become due from ``since`` until ``until``, including recurrences.

    - ``per`` is ``"minute"`` or ``"hour"``. ``since`` and ``until`` are whole minutes or hours in
      UTC.
    - ``rows`` are ordered by time and queue. A minute without runs has no row.
    - ``is_at_least`` is true if there can be more runs, because not all were counted.
    - ``total`` is the sum of the runs. ``busiest_at`` is the minute or hour with the most runs,
      the first one if several have as many, and ``busiest_runs`` their number.
    """

    _PROPERTIES: ClassVar[tuple[str, ...]] = ("total", "busiest_at", "busiest_runs")

    since: datetime
    until: datetime
    now: datetime
    per: str
    rows: Sequence[ForecastRow]
    is_at_least: bool

    @property
    def total(self) -> int:
        """The number of all runs."""
        return sum(row.runs for row in self.rows)

    @property
    def busiest_at(self) -> datetime | None:
        """The start of the minute or hour with the most runs. None if there are no runs."""
        return max(self._by_start(), key=self._by_start().__getitem__, default=None)

    @property
    def busiest_runs(self) -> int:
        """The number of runs in the minute or hour with the most runs."""
        return max(self._by_start().values(), default=0)

    def _by_start(self) -> Counter[datetime]:
        counts: Counter[datetime] = Counter()
        for row in self.rows:
            counts[row.start_at] += row.runs
        return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedRun(Info):
    """A run of the schedule, and what happened to its fire time."""

    run: RunInfo
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo(Info):
    """A beat, or a worker that consumes the queue of the schedule. ``state`` as in ``status``.

    ``kind`` is ``"beat"`` or ``"worker"``.
    """

    kind: str
    name: str
    state: str
    seen_at: datetime
    error: str | None


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
    next: Sequence[FireTime]
    holds: Sequence[HoldInfo]
    queue: str | None
    beats: Sequence[NodeInfo]
    workers: Sequence[NodeInfo]

    @property
    def text(self) -> str:
        """The sentence and the fix, and then the last runs and the next fire times."""
        lines = [self.sentence, *([f"Fix: {self.fix}"] if self.fix else [])]
        lines += [_line("last", each.run.fire_at, each.text) for each in self.runs]
        lines += [_line("next", each.fire_at, each.note or "") for each in self.next]
        return "\n".join(lines)


def _line(what: str, at: datetime, text: str) -> str:
    return f"{what} {at:%Y-%m-%dT%H:%M:%SZ} {text}".rstrip()
