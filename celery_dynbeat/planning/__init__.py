"""The specification of a schedule: its columns, with the settings as defaults."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.settings import Settings, as_share
from celery_dynbeat.common.text import shorten
from celery_dynbeat.planning.quiet_hours import Quiet, quiet_of
from celery_dynbeat.triggers import CalendarDays, Trigger, parse_trigger
from celery_dynbeat.triggers.base import PLAN_STEPS, SearchBudget, utc
from celery_dynbeat.triggers.wrappers import BudgetedTrigger, SkippingTrigger, nominal

T = TypeVar("T")
#: The calendars that some schedules use, by name.
Calendars = Mapping[str, CalendarDays]
NO_CALENDARS: Calendars = MappingProxyType({})


class ScheduleSpec(NamedTuple):
    """The trigger and the policies of a schedule, without its progress.

    - ``catch_up`` is ``"latest"``, ``"all"`` or ``"none"``. A fire time older than
      ``catch_up_window`` is not sent. With ``"none"``, a fire time older than ``grace`` is not sent
      either. ``grace`` is the delay that still counts as on time.
    - ``overlap`` is ``"allow"``, ``"skip"``, ``"buffer_one"`` or ``"cancel_previous"``. A run that
      has been running for ``max_run_time`` no longer counts as unfinished.
    - ``key`` seeds the hashes: of ``H`` in a cron expression, and of the offset in ``window``.
    - ``window`` is a duration, or a share of the time up to the next fire time, such as ``"50%"``.
    - A fire time that follows another by less than ``min_interval`` is not sent.
    - Nothing is sent in the ``quiet`` hours and on the quiet days of the owner.
    - ``calendars`` are the names of the calendars that the trigger uses.
    - ``trigger`` yields no fire time that ``skip()`` took out.
    """

    trigger: Trigger
    key: str = ""
    start_at: datetime | None = None
    end_at: datetime | None = None
    max_runs: int | None = None
    catch_up: str = "latest"
    catch_up_window: timedelta | None = None
    grace: timedelta = timedelta(seconds=30)
    overlap: str = "allow"
    max_run_time: timedelta = timedelta(hours=1)
    window: timedelta | str = timedelta(0)
    min_interval: timedelta = timedelta(0)
    quiet: Quiet | None = None
    calendars: tuple[str, ...] = ()


class TriggerColumns(Protocol):
    """The columns of a schedule that its trigger needs."""

    @property
    def trigger_kind(self) -> str:
        """The kind of the trigger."""

    @property
    def trigger_spec(self) -> str:
        """The text of the trigger."""

    @property
    def timezone(self) -> str:
        """The zone of the parts that do not name a zone."""

    @property
    def quiet_hours(self) -> str | None:
        """The text of the quiet hours, which can name a calendar."""


class KeyColumns(Protocol):
    """The columns of a schedule that its key consists of."""

    @property
    def owner(self) -> str:
        """The owner."""

    @property
    def name(self) -> str:
        """The present name."""

    @property
    def hash_name(self) -> str | None:
        """The first name of a renamed schedule."""


class SpecColumns(Protocol):
    """The columns of a schedule that its specification needs; durations in seconds."""

    owner: str
    name: str
    hash_name: str | None
    trigger_kind: str
    trigger_spec: str
    timezone: str
    anchor_at: datetime | None
    start_at: datetime | None
    end_at: datetime | None
    max_runs: int | None
    catch_up: str | None
    catch_up_window: float | None
    overlap: str | None
    max_run_time: float | None
    window: float | str | None
    quiet_hours: str | None
    skips: dict[str, str] | None
    created_at: datetime


def calendar_names(rows: Iterable[TriggerColumns]) -> frozenset[str]:
    """Return the names of the calendars that the triggers and the quiet hours of the rows use.

    A trigger that cannot be read uses none.
    """
    names = set[str]()
    for row in rows:
        names.update(_trigger_calendars(row), quiet_calendars(row.quiet_hours))
    return frozenset(names)


def calendars_behind(row: TriggerColumns, error: InvalidTriggerError) -> Sequence[str]:
    """Return the names of the calendars of which an edit may correct the error of a row."""
    quiet = quiet_calendars(row.quiet_hours) if error.field == "calendar" else ()
    return sorted({*_trigger_calendars(row), *quiet})


def _trigger_calendars(row: TriggerColumns) -> tuple[str, ...]:
    spec = row.trigger_spec
    # JSON can write each letter of a key as an escape. Searching the text costs far less than
    # reading the cache of the parsed triggers.
    if "calendar" not in spec and "\\" not in spec:
        return ()
    try:
        return parse_trigger(row.trigger_kind, spec, timezone=row.timezone).calendar_names
    except InvalidTriggerError:
        return ()


def quiet_calendars(text: str | None) -> tuple[str, ...]:
    """Return the name of the calendar of quiet days in the column ``quiet_hours``, if it has one.

    Quiet hours that cannot be read have none.
    """
    if text is None or "calendar" not in text:
        return ()
    try:
        calendar = quiet_of(text).calendar
    except InvalidTriggerError:
        return ()
    return () if calendar is None else (calendar,)


def spec_from_row(
    columns: SpecColumns, settings: Settings, calendars: Calendars | None = None
) -> ScheduleSpec:
    """Return the specification of the schedule in a row.

    ``calendars`` has each calendar that the trigger and the quiet hours use. Without this argument,
    a trigger that uses a calendar cannot compute fire times. Raises InvalidTriggerError when the
    trigger's text, its time zone, the quiet hours, the window or the skips are invalid, or a
    calendar is missing.
    """
    key = key_for(columns)
    trigger = parse_trigger(columns.trigger_kind, columns.trigger_spec, timezone=columns.timezone)
    anchor = columns.start_at or columns.anchor_at or columns.created_at
    names = trigger.calendar_names
    placed = trigger.hashed_by(key).anchored_at(anchor)
    resolved = placed.resolved(calendars) if names and calendars is not None else placed
    return ScheduleSpec(
        trigger=SkippingTrigger(resolved, skips_in(columns.skips)) if columns.skips else resolved,
        key=key,
        start_at=columns.start_at,
        end_at=columns.end_at,
        max_runs=columns.max_runs,
        catch_up=columns.catch_up or settings.catch_up,
        catch_up_window=_duration(columns.catch_up_window, settings.catch_up_window),
        grace=settings.dispatch_timeout,
        overlap=columns.overlap or settings.overlap,
        max_run_time=max_run_time(columns.max_run_time, settings),
        window=settings.window if columns.window is None else stored_window(columns.window),
        # A one-off that is moved does not fire too often.
        min_interval=(
            timedelta(0) if trigger.kind == "once" else settings.min_interval_of(columns.owner)
        ),
        quiet=None
        if columns.quiet_hours is None
        else _quiet(columns.quiet_hours, resolved, calendars),
        calendars=names,
    )


def skips_in(column: Mapping[str, str] | None) -> Mapping[datetime, str]:
    """Return the fire times in the column ``skips``, in their order, with the reasons.

    Raises InvalidTriggerError if SQL wrote another value.
    """
    if not column:
        return {}
    try:
        found = {utc(datetime.fromisoformat(at), field="skips"): column[at] for at in column}
        if not all(isinstance(reason, str) for reason in found.values()):
            raise TypeError(column)  # noqa: TRY301
    except (ValueError, TypeError) as error:
        message = f"skips = {shorten(column)}: is not what skip() writes"
        raise InvalidTriggerError(message, field="skips") from error
    return dict(sorted(found.items()))


def as_skips(skipped: Mapping[datetime, str]) -> dict[str, str] | None:
    """Return the value of the column ``skips``."""
    return {at.isoformat(): skipped[at] for at in sorted(skipped)} or None


def _quiet(text: str, trigger: Trigger, calendars: Calendars | None) -> Quiet:
    quiet = quiet_of(text).excluding(trigger)
    return quiet if calendars is None else quiet.with_days(calendars)


def key_for(columns: KeyColumns) -> str:
    """Return the key that seeds the hashes of a schedule. A rename does not change it."""
    # A name cannot contain a line break, so the key is unambiguous.
    return f"{columns.owner}\n{columns.hash_name or columns.name}"


def with_search_budget(
    spec: ScheduleSpec, *, steps: int = PLAN_STEPS, budget: SearchBudget | None = None
) -> ScheduleSpec:
    """Return ``spec`` with a budget of ``steps`` that all later calls of its trigger share.

    Several specs can share one ``budget``. A call that exceeds it raises InvalidTriggerError. A
    trigger whose calls have a constant cost is not changed.
    """
    trigger = nominal(spec.trigger)
    if not trigger.needs_budget:
        return spec
    limited: Trigger = BudgetedTrigger(trigger, SearchBudget(steps) if budget is None else budget)
    if isinstance(spec.trigger, SkippingTrigger):
        limited = SkippingTrigger(limited, spec.trigger.skipped)
    return spec._replace(trigger=limited)


def with_skipped(spec: ScheduleSpec) -> ScheduleSpec:
    """Return ``spec`` with the fire times that ``skip()`` took out."""
    trigger = nominal(spec.trigger)
    return spec if trigger is spec.trigger else spec._replace(trigger=trigger)


def max_run_time(seconds: float | None, settings: Settings) -> timedelta:
    """Return how long a started run of a schedule counts as unfinished for overlap."""
    return _duration(seconds, settings.max_run_time)


def stored_window(stored: float | str) -> timedelta | str:
    """Return the window in a row. Raises InvalidTriggerError if SQL wrote another text."""
    if not isinstance(stored, str):
        return timedelta(seconds=stored)
    try:
        return as_share(stored)
    except ValueError as error:
        message = f"window = {shorten(stored)}: {error}"
        raise InvalidTriggerError(message, field="window") from None


def _duration(seconds: float | None, default: T) -> timedelta | T:
    return default if seconds is None else timedelta(seconds=seconds)


def expires_at(
    expires_after: float | None, *, created_at: datetime, settings: Settings
) -> datetime | None:
    """Return when a run that was created at ``created_at`` expires, or None if it never does."""
    delay = settings.expires_after if expires_after is None else timedelta(seconds=expires_after)
    return None if delay is None else created_at + delay
