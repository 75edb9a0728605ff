"""One item of the list that a field of a cron expression is: ``5``, ``1-5/2``, ``LW``, ``H/15``."""

import hashlib
import re
from dataclasses import dataclass

from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers.cron.days import LAST, MonthDay, NthWeekday
from celery_dynbeat.triggers.cron.domains import DAY, WEEKDAY, Domain, number, refusal, step_size

_TOKEN = "[a-z0-9]{1,3}"  # noqa: S105 - a part of the grammar
_STEP = "(?:/([0-9]{1,3}))?"
_PLAIN = re.compile(rf"(\*|{_TOKEN})(?:-({_TOKEN}))?{_STEP}", re.ASCII)
_HASHED = re.compile(rf"h(?:\(({_TOKEN})-({_TOKEN})\))?{_STEP}", re.ASCII)
_FROM_END = re.compile(r"l(?:-([0-9]{1,2}))?(w)?", re.ASCII)
_NEAREST = re.compile(r"([0-9]{1,2})w|w([0-9]{1,2})", re.ASCII)
_NTH = re.compile(rf"({_TOKEN})#([0-9])", re.ASCII)
# croniter writes l5, others 5L.
_LAST_WEEKDAY = re.compile(rf"({_TOKEN})l|l([0-9])", re.ASCII)


@dataclass(frozen=True, slots=True)
class Pick:
    """An ``H``: every ``step``-th of ``choices``, from one of the first that a key picks."""

    text: str
    choices: tuple[int, ...]
    step: int

    @property
    def outcomes(self) -> tuple[tuple[int, ...], ...]:
        """Return what it may come to; in each some of ``choices``, in their order."""
        starts = range(min(self.step, len(self.choices)))
        return tuple(self.choices[start :: self.step] for start in starts)

    def picked_by(self, key: str, *, field: str, count: int = 1) -> list[str]:
        """Return the numbers, or ranges with their steps, that ``key`` picks for ``count`` of them.

        The same for ever and on every machine; other fields and other items pick on their own. The
        same item written several times gets different ones, as long as there are any.
        """
        left, picked = list[tuple[int, ...]](), list[str]()
        for place in range(count):
            left = left or list(self.outcomes)
            order = f" {place}" if place else ""
            seed = f"{field} {self.text} {key}{order}".encode(errors="surrogatepass")
            digest = int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest(), "big")
            picked.append(self._written(left.pop(digest % len(left))))
        return picked

    def _written(self, values: tuple[int, ...]) -> str:
        return f"{values[0]}-{self.choices[-1]}/{self.step}" if values[1:] else str(values[0])


def parse_item(item: str, domain: Domain, text: str) -> Pick | MonthDay | NthWeekday | list[int]:
    """Read one item; ``text`` is the whole field, for the error.

    Raises ``InvalidTriggerError`` for the field.
    """
    if item.startswith("h"):
        return _pick(item, domain, text)
    rule: MonthDay | NthWeekday | None = None
    if domain is DAY:
        rule = _month_day(item, text)
    elif domain is WEEKDAY:
        rule = _nth_weekday(item, text)
    return _values(item, domain, text) if rule is None else rule


def _pick(item: str, domain: Domain, text: str) -> Pick:
    match = _HASHED.fullmatch(item)
    if match is None:
        reason = f"{shorten(item)} is none of the forms of H: H, H(0-29), H/15, H(0-29)/10"
        raise refusal(text, domain, reason)
    first, last, step = match.groups()
    if first is None:
        # Of the days of the month only those that each month has, as in Jenkins
        # (hudson.scheduler.BaseParser); croniter would take 31 and skip months.
        choices = list(range(domain.low, domain.sure + 1))
    else:
        choices = _walk(number(first, domain, text), number(last, domain, text), 1, domain)
    size = len(choices) if step is None else step_size(step, domain, text)
    return Pick(item, tuple(choices), size)


def _month_day(item: str, text: str) -> MonthDay | None:
    if match := _FROM_END.fullmatch(item):
        back, nearest = match.groups()
        if back is not None and not 1 <= int(back) < DAY.high:
            raise refusal(text, DAY, f"L-{back} is not from L-1 to L-{DAY.high - 1}")
        return MonthDay(int(back or 0), from_end=True, nearest=nearest is not None)
    if match := _NEAREST.fullmatch(item):
        return MonthDay(number(match[1] or match[2], DAY, text), from_end=False, nearest=True)
    return None


def _nth_weekday(item: str, text: str) -> NthWeekday | None:
    if match := _NTH.fullmatch(item):
        if match[2] not in "12345":
            reason = f"#{match[2]} is not from #1 to #5: a month has no other weeks"
            raise refusal(text, WEEKDAY, reason)
        return NthWeekday(number(match[1], WEEKDAY, text) % 7, int(match[2]))
    if match := _LAST_WEEKDAY.fullmatch(item):
        return NthWeekday(number(match[1] or match[2], WEEKDAY, text) % 7, LAST)
    return None


def _values(item: str, domain: Domain, text: str) -> list[int]:
    """Return the values of ``*``, ``5``, ``1-5``, ``*/2``, ``1-5/2``."""
    match = _PLAIN.fullmatch(item)
    if match is None:
        raise refusal(text, domain, f"{shorten(item)} is no number, name, range or step")
    first, last, step_text = match.groups()
    if first == "*" and last is not None:
        raise refusal(text, domain, "* takes no range; write both ends as numbers")
    step = 1 if step_text is None else step_size(step_text, domain, text)
    if first == "*":
        return list(range(domain.low, domain.high + 1, step))
    low = number(first, domain, text)
    if last is not None:
        return _walk(low, number(last, domain, text), step, domain)
    if step_text is None:
        return _walk(low, low, 1, domain)
    return list(range(low % 7 if domain is WEEKDAY else low, domain.high + 1, step))


def _walk(low: int, high: int, step: int, domain: Domain) -> list[int]:
    """Step from ``low`` to ``high``, round the end of the field if need be."""
    if domain is WEEKDAY and low > high:
        # The Sunday that opens "sun-tue" written as 7; it closes "fri-sun" written as 0.
        low %= 7
    length = high - low if low <= high else high - low + domain.size
    return [
        (low - domain.low + done) % domain.size + domain.low for done in range(0, length + 1, step)
    ]
