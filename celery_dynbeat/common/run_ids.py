"""Run ids: UUIDs of version 7 (RFC 9562, section 5.7).

They are ordered by time, so new rows go to the end of an index. The ids that a process makes for
one instant are ordered as well: a counter follows the time (section 6.2, method 1).
"""

import os
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import count
from uuid import UUID

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: The end of the year 9998, in milliseconds: what is added to it is still a datetime.
_LAST = (datetime(9999, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
#: The digits of the counter, and the random digits after it.
_COUNTED, _RANDOM = 6, 12
#: The ids whose random digits are read from the system at once.
_READ_AHEAD = 64
_unused: list[str] = []
# A forked process would make the ids of its parent.
os.register_at_fork(after_in_child=_unused.clear)


def new_run_id(now: datetime) -> str:
    """Return a new id for a run created at ``now``."""
    milliseconds, numbers = _of_instant(now)
    number = f"{next(numbers):06x}"
    return f"{milliseconds}-7{number[:3]}-8{number[3:]}-{_random_digits()}"


def _random_digits() -> str:
    try:
        return _unused.pop()
    except IndexError:
        digits = secrets.token_hex(_RANDOM // 2 * _READ_AHEAD)
    starts = range(_RANDOM, len(digits), _RANDOM)
    _unused.extend(digits[start : start + _RANDOM] for start in starts)
    return digits[:_RANDOM]


def first_run_id(created_at: datetime) -> str:
    """Return the lower bound of the ids of all runs created at ``created_at`` or later."""
    return f"{_of_instant(created_at)[0]}-7000-8000-{'0' * _RANDOM}"


def created_at(run_id: str) -> datetime:
    """Return the instant at which a run was created, to the millisecond.

    The result for an id of a later year than 9998, which no run has, is the end of that year.
    """
    return _EPOCH + timedelta(milliseconds=min(UUID(run_id).int >> 80, _LAST))


# All runs of a batch are created at one instant.
@lru_cache(maxsize=16)
def _of_instant(now: datetime) -> tuple[str, Iterator[int]]:
    """Return the digits of the time, and the numbers of its ids, from a random one on."""
    elapsed = max(now, _EPOCH) - _EPOCH
    milliseconds = (
        elapsed.days * 86_400_000 + elapsed.seconds * 1_000 + elapsed.microseconds // 1_000
    )
    digits = f"{milliseconds & 0xFFFF_FFFF_FFFF:012x}"
    # The other half of the numbers is left for the ids of this instant.
    return f"{digits[:8]}-{digits[8:]}", count(secrets.randbelow(16**_COUNTED // 2))


def is_run_id(text: object) -> bool:
    """Return whether ``text`` has the form of a run id. A header of a message can hold anything."""
    if not isinstance(text, str):
        return False
    try:
        uuid = UUID(text)
    except ValueError:
        return False
    return uuid.version == 7 and str(uuid) == text  # noqa: PLR2004 - the version of new_run_id
