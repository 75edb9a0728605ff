"""The vocabulary of phrases such as "weekdays at 9", and a reader of their words."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import time
from typing import TypeVar

from celery_dynbeat.common.text import WEEKDAYS, ordinal, shorten

T = TypeVar("T")

#: Each spelling of a unit, and the unit.
UNITS = {
    **dict.fromkeys(("second", "seconds", "sec", "secs"), "seconds"),
    **dict.fromkeys(("minute", "minutes", "min", "mins"), "minutes"),
    **dict.fromkeys(("hour", "hours", "hr", "hrs"), "hours"),
    **dict.fromkeys(("day", "days"), "days"),
    **dict.fromkeys(("week", "weeks"), "weeks"),
    **dict.fromkeys(("month", "months"), "months"),
    **dict.fromkeys(("year", "years"), "years"),
}
#: Each spelling of a weekday, and its number. Monday is 0.
DAYS = {
    spelling: number
    for number, name in enumerate(map(str.lower, WEEKDAYS))
    for spelling in (name, f"{name}s", name[:3])
} | {"tues": 1, "weds": 2, "thurs": 3}
#: Each spelling of an ordinal, and its number. The last is 0.
ORDINALS = {
    **{ordinal(number): number for number in range(1, 32)},
    "first": 1,
    "second": 2,
    "third": 3,
    "fourth": 4,
    "fifth": 5,
    "last": 0,
}
LAST = 0
#: Times of day that are a word, as hour and minute.
NAMED_TIMES = {"noon": time(12), "midnight": time(0)}
_OTHERS = (
    *("every", "each", "daily", "hourly", "weekly", "monthly", "weekday", "weekdays"),
    *("weekend", "weekends", "once", "in", "on", "at", "the", "of", "and", "to", "am", "pm"),
)
#: In a fixed order, so that the search for similar words has one result.
VOCABULARY = tuple(sorted({*UNITS, *DAYS, *ORDINALS, *NAMED_TIMES, *_OTHERS}))
_HYPHEN = re.compile(r"(?<=[a-z])-(?=[a-z])", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,6}")
_DECIMAL = re.compile(r"[0-9]{1,6}\.[0-9]{1,6}")


class PhraseError(Exception):
    """A text is not a phrase of the grammar. Callers see ``InvalidTriggerError``."""


def split_words(text: str) -> list[str]:
    """Return the words of a phrase in lower case. Commas are words, ``mon-fri`` is ``mon to fri``.

    The time that it takes is proportional to the length of the text.
    """
    return _HYPHEN.sub(" to ", text.lower()).replace(",", " , ").split()


@dataclass(slots=True)
class PhraseReader:
    """The words of a phrase, and the position of the next word."""

    words: list[str]
    position: int = 0

    @property
    def next(self) -> str:
        """The next word, "" at the end."""
        return self.words[self.position] if self.position < len(self.words) else ""

    def take(self, *phrases: str) -> str:
        """Consume the first of ``phrases`` that comes next, and return it. Else return ""."""
        for phrase in phrases:
            words = phrase.split()
            if self.words[self.position : self.position + len(words)] == words:
                self.position += len(words)
                return phrase
        return ""

    def take_number(self) -> int | None:
        """Consume a whole number, and return it. None if another word comes next."""
        if _NUMBER.fullmatch(self.next) is None:
            return None
        number = int(self.next)
        self.position += 1
        return number

    def take_amount(self) -> float | None:
        """Consume a number, which may have decimals, and return it. Else return None."""
        if _DECIMAL.fullmatch(self.next) is None:
            return self.take_number()
        number = float(self.next)
        self.position += 1
        return number

    def take_list(self, take_item: Callable[["PhraseReader"], T | None]) -> list[T]:
        """Consume ``a``, ``a and b`` or ``a, b and c``, and return the items."""
        items: list[T] = []
        while True:
            start = self.position
            separated = not items or self.take(",", "and")
            if items:
                self.take("and")
            item = take_item(self) if separated else None
            if item is None:
                self.position = start
                return items
            items.append(item)

    def check_end(self) -> None:
        """Raise PhraseError unless all words are consumed."""
        if self.next:
            raise PhraseError(f"{shorten(self.next)} is not expected there")
