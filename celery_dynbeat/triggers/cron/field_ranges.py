"""The fields of a cron expression: the values of each, and the errors for other values."""

from dataclasses import dataclass

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers.words import MONTHS, WEEKDAYS

_LAST_SYMBOL = "l"


@dataclass(frozen=True, slots=True)
class FieldRange:
    """The values of a field. ``names`` stand for ``low``, ``low + 1`` and so on.

    ``always_high`` is the highest value that occurs each time: every month has a 28th.
    """

    name: str
    low: int
    high: int
    always_high: int
    names: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Return the number of values."""
        return self.high - self.low + 1


MINUTE = FieldRange("minute", 0, 59, always_high=59)
HOUR = FieldRange("hour", 0, 23, always_high=23)
DAY = FieldRange("day of month", 1, 31, always_high=28)
MONTH = FieldRange("month", 1, 12, 12, tuple(name[:3].lower() for name in MONTHS))
# Sunday, the last of WEEKDAYS, is 0 in cron.
WEEKDAY = FieldRange(
    "day of week", 0, 6, 6, tuple(WEEKDAYS[day - 1][:3].lower() for day in range(7))
)
SECOND = FieldRange("second", 0, 59, always_high=59)
#: In the order of an expression.
FIELD_RANGES = (MINUTE, HOUR, DAY, MONTH, WEEKDAY, SECOND)


def parse_number(token: str, field: FieldRange, text: str) -> int:
    """Return the value of a number or name. 7 stays 7: it is Sunday at the end of a range.

    Raises ``InvalidTriggerError`` for the field, whose whole text is ``text``.
    """
    if token in field.names:
        return field.names.index(token) + field.low
    highest = 7 if field is WEEKDAY else field.high
    if token.isdigit() and field.low <= int(token) <= highest:
        return int(token)
    if field is DAY and "w" in token:
        reason = "W (nearest weekday) follows one day, as in 15W or LW; it takes no range or step"
    elif field is DAY and token == _LAST_SYMBOL:
        reason = "L stands alone or in a list, as L or L-3, not in a range or step"
    elif field is WEEKDAY and token == _LAST_SYMBOL:
        reason = "L follows its day, as in friL, the last Friday of the month"
    else:
        names = f" or a name from {field.names[0]} to {field.names[-1]}" if field.names else ""
        reason = f"{token!r} is not a number from {field.low} to {highest}{names}"
    raise invalid_field(text, field, reason)


def parse_step(token: str, field: FieldRange, text: str) -> int:
    """Return the number after a ``/``. Raises ``InvalidTriggerError`` for the field."""
    if 1 <= int(token) <= field.size:
        return int(token)
    reason = (
        f"the step {token} is not from 1 to {field.size}: steps start again with each round of the"
        " field; for longer intervals use Every"
    )
    raise invalid_field(text, field, reason)


def invalid_field(text: str, field: FieldRange, reason: str) -> InvalidTriggerError:
    """Return the error of a field: its name, its text, and the rule with the hint."""
    return InvalidTriggerError(f"{field.name} {shorten(text)}: {reason}", field=field.name)
