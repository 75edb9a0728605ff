"""The retry policy of a schedule: whether a failed run starts again, and when. PURE."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import datetime, timedelta
from typing import Any

from celery_dynbeat.common.errors import InvalidArgumentError
from celery_dynbeat.common.text import shorten, suggestion

MAX_RETRIES, MAX_FACTOR = 100, 100
#: Beat sends each retry, and one that is due at once could fail thousands of times in a minute.
MIN_DELAY = timedelta(seconds=1)
#: The present instant plus this duration is a date that each database can store.
MAX_DELAY = timedelta(days=36_525)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """When a failed run starts again, under the same id as a new attempt.

    - ``max_retries`` is the largest number of retries of a run, from 0 to 100; 0 means none.
      Retries that the task itself requests also count.
    - ``backoff`` is the time from the failure to the first retry, at least 1 second. Each retry
      multiplies it by ``factor``, from 1 to 100, up to ``backoff_max``. If ``backoff_max`` is not
      given, there is no upper bound. Durations are timedeltas or numbers of seconds.
    - If ``until_next_fire`` is true, a run fails for good if its retry would not be before the next
      fire time of its schedule.

    Raises InvalidArgumentError for an invalid value.
    """

    max_retries: int
    backoff: timedelta = timedelta(minutes=1)
    factor: float = 2.0
    backoff_max: timedelta | None = None
    until_next_fire: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.max_retries, bool) or not isinstance(self.max_retries, int):
            raise _invalid("max_retries", self.max_retries, "must be a whole number")
        if not 0 <= self.max_retries <= MAX_RETRIES:
            rule = f"must be from 0 to {MAX_RETRIES}; 0 means no retry"
            raise _invalid(
                "max_retries", self.max_retries, rule, "range", minimum=0, maximum=MAX_RETRIES
            )
        object.__setattr__(self, "backoff", _duration("backoff", self.backoff))
        object.__setattr__(self, "factor", _factor(self.factor))
        if self.backoff_max is not None:
            object.__setattr__(self, "backoff_max", _duration("backoff_max", self.backoff_max))
            if self.backoff_max < self.backoff:
                rule = f"must not be shorter than backoff = {shorten(self.backoff)}"
                raise _invalid("backoff_max", self.backoff_max, rule)
        if not isinstance(self.until_next_fire, bool):
            raise _invalid("until_next_fire", self.until_next_fire, "must be True or False")

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Retry":
        """Return the policy in a dict, which is the output of ``to_json`` or contains arguments.

        Raises InvalidArgumentError.
        """
        known = [each.name for each in fields(cls)]
        for name in value:
            if name not in known:
                rule = f"there is no such argument; {suggestion(name, known)}"
                raise _invalid(str(name)[:40], value[name], rule, "unknown", name=str(name)[:40])
        if "max_retries" not in value:
            message = "retry: max_retries is missing: add the largest number of retries of a run"
            raise InvalidArgumentError(message, field="retry", code="required")
        return cls(**value)

    def to_json(self) -> dict[str, Any]:
        """Return the policy as a dict of JSON values. Durations are seconds.

        ``backoff_max`` and ``until_next_fire`` are left out if they have their defaults.
        """
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        defaults = {each.name: each.default for each in fields(self)[3:]}
        return {
            name: value.total_seconds() if isinstance(value, timedelta) else value
            for name, value in given.items()
            if value != defaults.get(name, MISSING)
        }

    def retry_at(
        self, *, retries: int, now: datetime, next_fire_at: datetime | None = None
    ) -> datetime | None:
        """Return when a run that failed at ``now`` starts again, or None for a final failure.

        ``retries`` is how many retries the run has had. ``next_fire_at`` is the next fire time of
        its schedule, or None if there is none.
        """
        if retries >= self.max_retries:
            return None
        longest = MAX_DELAY if self.backoff_max is None else self.backoff_max
        # The exponent is below MAX_RETRIES, so that no float overflows.
        seconds = self.backoff.total_seconds() * self.factor**retries
        at = now + timedelta(seconds=min(seconds, longest.total_seconds()))
        if self.until_next_fire and next_fire_at is not None and at >= next_fire_at:
            return None
        return at


def effective_retry(stored: object, default: Retry | None) -> Retry | None:
    """Return the policy in the column ``retry``, or ``dynbeat_retry`` if the column is NULL."""
    return default if stored is None else stored_retry(stored)


def stored_retry(stored: object) -> Retry | None:
    """Return the policy in the column ``retry``, or None if it has none.

    A policy that only SQL can have written, and that cannot be read, does not apply.
    """
    if not stored or not isinstance(stored, Mapping):
        return None
    try:
        return Retry.from_json(stored)
    except InvalidArgumentError:
        return None


def _invalid(
    argument: str, value: object, rule: str, code: str = "type", **params: Any
) -> InvalidArgumentError:
    message = f"retry: {argument} = {shorten(value)}: {rule}"
    return InvalidArgumentError(message, field="retry", code=code, **params)


def _duration(name: str, value: Any) -> timedelta:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or not MIN_DELAY.total_seconds() <= seconds <= MAX_DELAY.total_seconds():
        rule = "must be a timedelta or a number of seconds, from 1 second to 100 years"
        raise _invalid(name, value, rule)
    return timedelta(seconds=seconds)


def _factor(value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 1 <= value <= MAX_FACTOR:
        raise _invalid("factor", value, f"must be a number from 1 to {MAX_FACTOR}")
    return float(value)
