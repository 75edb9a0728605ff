"""Sets of days, months and units as integers, bit by bit: the arithmetic of recurrences.

A set of days of a year has 1 January at bit 0.
"""

from bisect import bisect_left
from calendar import isleap
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import accumulate

from celery_dynbeat.triggers.rrule_days import first_day

#: From a year to the days of it that an interval allows; bits past its end mean nothing.
Phase = Callable[[int], int]
_YEAR = 366
# A longer cycle is looked up in its list instead of being laid out in bits.
_LONGEST_TILE = 4096
_WORD = (1 << 64) - 1


def cycle(origin: int, period: int, residues: list[int]) -> Phase:
    """Return the days that lie a residue after ``origin`` and then every ``period`` days."""
    if period == 1:
        return lambda _year: -1 if residues else 0
    if period <= _LONGEST_TILE:
        tile = bit_set(residues)
        for copies in range(1, (period + _YEAR) // period + 1):
            tile |= bit_set(residues) << copies * period
        return lambda year: tile >> (first_day(year) - origin) % period

    def rare(year: int) -> int:
        shift = (first_day(year) - origin) % period
        near = residues[bisect_left(residues, shift) : bisect_left(residues, shift + _YEAR)]
        wrapped = residues[: bisect_left(residues, shift + _YEAR - period)]
        return bit_set([*near, *(residue + period for residue in wrapped)]) >> shift

    return rare


def stripes(first: int, interval: int, size: int) -> int:
    """Return the bits ``first``, ``first + interval`` ... below ``size``."""
    if first >= size:
        return 0
    # A comb by doubling: 1, then 2, 4, 8 ... teeth.
    comb, width = 1, interval
    while width < size:
        comb |= comb << width
        width *= 2
    return (comb << first) & ((1 << size) - 1)


def months(year: int, *, origin: int, interval: int) -> int:
    """Return the days of the months that the interval falls on; months count from year 0."""
    if interval == 1:
        return -1
    numbered = enumerate(spans(leap=isleap(year)), start=year * 12)
    return sum(span for month, span in numbered if (month - origin) % interval == 0)


@cache
def spans(*, leap: bool) -> tuple[int, ...]:
    """Return the days of each month of a year."""
    lengths = (31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    ends = accumulate(lengths)
    return tuple(
        (1 << end) - (1 << end - length) for end, length in zip(ends, lengths, strict=True)
    )


def bit_set(numbers: Iterable[int]) -> int:
    """Return the set of these numbers."""
    total = 0
    for number in numbers:
        total |= 1 << number
    return total


def bits(number: int) -> Iterator[int]:
    """Yield the bits of a set, in order; word by word, because a day has many seconds."""
    passed = 0
    while number:
        skipped = (number & -number).bit_length() - 1
        passed, number = passed + skipped, number >> skipped
        word = number & _WORD
        while word:
            low = word & -word
            yield passed + low.bit_length() - 1
            word ^= low
        passed, number = passed + _WORD.bit_length(), number >> _WORD.bit_length()
