"""The times of day of a phrase: "9", "9:30 pm", "noon", "9, 12 and 17:30"."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import time
from math import prod

from celery_dynbeat.triggers.phrases.days import CronDays
from celery_dynbeat.triggers.phrases.reader import NAMED_TIMES, PhraseError, PhraseReader

_CLOCK = re.compile(
    r"(?P<hour>[0-9]{1,2})(?::(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2}))?)?(?P<half>am|pm)?"
)
_NOON = 12
_MAX_HOUR, _MAX_MINUTE = 23, 59
#: As many as describe() shows. It also limits the cost of triggers that are combined.
_MAX_TIMES = 6


@dataclass(frozen=True, slots=True)
class _Clock:
    """A time of day. ``half`` is am, pm or "" of its text, None of noon and midnight."""

    at: time
    half: str | None


def take_times(reader: PhraseReader, *, at_required: bool = True) -> list[time]:
    """Consume ``at`` and one time of day or several, and return them in their order.

    Raises ``PhraseError``.
    """
    if not reader.take("at") and (at_required or not reader.next):
        raise PhraseError("add a time of day, as in 'daily at 9:30' or 'weekdays at 6 pm'")
    clocks = reader.take_list(_take_clock)
    if not clocks:
        raise PhraseError("write the time of day as '9', '9:30 pm', '17:30', 'noon' or 'midnight'")
    if len({bool(clock.half) for clock in clocks if clock.half is not None}) > 1:
        raise PhraseError("write am or pm after each time of day, or after none")
    if len(clocks) > _MAX_TIMES:
        raise PhraseError(f"it has {len(clocks)} times of day; at most {_MAX_TIMES} are allowed")
    return sorted({clock.at for clock in clocks})


def cron_expressions(times: Sequence[time], days: CronDays) -> list[str]:
    """Return cron expressions that fire at ``times`` on ``days``: one if one is enough."""
    hours, minutes, seconds = (
        sorted({getattr(at, unit) for at in times}) for unit in ("hour", "minute", "second")
    )
    if len(times) == prod(map(len, (hours, minutes, seconds))):
        return [_cron(minutes, hours, days, seconds)]
    return [_cron([at.minute], [at.hour], days, [at.second]) for at in times]


def _cron(
    minutes: Sequence[int], hours: Sequence[int], days: CronDays, seconds: Sequence[int]
) -> str:
    minute, hour, second = (",".join(map(str, values)) for values in (minutes, hours, seconds))
    expression = f"{minute} {hour} {days.day} * {days.weekday}"
    return expression if second == "0" else f"{expression} {second}"


def _take_clock(reader: PhraseReader) -> _Clock | None:
    named = reader.take(*NAMED_TIMES)
    if named:
        return _Clock(NAMED_TIMES[named], None)
    match = _CLOCK.fullmatch(reader.next)
    if match is None:
        return None
    reader.position += 1
    half = match["half"] or reader.take("am", "pm")
    hour, minute, second = (int(match[unit] or 0) for unit in ("hour", "minute", "second"))
    if half and not 1 <= hour <= _NOON:
        raise PhraseError(f"{match[0]} is no time: with am or pm the hours are 1 to 12")
    if hour > _MAX_HOUR or max(minute, second) > _MAX_MINUTE:
        raise PhraseError(f"{match[0]} is no time: times are 0:00 to 23:59")
    if half:
        hour = hour % _NOON + (_NOON if half == "pm" else 0)
    return _Clock(time(hour, minute, second), half)
