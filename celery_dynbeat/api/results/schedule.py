"""The results of the API's calls for schedules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from celery_dynbeat.api.fields import FIELDS
from celery_dynbeat.api.results.base import Info
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.retry import Retry
from celery_dynbeat.common.states import State
from celery_dynbeat.planning import key_for, stored_window
from celery_dynbeat.triggers import Trigger, parse_trigger

if TYPE_CHECKING:
    from celery_dynbeat.api.columns import ScheduleRow


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
    def of(cls, row: "ScheduleRow", *, is_held: bool = False) -> "ScheduleInfo":
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
        plain = {name: getattr(row, name) for name in cls.__slots__ if name not in special}
        return cls(**plain, **special)

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


def _trigger(row: "ScheduleRow") -> tuple[Trigger | None, str | None]:
    """Return the row's trigger, or None and the error if it cannot be read."""
    try:
        trigger = parse_trigger(row.trigger_kind, row.trigger_spec, timezone=row.timezone)
        return trigger.bound_to(key_for(row)), None
    except InvalidTriggerError as error:
        return None, f"{type(error).__name__}: {error}"


def _window_error(row: "ScheduleRow") -> str | None:
    try:
        stored_window(row.window or 0)
    except InvalidTriggerError as error:
        return f"{type(error).__name__}: {error}"
    return None


def _given_trigger(row: "ScheduleRow", trigger: Trigger) -> Trigger:
    """Return the row's trigger without the zone that it inherits."""
    try:
        zone = None if row.inherits_timezone else row.timezone
        return parse_trigger(row.trigger_kind, row.trigger_spec, timezone=zone)
    except InvalidTriggerError:
        # A combination that has no fire time without a zone.
        return trigger
