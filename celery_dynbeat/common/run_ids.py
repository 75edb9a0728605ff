"""Run ids: UUIDs of version 7 (RFC 9562, section 5.7).

They are ordered by time, so new rows go to the end of an index.
"""

import os
import secrets
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from uuid import UUID

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: The first digit of the variant field. Two of its bits are random.
_VARIANT = "89ab"
#: The random digits of an id, and the ids whose digits are read from the system at once.
_DIGITS, _READ_AHEAD = 20, 64
_unused: list[str] = []
# A forked process would make the ids of its parent.
os.register_at_fork(after_in_child=_unused.clear)


def new_run_id(now: datetime) -> str:
    """Return a new id for a run created at ``now``."""
    try:
        return _uuid(now, _unused.pop())
    except IndexError:
        digits = secrets.token_hex(_DIGITS // 2 * _READ_AHEAD)
    starts = range(_DIGITS, len(digits), _DIGITS)
    _unused.extend(digits[start : start + _DIGITS] for start in starts)
    return _uuid(now, digits[:_DIGITS])


def first_run_id(created_at: datetime) -> str:
    """Return the lower bound of the ids of all runs created at ``created_at`` or later."""
    return _uuid(created_at, "0" * _DIGITS)


def created_at(run_id: str) -> datetime:
    """Return the instant at which a run was created, to the millisecond."""
    return _EPOCH + timedelta(milliseconds=UUID(run_id).int >> 80)


def _uuid(now: datetime, random: str) -> str:
    variant = _VARIANT[int(random[3], 16) % 4]
    return f"{_milliseconds(now)}-7{random[:3]}-{variant}{random[4:7]}-{random[7:19]}"


# All runs of a batch are created at one instant.
@lru_cache(maxsize=16)
def _milliseconds(now: datetime) -> str:
    elapsed = max(now, _EPOCH) - _EPOCH
    milliseconds = (
        elapsed.days * 86_400_000 + elapsed.seconds * 1_000 + elapsed.microseconds // 1_000
    )
    digits = f"{milliseconds & 0xFFFF_FFFF_FFFF:012x}"
    return f"{digits[:8]}-{digits[8:]}"


def is_run_id(text: object) -> bool:
    """Return whether ``text`` has the form of a run id. A header of a message can hold anything."""
    if not isinstance(text, str):
        return False
    try:
        uuid = UUID(text)
    except ValueError:
        return False
    return uuid.version == 7 and str(uuid) == text  # noqa: PLR2004 - the version of new_run_id
