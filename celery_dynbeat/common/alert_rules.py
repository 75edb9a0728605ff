"""The rules that decide when an alert opens: a schedule's own rules, and the rules in effect."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.common.settings import DEFAULT_TARGET, failures, is_target_name
from celery_dynbeat.common.text import shorten, suggestion

if TYPE_CHECKING:
    from celery_dynbeat.common.settings import Settings

#: Runs that ``frequent_above`` may count. Each evaluation reads this many rows.
MAX_RUNS = 10_000
#: Each database can store the present instant minus this duration.
MAX_DURATION = timedelta(days=36_525)
#: The rules that are true or false, and those that are durations.
FLAGS = ("lost", "quarantined", "paused", "recovered")
DURATIONS = ("late_after", "slow_after", "silent_after", "frequent_within")


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveRules:
    """The rules that apply to a schedule: its own, else the settings. None means never."""

    after_failures: int | None
    lost: bool
    late_after: timedelta | None
    slow_after: timedelta | None
    silent_after: timedelta | None
    frequent_above: int | None
    frequent_within: timedelta | None
    quarantined: bool
    paused: bool
    recovered: bool
    to: str

    @property
    def needs_checks(self) -> bool:
        """Whether no event reports the alert, so that the schedule needs regular checks."""
        return self.silent_after is not None or self.frequent_above is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRules:
    """A schedule's own alert rules. A rule that is None follows the settings.

    - ``after_failures``: an alert opens after this many failed or lost runs in a row; 0 means
      never.
    - ``lost``, ``quarantined``, ``paused`` (by ``pause_after_failures``): whether this opens an
      alert.
    - ``late_after``, ``slow_after``, ``silent_after``: an alert opens if a run starts later than
      this, takes longer than this, or if there is no run for this long. They are timedeltas or
      numbers of seconds; 0 means never.
    - ``frequent_above``: an alert opens if there are more runs than this within
      ``frequent_within``; 0 means never.
    - ``recovered``: whether a message reports the end of an alert.
    - ``to``: the name of a target in the setting ``dynbeat_alert_urls``.

    Raises InvalidScheduleError for an invalid value.
    """

    after_failures: int | None = None
    lost: bool | None = None
    late_after: timedelta | None = None
    slow_after: timedelta | None = None
    silent_after: timedelta | None = None
    frequent_above: int | None = None
    frequent_within: timedelta | None = None
    quarantined: bool | None = None
    paused: bool | None = None
    recovered: bool | None = None
    to: str | None = None

    def __post_init__(self) -> None:
        for name in DURATIONS:
            object.__setattr__(self, name, _duration(name, getattr(self, name)))
        for name in FLAGS:
            _check_flag(name, getattr(self, name))
        _check_after_failures(self.after_failures)
        _check_frequency(self.frequent_above, self.frequent_within)
        if self.to is not None and not is_target_name(self.to):
            raise _invalid("to", self.to, "must be the name of a target in dynbeat_alert_urls")

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "AlertRules":
        """Return the rules in a dict, which is the output of ``to_json`` or contains arguments.

        Raises InvalidScheduleError.
        """
        known = [each.name for each in fields(cls)]
        for name in value:
            if name not in known:
                rule = f"there is no such rule; {suggestion(name, known)}"
                raise _invalid(str(name)[:40], value[name], rule)
        return cls(**value)

    def to_json(self) -> dict[str, Any]:
        """Return the rules that are set, as a dict of JSON values. Durations are in seconds."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name: value.total_seconds() if isinstance(value, timedelta) else value
            for name, value in given.items()
            if value is not None
        }

    def effective(self, settings: "Settings") -> EffectiveRules:
        """Return the rules that apply under ``settings``."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        rules: dict[str, Any] = {
            "to": DEFAULT_TARGET,
            **{name: getattr(settings, f"alert_{name}", None) for name in own if name != "to"},
            **{name: value for name, value in own.items() if value is not None},
        }
        # Zero means never, regardless of the settings. A flag remains a flag.
        rules |= {name: None for name, value in rules.items() if not value and value is not False}
        return EffectiveRules(**rules)


def stored_rules(stored: object) -> AlertRules:
    """Return the rules of the column ``alerts``.

    Rules that cannot be read do not apply. Only manual SQL can write such rules.
    """
    if not stored or not isinstance(stored, Mapping):
        return AlertRules()
    try:
        return AlertRules.from_json(stored)
    except InvalidScheduleError:
        return AlertRules()


def _invalid(name: str, value: object, rule: str) -> InvalidScheduleError:
    return InvalidScheduleError(f"alerts: {name} = {shorten(value)}: {rule}", field="alerts")


def _duration(name: str, value: Any) -> timedelta | None:
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds <= MAX_DURATION.total_seconds():
        rule = (
            "must be a timedelta or a number of seconds, 0 or more and at most 100 years;"
            " 0 means never"
        )
        raise _invalid(name, value, rule)
    return timedelta(seconds=seconds)


def _check_flag(name: str, value: object) -> None:
    if value is not None and not isinstance(value, bool):
        raise _invalid(name, value, "must be True or False")


def _check_after_failures(value: object) -> None:
    if value is None:
        return
    try:
        failures(value)
    except ValueError as error:
        raise _invalid("after_failures", value, str(error)) from None


def _check_frequency(above: object, within: timedelta | None) -> None:
    if above is None:
        if within is not None:
            raise _invalid("frequent_within", within, "needs frequent_above, a number of runs")
        return
    if isinstance(above, bool) or not isinstance(above, int) or not 0 <= above <= MAX_RUNS:
        rule = f"must be a whole number from 0 to {MAX_RUNS}; 0 means never"
        raise _invalid("frequent_above", above, rule)
    if above and not within:
        raise _invalid("frequent_above", above, "needs frequent_within, a duration of more than 0")
