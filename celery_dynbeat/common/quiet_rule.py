"""The quiet hours and quiet days of an owner or everybody, as callers give them. PURE.

QuietHours   one weekly window, and its text: "mon-fri 22:00-07:00"
QuietRule    the windows and the calendar of quiet days, as dynbeat_owner and the setting have them
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from celery_dynbeat.common.errors import InvalidArgumentError
from celery_dynbeat.common.text import shorten

#: The maximum number of windows of one owner.
MAX_WINDOWS = 50
_WHOLE_WEEK = (
    "with dynbeat_quiet_hours, they cover the whole week, so no run would be sent; leave some out"
)
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY, WEEK = 24 * 60, 7 * 24 * 60
_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)|24:00", re.ASCII)
#: Characters of days and of a whole window: more than seven days and two times need. A search in a
#: longer text would take long.
_MAX_DAYS, _MAX_TEXT = 80, 100
_TEXT = re.compile(r"(?:(\S+)\s+)?([^\s-]+)-([^\s-]+)", re.ASCII)

#: A span of minutes, counted from Monday 00:00. The second number is not part of the span.
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class QuietHours:
    """A weekly window of the clock in which runs are not sent, such as 22:00 to 07:00.

    - ``start`` and ``end`` are times such as ``"22:00"``. ``end`` is not part of the window. It is
      on the next day if it is not later than ``start``; ``"00:00"`` to ``"00:00"`` is a whole day.
    - ``days`` are the days on which the window starts, such as ``"mon-fri"`` or ``"sat,sun"``.
      ``"*"`` means every day.

    Raises InvalidArgumentError for an invalid value.

    >>> str(QuietHours("22:00", "07:00", days="mon-fri"))
    'mon-fri 22:00-07:00'
    """

    start: str
    end: str
    days: str = "*"

    def __post_init__(self) -> None:
        _minutes_of("start", self.start)
        _minutes_of("end", self.end)
        _days_of(self.days)
        # Without the blanks of "sat, sun", because from_text() must read the output of str().
        object.__setattr__(self, "days", "".join(self.days.split()).lower())

    @classmethod
    def from_text(cls, text: object) -> "QuietHours":
        """Return the window in a text such as ``"mon-fri 22:00-07:00"`` or ``"22:00-07:00"``.

        Raises InvalidArgumentError.
        """
        match = None
        if isinstance(text, str) and len(text) <= _MAX_TEXT:
            match = _TEXT.fullmatch(text.strip())
        if match is None:
            rule = "must be a text such as 'mon-fri 22:00-07:00' or '22:00-07:00'"
            raise invalid_quiet("windows", text, rule)
        days, start, end = match.groups()
        return cls(start, end, days=days or "*")

    def __str__(self) -> str:
        days = "" if self.days == "*" else f"{self.days} "
        return f"{days}{self.start}-{self.end}"

    def spans(self) -> Sequence[Span]:
        """Return the minutes of the week in the window. A span can end in the next week."""
        start, end = _minutes_of("start", self.start), _minutes_of("end", self.end)
        length = (end - start) % _DAY or _DAY
        firsts = [day * _DAY + start for day in _days_of(self.days)]
        return [(first, first + length) for first in firsts]


def _minutes_of(field: str, value: object) -> int:
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None or (value == "24:00" and field == "start"):
        raise invalid_quiet(field, value, "must be a time from '00:00' to '23:59', such as '22:00'")
    return _DAY if match[1] is None else int(match[1]) * 60 + int(match[2])


def _days_of(value: object) -> Sequence[int]:
    rule = "must be days such as 'mon-fri', 'sat,sun' or '*'"
    if not isinstance(value, str) or len(value) > _MAX_DAYS:
        raise invalid_quiet("days", value, rule)
    days: set[int] = set()
    for part in ("mon-sun" if value == "*" else value.lower()).split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if first not in _DAYS or last not in _DAYS:
            raise invalid_quiet("days", value, rule)
        start, end = _DAYS.index(first), _DAYS.index(last)
        days.update((start + number) % 7 for number in range((end - start) % 7 + 1))
    return sorted(days)


def invalid_quiet(
    field: str, value: object, rule: str, code: str = "type", **params: Any
) -> InvalidArgumentError:
    """Return the error of an invalid part."""
    message = f"{field} = {shorten(value)}: {rule}"
    return InvalidArgumentError(message, field=field, code=code, **params)


class QuietRule(NamedTuple):
    """The quiet hours of one owner, or of everybody.

    ``calendar`` is the name of the calendar whose dates are quiet days, or None.
    """

    windows: Sequence[QuietHours] = ()
    calendar: str | None = None

    @classmethod
    def from_json(cls, owner: str, stored: Mapping[str, Any]) -> "QuietRule":
        """Return the rule in the column of an owner.

        Raises InvalidArgumentError if SQL wrote another value.
        """
        try:
            windows, calendar = stored["windows"], stored.get("calendar")
            if not isinstance(windows, list) or not isinstance(calendar, str | None):
                raise TypeError(stored)  # noqa: TRY301
            return cls([QuietHours.from_text(each) for each in windows], calendar)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            rule = f"of {owner!r} is not what set_quiet_hours() writes; set it again"
            raise invalid_quiet("quiet_hours", stored, rule) from error

    @classmethod
    def from_setting(cls, value: object) -> "QuietRule":
        """Return the rule in ``dynbeat_quiet_hours``. Raises ValueError."""
        given: Mapping[str, Any] = value if isinstance(value, Mapping) else {"windows": value}
        windows, calendar = given.get("windows", ()), given.get("calendar")
        is_list = isinstance(windows, Iterable) and not isinstance(windows, str | Mapping)
        is_named = calendar is None or (isinstance(calendar, str) and calendar != "")
        if not is_list or not is_named or not given.keys() <= {"windows", "calendar"}:
            rule = (
                "must be a list of windows such as ['22:00-07:00'], or a dict"
                " {'windows': [...], 'calendar': 'holidays-de'}"
            )
            raise ValueError(rule)
        return cls.of(windows, calendar)

    @classmethod
    def of(cls, windows: Iterable[object], calendar: str | None) -> "QuietRule":
        """Return the rule of windows or their texts. Raises InvalidArgumentError."""
        checked = [
            each if isinstance(each, QuietHours) else QuietHours.from_text(each) for each in windows
        ]
        if len(checked) > MAX_WINDOWS:
            rule = f"has too many windows, at most {MAX_WINDOWS}"
            raise invalid_quiet(
                "windows", list(map(str, checked)), rule, "too_many", maximum=MAX_WINDOWS
            )
        if not checked and calendar is None:
            raise invalid_quiet(
                "windows", checked, "has neither a window nor a calendar", "required"
            )
        rule_of = cls(checked, calendar)
        quiet_spans([rule_of])
        return rule_of

    def to_json(self) -> dict[str, Any]:
        """Return the value of the column."""
        calendar = {} if self.calendar is None else {"calendar": self.calendar}
        return {"windows": [str(each) for each in self.windows], **calendar}


def quiet_spans(rules: Iterable[QuietRule]) -> Sequence[Span]:
    """Return the times of the week that windows of the rules cover.

    Raises InvalidArgumentError if they cover the whole week.
    """
    windows = [window for rule in rules for window in rule.windows]
    spans = merged_spans(span for window in windows for span in window.spans())
    if spans == [(0, WEEK)]:
        raise invalid_quiet("windows", [str(window) for window in windows], _WHOLE_WEEK, "no_time")
    return spans


def merged_spans(spans: Iterable[Span]) -> Sequence[Span]:
    """Return the spans within one week, in order, without overlaps."""
    within: list[Span] = []
    for first, last in spans:
        within.append((first, min(last, WEEK)))
        if last > WEEK:
            within.append((0, last - WEEK))
    merged: list[Span] = []
    for first, last in sorted(within):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged
