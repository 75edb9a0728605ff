"""The fields of a cron expression: what each may hold, and how a value is refused."""

from dataclasses import dataclass

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten

LAST = "l"

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


@dataclass(frozen=True, slots=True)
class Domain:
    """The values that a field may take; ``names`` stand for ``low``, ``low + 1`` ...

    ``sure`` is the highest value that comes in every round of the field.
    """

    name: str
    low: int
    high: int
    sure: int
    names: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Return how many values there are."""
        return self.high - self.low + 1


MINUTE = Domain("minute", 0, 59, sure=59)
HOUR = Domain("hour", 0, 23, sure=23)
DAY = Domain("day of month", 1, 31, sure=28)
MONTH = Domain("month", 1, 12, 12, _MONTHS)
WEEKDAY = Domain("day of week", 0, 6, 6, _WEEKDAYS)
SECOND = Domain("second", 0, 59, sure=59)
#: In the order of an expression.
DOMAINS = (MINUTE, HOUR, DAY, MONTH, WEEKDAY, SECOND)


def number(token: str, domain: Domain, text: str) -> int:
    """Return the value of a number or name; 7 is Sunday too, and stays 7 to end a range.

    Raises ``InvalidTriggerError`` for the field, whose whole text is ``text``.
    """
    if token in domain.names:
        return domain.names.index(token) + domain.low
    highest = 7 if domain is WEEKDAY else domain.high
    if token.isdigit() and domain.low <= int(token) <= highest:
        return int(token)
    if domain is DAY and "w" in token:
        reason = "W (nearest weekday) follows one day, as in 15W or LW; it takes no range or step"
    elif domain is DAY and token == LAST:
        reason = "L stands alone or in a list, as L or L-3, not in a range or step"
    elif domain is WEEKDAY and token == LAST:
        reason = "L follows its day, as in friL, the last Friday of the month"
    else:
        known = f" or a name from {domain.names[0]} to {domain.names[-1]}" if domain.names else ""
        reason = f"{token!r} is not a number from {domain.low} to {highest}{known}"
    raise refusal(text, domain, reason)


def step_size(token: str, domain: Domain, text: str) -> int:
    """Return the number behind a ``/``. Raises ``InvalidTriggerError`` for the field."""
    if 1 <= int(token) <= domain.size:
        return int(token)
    reason = (
        f"the step {token} is not from 1 to {domain.size}: steps start again with each round of the"
        " field; for longer intervals use Every"
    )
    raise refusal(text, domain, reason)


def refusal(text: str, domain: Domain, reason: str) -> InvalidTriggerError:
    """Return the error of a field: its name, its text, and the rule with the cure."""
    return InvalidTriggerError(f"{domain.name} {shorten(text)}: {reason}", field=domain.name)
