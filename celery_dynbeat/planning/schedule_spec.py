"""What a schedule asks for: its columns, with the settings for what they leave open."""

from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from celery_dynbeat.common.settings import Settings
from celery_dynbeat.triggers import Once, Trigger, parse_trigger
from celery_dynbeat.triggers.budget import PLAN, Budget
from celery_dynbeat.triggers.metered import Metered


class ScheduleSpec(NamedTuple):
    """What a schedule asks for, apart from what it has done so far.

    ``catch_up`` is ``"latest"``, ``"all"`` or ``"none"``. A fire time older than
    ``catch_up_window`` is not sent; with ``"none"`` one older than ``grace`` is not, where
    ``grace`` is the delay that still counts as on time. ``overlap`` is ``"allow"``, ``"skip"``,
    ``"buffer_one"`` or ``"cancel_previous"``; a run that has been running for ``max_run_time``
    overlaps with nothing any more. ``key`` names the schedule for what is picked by hash: ``H`` in
    a cron expression, and the delay within ``jitter``. A fire time nearer than ``min_interval`` to
    the one before it is not sent.
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
    jitter: timedelta = timedelta(0)
    min_interval: timedelta = timedelta(0)


class SpecColumns(Protocol):
    """The columns of a schedule that make up its rule; durations in seconds."""

    owner: str
    name: str
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
    jitter: float | None
    created_at: datetime


def spec_from_row(columns: SpecColumns, settings: Settings) -> ScheduleSpec:
    """Return the rule that a row states.

    Raises InvalidTriggerError when the trigger's text or zone is damaged.
    """
    key = key_for(columns.owner, columns.name)
    trigger = parse_trigger(columns.trigger_kind, columns.trigger_spec, timezone=columns.timezone)
    anchor = columns.start_at or columns.anchor_at or columns.created_at
    window = columns.catch_up_window
    return ScheduleSpec(
        trigger=trigger.hashed_by(key).anchored_at(anchor),
        key=key,
        start_at=columns.start_at,
        end_at=columns.end_at,
        max_runs=columns.max_runs,
        catch_up=columns.catch_up or settings.catch_up,
        catch_up_window=settings.catch_up_window if window is None else _seconds(window),
        grace=settings.dispatch_timeout,
        overlap=columns.overlap or settings.overlap,
        max_run_time=max_run_time(columns.max_run_time, settings),
        jitter=settings.jitter if columns.jitter is None else _seconds(columns.jitter),
        # A one-off that is moved is no rule that fires too often.
        min_interval=timedelta(0) if isinstance(trigger, Once) else settings.min_interval,
    )


def key_for(owner: str, name: str) -> str:
    """Return what names a schedule for all that is picked by hash."""
    # A name cannot hold a line break, so no two schedules share a key.
    return f"{owner}\n{name}"


def metered(rule: ScheduleSpec, *, steps: int = PLAN) -> ScheduleSpec:
    """Return ``rule`` with one budget for all that is asked about its trigger from here on.

    Raises InvalidTriggerError, at a question, when the budget is spent. Triggers whose questions
    cost the same each time stay as they are.
    """
    if not rule.trigger.metered:
        return rule
    return rule._replace(trigger=Metered(rule.trigger, Budget(steps)))


def max_run_time(seconds: float | None, settings: Settings) -> timedelta:
    """Return after which time a run of a schedule counts against overlap no more."""
    return settings.max_run_time if seconds is None else _seconds(seconds)


def expires_at(
    expires_after: float | None, *, created_at: datetime, settings: Settings
) -> datetime | None:
    """Return when a run made at ``created_at`` may no longer start; None: it always may."""
    delay = settings.expires_after if expires_after is None else _seconds(expires_after)
    return None if delay is None else created_at + delay


def _seconds(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)
