"""Sets of small numbers as the bits of an integer.

In a set of days of a year, bit 0 is 1 January.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import accumulate

_WORD = (1 << 64) - 1


def stripes(first: int, interval: int, size: int) -> int:
    """Return the set of ``first``, ``first + interval`` and so on below ``size``."""
    if first >= size:
        return 0
    # Doubling sets 1, 2, 4, 8 ... bits.
    pattern, width = 1, interval
    while width < size:
        pattern |= pattern << width
        width *= 2
    return (pattern << first) & ((1 << size) - 1)


@cache
def month_days(*, leap: bool) -> tuple[int, ...]:
    """Return the set of days of each month of a year."""
    lengths = (31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    ends = accumulate(lengths)
    return tuple(
        (1 << end) - (1 << end - length) for end, length in zip(ends, lengths, strict=True)
    )


def bit_set(numbers: Iterable[int]) -> int:
    """Return the set of ``numbers``."""
    total = 0
    for number in numbers:
        total |= 1 << number
    return total


def bits(number: int) -> Iterator[int]:
    """Yield the numbers of a set in order.

    It works word by word: shifting the 86,400 bits of the seconds of a day is slow.
    """
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
