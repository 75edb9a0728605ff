"""Report runs to Sentry Crons: one check-in per run, under the id of the run.

    the first attempt of a run starts     -> in_progress
    the run has ended                     -> ok if it succeeded, else error, with the same id
    a retry, a refused message            -> nothing

The worker reports both, so the second cannot overtake the first. A run that no worker starts is
missing, and Sentry then reports it by the schedule of the monitor. Sentry's own receivers for beat
find no header of theirs in the messages of this package, so they send nothing.
"""

import re
from collections.abc import Sequence
from datetime import timedelta
from fnmatch import fnmatchcase
from types import ModuleType
from typing import Any
from uuid import UUID

from celery_dynbeat import signals
from celery_dynbeat.client import Context
from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.common.run_states import Status
from celery_dynbeat.store import schedules
from celery_dynbeat.triggers.base import Trigger
from celery_dynbeat.triggers.cron.trigger import Cron
from celery_dynbeat.triggers.interval.every import Every
from celery_dynbeat.triggers.parse import parse_trigger

#: Sentry's limit for the slug of a monitor.
MAX_SLUG_LENGTH = 50
#: Five fields without the forms that only this package has, such as H, L, W, # and ?.
_PLAIN_CRON = re.compile(
    r"(?:[\d*,/-]+\s+){3}(?:(?i:[\d*,/-]|[a-z]{3})+)\s+(?:(?i:[\d*,/-]|[a-z]{3})+)"
)
_UNITS = (
    ("day", timedelta(days=1)),
    ("hour", timedelta(hours=1)),
    ("minute", timedelta(minutes=1)),
)


class SentryMonitors:
    """Sends the check-ins of one worker node. Its pool processes inherit it when they are forked.

    ``patterns`` select schedules of the application itself (owner ``""``) by name. Raises
    ConfigurationError without sentry-sdk.
    """

    def __init__(self, context: Context, *, patterns: Sequence[str]) -> None:
        self._context = context
        self._patterns = patterns
        self._crons = _sentry_crons()

    def connect(self) -> None:
        """Connect the receivers."""
        signals.run_started.connect(self._on_started, weak=False)
        signals.run_ended.connect(self._on_ended, weak=False)

    def disconnect(self) -> None:
        """Disconnect the receivers."""
        signals.run_started.disconnect(self._on_started)
        signals.run_ended.disconnect(self._on_ended)

    def _on_started(self, event: signals.RunStarted, **_: Any) -> None:
        if event.attempt == 1:
            self._check_in(event, status="in_progress", duration=None)

    def _on_ended(self, event: signals.RunEnded, **_: Any) -> None:
        if event.status != Status.RETRYING:
            status = "ok" if event.status == Status.SUCCEEDED else "error"
            self._check_in(event, status=status, duration=event.duration)

    def _check_in(
        self,
        event: signals.RunStarted | signals.RunEnded,
        *,
        status: str,
        duration: timedelta | None,
    ) -> None:
        name = event.schedule
        if event.owner != "" or name is None or not self._is_monitored(name):
            return
        # Read each time: an edit applies from the next check-in.
        config = self._monitor_config(name)
        if config is not None:
            self._crons.capture_checkin(
                monitor_slug=slug_of(name),
                check_in_id=UUID(event.run_id).hex,
                status=status,
                duration=None if duration is None else duration.total_seconds(),
                monitor_config=config,
            )

    def _is_monitored(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._patterns)

    def _monitor_config(self, name: str) -> dict[str, Any] | None:
        row = self._context.database.read(
            lambda session: schedules.get(session, owner="", name=name)
        )
        if row is None:
            return None
        trigger = parse_trigger(row.trigger_kind, row.trigger_spec, timezone=row.timezone)
        schedule = schedule_of(trigger)
        return None if schedule is None else {"schedule": schedule, "timezone": row.timezone}


def slug_of(name: str) -> str:
    """Return the slug of the monitor of a schedule."""
    return re.sub(r"[^a-z0-9_-]+", "-", name.lower())[:MAX_SLUG_LENGTH]


def schedule_of(trigger: Trigger) -> dict[str, Any] | None:
    """Return the schedule of a Sentry monitor, or None for a trigger that Sentry cannot express."""
    if isinstance(trigger, Cron):
        is_plain = trigger.day_or and _PLAIN_CRON.fullmatch(trigger.expression)
        return {"type": "crontab", "value": trigger.expression} if is_plain else None
    if isinstance(trigger, Every) and trigger.interval is not None:
        for unit, length in _UNITS:
            count, rest = divmod(trigger.interval, length)
            if count and not rest:
                return {"type": "interval", "value": count, "unit": unit}
    return None


def _sentry_crons() -> ModuleType:
    try:
        # A late import: it needs an optional package.
        from sentry_sdk import crons  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(
            f"dynbeat_sentry_monitors needs sentry-sdk ({error}): pip install sentry-sdk, or remove"
            " the setting"
        ) from error
    return crons
