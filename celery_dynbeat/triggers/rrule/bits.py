"""Sets of days, months and units as integers, bit by bit: the arithmetic of recurrences.

A set of days of a year has 1 January at bit 0.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import accumulate

_WORD = (1 << 64) - 1


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
